"""What running jobs cost the API server, etcd and the controller.

Once all jobs train (`jobs`), everything is counted for a while, and then some of them are waited for.
"""

import statistics
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from edl_workflows.runtime.kube.connect import Cluster
from tests.benchmarks.cluster.audit import AuditLog, Call
from tests.benchmarks.cluster.plane import CONTROLLER, MASTERS, Binaries, Plane, running_plane
from tests.benchmarks.scale.jobs import Counters, Load, TrainingJobs, training_jobs
from tests.benchmarks.scale.waiters import measure_delays, wait_for_steps
from tests.cluster.bed import build

_WRITES = ("create", "update", "patch", "delete")
_STATUS, _STATE = "elasticjobs/status", "configmaps"


@dataclass(frozen=True)
class Cost:
    """What the jobs cost.

    Attributes:
        counts: a job and minute, by name; they depend on the programs and not on the machine.
        writes: of all masters, a second and job.
        megabytes: put into etcd, a minute.
        database: MiB of etcd's file at the end.
        controller_cores, masters_cores: CPU of these processes.
        api_seconds: p99 of the API server's answers, without watches.
        delays: seconds from a step to the waiter that waits for it: p99 and median; None for none.
    """

    counts: dict[str, float]
    writes: float
    megabytes: float
    database: float
    controller_cores: float
    masters_cores: float
    api_seconds: float
    delays: tuple[float, float] | None


def measure(load: Load) -> Cost:
    """Run the load on a control plane of its own, whose programs are built before."""
    build.build()
    stages = sorted(build.KWOK_STAGES.glob("*.yaml"))
    binaries = Binaries(build.BIN / "kubelab", build.BIN / "kwok", stages, peer=Path(), peer_crds=())
    with (
        tempfile.TemporaryDirectory() as folder,
        running_plane(binaries, Path(folder), nodes=not load.alone) as plane,
        training_jobs(plane, load) as jobs,
    ):
        log, before = AuditLog(plane.audit_log), jobs.read_counters()
        time.sleep(load.seconds)
        after, calls = jobs.read_counters(), log.news()
        jobs.check()
        delays = _measure_waiters(plane, jobs, load) if load.waiters and not load.young else []
        return _compute_cost(load, calls, before, after, delays)


def _measure_waiters(plane: Plane, jobs: TrainingJobs, load: Load) -> list[float]:
    cluster: Cluster = plane.cluster()
    first_steps = dict(list(jobs.read_steps("trains").items())[: load.waiters])
    learned = wait_for_steps(cluster, first_steps, load.rounds)
    jobs.check()
    return measure_delays(jobs.read_steps("step"), learned)


def _compute_cost(
    load: Load, calls: list[Call], before: Counters, after: Counters, delays: list[float]
) -> Cost:
    seconds = after.time - before.time
    share = load.jobs * seconds / 60
    of_masters = [call for call in calls if call.user == MASTERS]
    of_controller = [call for call in calls if call.user == CONTROLLER]
    written = Counter(call.resource for call in of_masters if call.verb in _WRITES)
    put = after.put_bytes - before.put_bytes
    counts = {
        "status writes": written[_STATUS],
        "state writes": written[_STATE],
        "other writes of the master": sum(written.values()) - written[_STATUS] - written[_STATE],
        "kilobytes": put / 1000,
        "decisions": after.decisions - before.decisions,
        "requests of the controller": len(of_controller),
        "watch events of a waiter": after.events - before.events,
    }
    answered = sorted(call.seconds for call in calls if call.verb != "watch")
    controller, masters = (end - begin for begin, end in zip(before.cpu, after.cpu, strict=True))
    return Cost(
        counts={name: round(count / share, 3) for name, count in counts.items()},
        writes=round(sum(written.values()) / load.jobs / seconds, 4),
        megabytes=round(put / 1e6 / (seconds / 60), 2),
        database=round(after.database / 2**20, 1),
        controller_cores=round(controller / seconds, 3),
        masters_cores=round(masters / seconds, 3),
        api_seconds=round(_percentile(answered, 99), 4),
        delays=(round(_percentile(delays, 99), 3), round(statistics.median(delays), 3)) if delays else None,
    )


def _percentile(numbers: list[float], percent: int) -> float:
    ordered = sorted(numbers)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]
