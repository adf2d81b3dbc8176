"""Jobs whose processes are killed: what is submitted, who is killed, and what must hold in the end."""

import contextlib
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from math import ceil
from pathlib import Path
from typing import Any

import psutil

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client, events, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.e2e.counting import EPOCHS, RECORDS, Holds, final, read_counts
from tests.e2e.counting_servers import BATCH, SHARD
from tests.e2e.submitted import Container, SubmittedJob

FOLDER = Path(__file__).parent
LAG_SECONDS = 2.4
"""The longest that a worker's step is not yet in a checkpoint's data position. Acknowledgements go in groups,
a group when the one before it is stored, and a checkpoint begins when that is stored."""
STEP_DELAY = 0.1
"""Seconds of rest after each step, as a rule."""


class Kind(StrEnum):
    """How a job trains."""

    SERVERS = "servers"
    RING = "ring"


class Victim(StrEnum):
    """Who is killed. An agent's pod is killed with all that runs in it; of a process only itself. The chief
    of a collective job is rank 0."""

    MASTER = "master"
    SERVER = "ps"
    SERVER_PROCESS = "ps-process"
    WORKER = "worker"
    WORKER_PROCESS = "worker-process"
    CHIEF = "chief"
    CHIEF_PROCESS = "chief-process"

    @property
    def role(self) -> str:
        """Of its pod."""
        if self is Victim.MASTER:
            return names.MASTER_TYPE
        return names.PS_TYPE if self in (Victim.SERVER, Victim.SERVER_PROCESS) else names.WORKER_TYPE

    @property
    def whole_pod(self) -> bool:
        """Whether its agent dies, too."""
        return not self.endswith("-process")


VICTIMS = {
    Kind.SERVERS: tuple(Victim),
    Kind.RING: tuple(victim for victim in Victim if victim.role != names.PS_TYPE),
}
"""Who there is to kill."""


@dataclass(frozen=True)
class Counting:
    """A job that counts its records.

    Attributes:
        kind: with servers, or collective.
        folder: for checkpoints and holds, at the same path in all pods.
        delay: seconds of rest after each step, until `hurry`; how much is trained in `LAG_SECONDS` follows
            from it.
        container: what its pods run.
        programs: folder of the training programs.
    """

    kind: Kind
    folder: Path
    delay: float = STEP_DELAY
    container: Container = field(default_factory=lambda: Container("local", sys.executable))
    programs: Path = FOLDER

    @property
    def holds(self) -> Holds:
        """Where its processes stop."""
        return Holds(self.folder)

    @property
    def replicas(self) -> dict[str, int]:
        """Nodes to begin with, by role."""
        return {"ps": 1, "worker": 2} if self.kind is Kind.SERVERS else {"worker": 2}

    def hurry(self) -> None:
        """No more rest after a step."""
        (self.folder / "hurry").touch()

    def manifest(self, name: str) -> dict[str, Any]:
        """The job."""
        program = self.programs / f"counting_{self.kind}.py"
        agent = ("-m", "edl_workflows", "agent", "run", "--", self.container.python)
        options = ("--step-delay", str(self.delay))
        main = self.container.runs(*agent, str(program), str(self.folder), *options)
        main["volumeMounts"] = [{"name": "work", "mountPath": str(self.folder)}]
        volume = {"name": "work", "hostPath": {"path": str(self.folder), "type": "Directory"}}
        template = {"spec": {"containers": [main], "volumes": [volume]}}
        collective = {
            "distributionStrategy": "AllreduceStrategy",
            "rendezvous": {"maxNodes": 3, "waitingTimeoutSeconds": 3},
        }
        return {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticJob",
            "metadata": {"name": name},
            "spec": {
                "optimizeMode": "manual",
                **(collective if self.kind is Kind.RING else {}),
                "replicaSpecs": {
                    role: {"replicas": count, "template": template} for role, count in self.replicas.items()
                },
            },
        }


@dataclass
class CountingJob(SubmittedJob):
    """A submitted one.

    Attributes:
        counting: what it trains.
    """

    counting: Counting

    @classmethod
    def start(cls, cluster: Cluster, name: str, counting: Counting) -> "CountingJob":
        """Submit it."""
        counting.folder.mkdir(parents=True, exist_ok=True)
        job = SubmittedJob.submit(cluster, counting.manifest(name))
        return cls(cluster, job.name, counting)

    @property
    def step(self) -> int:
        """The newest global step that the status tells."""
        progress = self.get().status.progress
        return progress.step if progress else 0

    def begin_scale(self) -> str:
        """Ask for one server more, or one worker more where the workers are the world; the plan's name."""
        role = names.PS_TYPE if self.counting.kind is Kind.SERVERS else names.WORKER_TYPE
        wanted = {role: ReplicaResourceSpec(replicas=self.counting.replicas[role] + 1)}
        request = ScaleRequest(job=self.name, replicas=wanted)
        return SCALE.begin(self.cluster, request, StageIdentity(owner=f"tests/kills/{self.name}")).name

    def find(self, victim: Victim) -> str | None:
        """The pod of a victim: the chief has the lowest node id of the workers that run, the worker the
        highest."""
        running = sorted(self.running(victim.role), key=lambda pod: int(pod.rpartition("-")[2]))
        if not running:
            return None
        return running[0] if victim in (Victim.CHIEF, Victim.CHIEF_PROCESS) else running[-1]

    def strike(self, victim: Victim) -> str | None:
        """SIGKILL to a victim; its pod, or None if there is nothing of it to kill now."""
        pod = self.find(victim)
        if pod is None:
            return None
        mine = (self.cluster.namespace, pod)
        found = [p for p in psutil.process_iter(["environ"]) if _pod_of(p) == mine]
        if not victim.whole_pod:
            trains = {p: int(v) for p in found if (v := p.info["environ"].get(names.ENV_CLUSTER_VERSION))}
            found = [process for process, version in trains.items() if version == min(trains.values())]
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):  # a pod's first process takes the others with it
                process.kill()
        return pod if found else None

    def judge(self, victims: Sequence[Victim]) -> "Verdict":
        """What is to be said of a job that has succeeded although these were killed."""
        newest = final(self.counting.folder)
        counts = read_counts(newest)
        lost, twice = int((counts == 0).sum()), int(counts.sum()) - int((counts > 0).sum())
        problems = []
        if len(counts) != RECORDS * EPOCHS or lost:
            problems.append(f"{lost} of {len(counts)} records are lost")
        if twice > (most := self.most_twice(victims)):
            problems.append(f"{twice} records were trained twice; at most {most} were held")
        told = self.get().status.checkpoint
        if told is None or told.uri != newest.uri:
            problems.append(f"the newest checkpoint is {newest.uri}; the status says {told}")
        return Verdict(lost, twice, (*problems, *self._ends()))

    def most_twice(self, victims: Sequence[Victim]) -> int:
        """How many records may be in the model twice: what a lost worker had trained and not acknowledged;
        with a master's leases that were not stored, what all had; with a server, what all but the chief had,
        or trained while a checkpoint began: the chief's own part is in its position. In a collective job
        model and data position are of the same step."""
        if self.counting.kind is Kind.RING:
            return 0
        workers = self.counting.replicas["worker"]
        holders = {Victim.MASTER: workers, Victim.SERVER: workers - 1, Victim.SERVER_PROCESS: workers - 1}
        trained = ceil(LAG_SECONDS / self.counting.delay) * BATCH
        return sum(holders.get(victim, 1) for victim in victims) * (SHARD + trained)

    def _ends(self) -> list[str]:
        """What is wrong about its end: a job ends once."""
        ends = self.until(self._told_ends, 30, "its end is told by an event")
        status = self.get().status
        masters = [pod["status"].get("phase") for pod in self.pods(names.MASTER_TYPE)]
        problems = []
        if status.phase is None or status.phase.condition != JobPhase.SUCCEEDED:
            problems.append(f"the job is {status.phase} after it had succeeded")
        if ends != 1:
            problems.append(f"it ended {ends} times")
        if masters.count("Succeeded") > 1:
            problems.append(f"its masters: {masters}")
        return problems

    def _told_ends(self) -> int:
        """How often events told of its end; they come a moment after the status."""
        manifest = client.get(self.cluster, resources.ELASTIC_JOBS, self.name)
        reason = ElasticJob.parse(manifest).status.reason
        told = [event for event in events.of_object(self.cluster, manifest) if event.get("reason") == reason]
        return sum(int(event.get("count") or 1) for event in told)

    def idle(self) -> bool:
        """Whether none of its pods runs."""
        return not any(self.running(role) for role in (names.MASTER_TYPE, names.PS_TYPE, names.WORKER_TYPE))


@dataclass(frozen=True)
class Verdict:
    """What became of the data.

    Attributes:
        lost, twice: records of the last checkpoint.
        problems: promises that were not kept.
    """

    lost: int
    twice: int
    problems: tuple[str, ...]


class Moment(StrEnum):
    """When the kill comes."""

    START = "start-up"
    EPOCH = "mid-epoch"
    CHECKPOINT = "mid-checkpoint"
    MIGRATION = "mid-migration"
    LAST_STEP = "last-step"


WARM_STEPS = 20


def _at_start(job: CountingJob) -> None:
    """All training processes have begun, and none has prepared itself."""
    count = sum(job.counting.replicas.values())
    job.until(lambda: job.counting.holds.reached("start") == count, 240, "all processes start")


def _in_epoch(job: CountingJob) -> None:
    """Training moves."""
    job.wait_step(WARM_STEPS)


def _in_checkpoint(job: CountingJob) -> None:
    """The chief has written half of a checkpoint."""
    job.wait_step(WARM_STEPS)
    job.counting.holds.set("save")
    job.until(lambda: job.counting.holds.reached("save"), 60, "a checkpoint begins")


def _in_migration(job: CountingJob) -> None:
    """The next version's processes have begun to prepare themselves beside those that train."""
    job.wait_step(WARM_STEPS)
    job.counting.holds.set("prepare")
    job.begin_scale()
    job.until(lambda: job.counting.holds.reached("prepare"), 240, "the next version is prepared")


def _after_all_steps(job: CountingJob) -> None:
    """All data is consumed; the last checkpoint is not begun."""
    count = job.counting.replicas["worker"]
    job.until(lambda: job.counting.holds.reached("end") == count, 240, "all workers are through")


@dataclass(frozen=True)
class Situation:
    """How a moment is brought about.

    Attributes:
        hold: where processes stop from the beginning on; "" for nowhere.
        reach: waits for the moment.
        release: where they go on after the kill.
        delay: of a step until then. Without any, a fast machine would train half of the data in
            `LAG_SECONDS`.
    """

    hold: str
    reach: Callable[[CountingJob], None]
    release: str
    delay: float = STEP_DELAY


SITUATIONS = {
    Moment.START: Situation("start", _at_start, "start"),
    Moment.EPOCH: Situation("", _in_epoch, ""),
    Moment.CHECKPOINT: Situation("", _in_checkpoint, "save"),
    Moment.MIGRATION: Situation("", _in_migration, "prepare"),
    Moment.LAST_STEP: Situation("end", _after_all_steps, "end", delay=0.02),
}


def kill_at(job: CountingJob, victim: Victim, moment: Moment) -> str:
    """Kill at a moment, let all go on, and wait for the job's success; the pod that was struck."""
    situation = SITUATIONS[moment]
    situation.reach(job)
    pod = job.until(lambda: job.strike(victim), 30, f"there is a {victim}")
    if situation.release:
        job.counting.holds.release(situation.release)
    job.counting.hurry()
    job.wait_phase(JobPhase.SUCCEEDED, seconds=240)
    job.until(job.idle, 60, "all pods have ended")
    return pod


def prepare(counting: Counting, moment: Moment) -> Counting:
    """The job with the pace that the moment needs; what stands before it is submitted."""
    counting.folder.mkdir(parents=True, exist_ok=True)
    situation = SITUATIONS[moment]
    if situation.hold:
        counting.holds.set(situation.hold)
    return replace(counting, delay=situation.delay)


def _pod_of(process: psutil.Process) -> tuple[str, str]:
    environment = process.info["environ"] or {}
    return str(environment.get(names.ENV_NAMESPACE, "")), str(environment.get(names.ENV_POD_NAME, ""))
