"""Random kill schedules: counting jobs on the embedded cluster, whose processes are killed as a seed says.

    python -m tests.e2e.kill_schedules [--schedules 200] [--seed 1] [--only 17] [--at-once 2] [--output FILE]

Prints for each schedule what was killed when and what was found, in FILE as one JSON object a line; logs of
the jobs with problems stay. Ends with 1 if there were any. Same seed, same schedules; where a kill meets a
job depends on the machine.
"""

import argparse
import collections
import contextlib
import dataclasses
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.e2e.kills import VICTIMS, Counting, CountingJob, Kind, Victim

MOST_KILLS = 3
"""A node's budget of replacements is 3, and a SIGKILL that nobody asked for uses it."""
MOST_MASTERS = 2
MOST_SECONDS = 3.0
PATIENCE = 300.0
"""Seconds after which a job that does not train, or does not end, is stuck."""


@dataclass(frozen=True)
class Kill:
    """One kill, and when.

    Attributes:
        victim: who.
        trains: whether first the job must have trained since the kill before, or since it was submitted.
        seconds: of waiting then.
    """

    victim: Victim
    trains: bool
    seconds: float


@dataclass(frozen=True)
class Schedule:
    """What happens to one job.

    Attributes:
        number: in the seed's sequence, from 1.
        kind: of the job.
        kills: in their order.
        scale_before: a plan is submitted before the kill of this index; None: there is none.
    """

    number: int
    kind: Kind
    kills: tuple[Kill, ...]
    scale_before: int | None


@dataclass(frozen=True)
class Struck:
    """What a kill met.

    Attributes:
        victim: who was to be killed.
        pod: its pod; "" if there was none, or the job was over.
        seconds: since the job was submitted.
        step: newest that the status told.
    """

    victim: Victim
    pod: str
    seconds: float
    step: int


@dataclass(frozen=True)
class Report:
    """What was found.

    Attributes:
        schedule: that was played.
        struck: what was killed when.
        seconds: from submission to the end.
        lost, twice: records of the last checkpoint; -1 where there is none.
        problems: promises that were not kept.
    """

    schedule: Schedule
    struck: tuple[Struck, ...]
    seconds: float
    lost: int
    twice: int
    problems: tuple[str, ...]

    def __str__(self) -> str:
        kills = ", ".join(f"{s.victim} at {s.seconds:.1f} s (step {s.step})" for s in self.struck if s.pod)
        plan = "; one plan" if self.schedule.scale_before is not None else ""
        found = "; ".join(self.problems) or f"well, {self.twice} records twice"
        return (
            f"{self.schedule.number} {self.schedule.kind}: killed {kills or 'nobody'}{plan}; "
            f"{self.seconds:.0f} s; {found}"
        )


def draw(seed: int, number: int) -> Schedule:
    """A schedule of a seed's sequence."""
    chance = random.Random(f"{seed}/{number}")
    kind = chance.choice(list(Kind))
    kills: list[Kill] = []
    for _ in range(chance.randint(1, MOST_KILLS)):
        masters = sum(kill.victim is Victim.MASTER for kill in kills)
        victims = [v for v in VICTIMS[kind] if v is not Victim.MASTER or masters < MOST_MASTERS]
        trains = chance.random() < 0.6
        kills.append(Kill(chance.choice(victims), trains, chance.uniform(0.0, MOST_SECONDS)))
    scale_before = chance.randrange(len(kills)) if chance.random() < 0.5 else None
    return Schedule(number, kind, tuple(kills), scale_before)


def play(cluster: Cluster, schedule: Schedule, folder: Path) -> Report:
    """Submit a job, kill as the schedule says, wait for its end and judge it."""
    begun = time.monotonic()
    counting = Counting(schedule.kind, folder)
    job = CountingJob.start(cluster, f"kills-{schedule.number}", counting)
    struck: list[Struck] = []
    lost = twice = -1
    try:
        for index, kill in enumerate(schedule.kills):
            struck.append(_strike(job, kill, scale=index == schedule.scale_before, begun=begun))
        counting.hurry()
        job.until(lambda: job.get().finished, PATIENCE, "the job ends")
        problems = _unsuccessful(job)
        seconds = time.monotonic() - begun
        if not problems:
            job.until(job.idle, 60, "all pods have ended")
            verdict = job.judge([one.victim for one in struck if one.pod])
            lost, twice, problems = verdict.lost, verdict.twice, verdict.problems
    except AssertionError as error:
        seconds, problems = time.monotonic() - begun, (str(error),)
    if problems:
        _keep_logs(job)
    job.run(DELETE, DeleteRequest(name=job.name))
    return Report(schedule, tuple(struck), seconds, lost, twice, problems)


def _strike(job: CountingJob, kill: Kill, *, scale: bool, begun: float) -> Struck:
    before = job.step
    if kill.trains:
        job.until(lambda: job.step != before or job.get().finished, PATIENCE, f"it trains beyond {before}")
    if scale and not job.get().finished:
        with contextlib.suppress(EdlError):  # it may end this very moment
            job.begin_scale()
    time.sleep(kill.seconds)
    over = time.monotonic() + PATIENCE
    while (pod := job.strike(kill.victim)) is None and not job.get().finished and time.monotonic() < over:
        time.sleep(0.1)
    return Struck(kill.victim, pod or "", time.monotonic() - begun, job.step)


def _unsuccessful(job: CountingJob) -> tuple[str, ...]:
    status = job.get().status
    assert status.phase is not None
    if status.phase.condition == JobPhase.SUCCEEDED:
        return ()
    return (f"{status.phase}: {status.reason}: {status.message}; {status.failure}",)


def _keep_logs(job: CountingJob) -> None:
    for role in (names.MASTER_TYPE, names.PS_TYPE, names.WORKER_TYPE):
        for pod in job.pods(role):
            name = pod["metadata"]["name"]
            with contextlib.suppress(EdlError):
                (job.counting.folder / f"{name}.log").write_text(job.log(name))
    (job.counting.folder / "job.json").write_text(job.get().model_dump_json(indent=1))


def run(options: argparse.Namespace, folder: Path) -> list[Report]:
    """Play them on an embedded cluster of their own, so many at once."""
    numbers = [options.only] if options.only else range(1, options.schedules + 1)
    reports = []
    with local_cluster.cluster(folder / "cluster", local_cluster.Settings(controller=True)) as running:
        cluster = running.client()
        with ThreadPoolExecutor(options.at_once) as pool:
            futures = [
                pool.submit(play, cluster, draw(options.seed, number), folder / f"job-{number}")
                for number in numbers
            ]
            for future in as_completed(futures):
                reports.append(future.result())
                print(reports[-1], flush=True)
                if options.output:
                    with options.output.open("a") as file:
                        file.write(json.dumps(dataclasses.asdict(reports[-1])) + "\n")
    return reports


def main() -> None:
    """Play a seed's schedules and sum up."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--schedules", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, help="number of the one schedule to play")
    parser.add_argument("--at-once", type=int, default=2, help="jobs at the same time")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="kill-schedules-"))
    reports = run(options, folder)
    killed = collections.Counter(one.victim for report in reports for one in report.struck if one.pod)
    bad = [report for report in reports if report.problems]
    print(
        f"seed {options.seed}: {len(reports)} schedules, {killed.total()} kills "
        f"({', '.join(f'{count} {victim}' for victim, count in sorted(killed.items()))}), "
        f"median {statistics.median(report.seconds for report in reports):.0f} s a job; "
        f"{len(bad)} with problems"
        + (f": {[report.schedule.number for report in bad]}; logs: {folder}" if bad else "")
    )
    if not bad:
        shutil.rmtree(folder, ignore_errors=True)
    sys.exit(bool(bad))


if __name__ == "__main__":
    main()
