"""PaddlePaddle EDL's experiment as a ready scenario: pods of training jobs and of a web service on a cluster of CPUs.

The report (``doc/edl/experiment`` in PaddlePaddle/cloud) had 133 nodes with 2348 cores and jobs of 10 parameter servers of 4
cores and 2 to 60 trainers of 5. In case 1, twenty jobs come ten seconds apart. In case 2, six jobs share the cluster with
Nginx, whose 400 instances of 3 cores become 100 and 400 again, a step each 90 s. Without autoscaling a job has a fixed number
of trainers.

What the report does not say is assumed: all nodes are alike, a pod runs a second and a half after it has a node, and one that
is deleted goes after 30 s, Kubernetes' default. No job ends within the measured time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

from edl_workflows.scaling.paddle import fulfilment
from edl_workflows.scaling.paddle.nodes import FulfilmentNode

NODES = 133
CORES = 2348
SERVERS, SERVER_CORES = 10, 4.0
TRAINER_CORES = 5.0
MIN_TRAINERS, MAX_TRAINERS = 2, 60
NGINX_CORES = 3.0
PLAN_INTERVAL = 5
"""Seconds between two plans, as upstream's loop."""
START_SECONDS = 1.5
STOP_SECONDS = 30.0


@dataclass(frozen=True)
class PaddleCase:
    """One of the report's cases.

    Attributes:
        jobs: how many come, ten seconds apart.
        trainers: of each job, fixed; None: the planner decides.
        nginx: (seconds, instances from then on), ascending.
        seconds: how long is measured.
    """

    jobs: int
    trainers: int | None
    nginx: Sequence[tuple[int, int]] = ()
    seconds: int = 550


TRAINING_ONLY = PaddleCase(20, None)
"""Case 1 with autoscaling."""
TRAINING_ONLY_FIXED = PaddleCase(20, 60)
_DAY = tuple((90 * step, count) for step, count in enumerate((400, 300, 200, 100, 200, 300, 400)))
MIXED = PaddleCase(6, None, _DAY)
"""Case 2 with autoscaling."""
MIXED_FIXED = PaddleCase(6, 15, _DAY)
"""The report says 60 trainers; its script and logs say 15."""

SCENARIOS: Mapping[str, Mapping[str, PaddleCase]] = {
    "paddle": {"autoscaled": TRAINING_ONLY, "fixed": TRAINING_ONLY_FIXED},
    "paddle-mixed": {"autoscaled": MIXED, "fixed": MIXED_FIXED},
}
"""Scenario → the case with autoscaling and the one without."""

PUBLISHED_PENDING = {TRAINING_ONLY: 47.2, TRAINING_ONLY_FIXED: 308.5}
"""Mean seconds from a job's first trainer pod to its running, or to the end; recomputed from the report's raw logs, whose own
averages divide ten values by eleven."""
PUBLISHED_CPU = {TRAINING_ONLY: 0.763, TRAINING_ONLY_FIXED: 0.762, MIXED: 0.834, MIXED_FIXED: 0.619}
"""Requests of running pods by what the nodes have, mean over the measured time."""


@dataclass(frozen=True)
class PaddleResult:
    """What was measured.

    Attributes:
        pending: mean seconds from a job's submission to its first running trainer, or to the end.
        cpu: requests of pods in phase Running by the cluster's cores, mean over the time.
        running: jobs that have had a running trainer.
        cpu_each, service_each: the same of all pods and of Nginx's, second by second.
        running_each: the jobs, second by second.
    """

    pending: float
    cpu: float
    running: int
    cpu_each: Sequence[float]
    service_each: Sequence[float]
    running_each: Sequence[int]


@dataclass(eq=False)
class _Pod:
    """A pod; the scheduler and deletion change it."""

    owner: str
    cores: float
    created: int
    node: str | None = None
    runs_from: float = float("inf")
    gone_at: float = float("inf")


def run_case(case: PaddleCase) -> PaddleResult:
    """Run one case, second by second."""
    experiment = _Experiment(case)
    for now in range(case.seconds):
        experiment.step(now)
    return experiment.outcome()


class _Experiment:
    """The cluster's state."""

    def __init__(self, case: PaddleCase) -> None:
        self._case = case
        self._nodes = [f"node-{number:03}" for number in range(NODES)]
        self._cores = CORES / NODES
        self._trainers: dict[str, list[_Pod]] = {}
        """Job → its pods that shall live, the oldest first."""
        self._others: dict[str, list[_Pod]] = {"nginx": []}
        """Parameter servers by job, and Nginx."""
        self._stopping: list[_Pod] = []
        self._submitted: dict[str, int] = {}
        self._first_run: dict[str, int] = {}
        self._cpu: list[float] = []
        self._service: list[float] = []
        self._running: list[int] = []

    def step(self, now: int) -> None:
        """One second."""
        self._stopping = [pod for pod in self._stopping if pod.gone_at > now]
        self._arrive(now)
        if self._case.trainers is None and now % PLAN_INTERVAL == 0:
            self._plan(now)
        self._schedule(now)
        self._measure(now)

    def outcome(self) -> PaddleResult:
        """What was measured so far."""
        end = self._case.seconds
        waits = [self._first_run.get(job, end) - begun for job, begun in self._submitted.items()]
        return PaddleResult(
            pending=fmean(waits),
            cpu=fmean(self._cpu),
            running=len(self._first_run),
            cpu_each=self._cpu,
            service_each=self._service,
            running_each=self._running,
        )

    def _arrive(self, now: int) -> None:
        """A new job each ten seconds, and as many instances of Nginx as it shall have."""
        if now % 10 == 0 and len(self._submitted) < self._case.jobs:
            job = f"job-{len(self._submitted):02}"
            self._submitted[job] = now
            self._others[job] = [_Pod(job, SERVER_CORES, now) for _ in range(SERVERS)]
            self._trainers[job] = []
            self._resize(self._trainers[job], job, TRAINER_CORES, self._case.trainers or MIN_TRAINERS, now)
        wanted = [count for begin, count in self._case.nginx if begin <= now]
        if wanted:
            self._resize(self._others["nginx"], "nginx", NGINX_CORES, wanted[-1], now)

    def _resize(self, pods: list[_Pod], owner: str, cores: float, wanted: int, now: int) -> None:
        """New pods, or the youngest go."""
        pods += [_Pod(owner, cores, now) for _ in range(wanted - len(pods))]
        while len(pods) > wanted:
            self._delete(pods, pods[-1], now)

    def _delete(self, pods: list[_Pod], pod: _Pod, now: int) -> None:
        """A pod without a node is gone at once."""
        pods.remove(pod)
        if pod.node is not None:
            pod.gone_at = now + STOP_SECONDS
            self._stopping.append(pod)

    def _plan(self, now: int) -> None:
        """What the planner changes: the pods that aren't in its places go, and new ones come."""
        jobs = {
            job: fulfilment.FulfilmentJob(
                {"cpu": TRAINER_CORES}, MIN_TRAINERS, MAX_TRAINERS, len(pods), _places(pods)
            )
            for job, pods in self._trainers.items()
        }
        for owner, pods in self._others.items():
            for number, pod in enumerate(pods):
                if pod.node is None:
                    jobs[f"{owner}/{number}"] = fulfilment.FulfilmentJob({"cpu": pod.cores}, 1, 1, 1)
        plan = fulfilment.plan_fulfilment(jobs, self._known_nodes())
        for job, change in plan.changes.items():
            pods = self._trainers[job]
            stay = Counter(plan.places.get(job, _places(pods)))
            for pod in [pod for pod in pods if pod.node is not None]:
                if stay[str(pod.node)]:
                    stay[str(pod.node)] -= 1
                elif len(pods) > change.after:
                    self._delete(pods, pod, now)
            self._resize(pods, job, TRAINER_CORES, change.after, now)

    def _known_nodes(self) -> Mapping[str, FulfilmentNode]:
        """With what is no trainer's. Pods that are going are left out: else the same room would be made again and again."""
        used = dict.fromkeys(self._nodes, 0.0)
        for pods in self._others.values():
            for pod in pods:
                if pod.node is not None:
                    used[pod.node] += pod.cores
        return {node: FulfilmentNode({"cpu": self._cores}, {"cpu": used[node]}) for node in self._nodes}

    def _schedule(self, now: int) -> None:
        """Pods that wait, the oldest first, go to the node with most cores free, as Kubernetes' scheduler prefers."""
        free = dict.fromkeys(self._nodes, self._cores)
        pods = self._pods()
        for pod in (*pods, *self._stopping):
            if pod.node is not None:
                free[pod.node] -= pod.cores
        most = max(free.values())
        for pod in sorted((pod for pod in pods if pod.node is None), key=lambda pod: pod.created):
            if pod.cores <= most:
                pod.node = max(free, key=lambda node: free[node])
                pod.runs_from = now + START_SECONDS
                free[pod.node] -= pod.cores
                most = max(free.values())

    def _pods(self) -> list[_Pod]:
        """All that shall live."""
        pods = list(self._others["nginx"])
        for job in self._submitted:
            pods += [*self._others[job], *self._trainers[job]]
        return pods

    def _measure(self, now: int) -> None:
        # A pod that is going is in phase Running until it is gone, so the report counts it.
        running = [pod for pod in (*self._pods(), *self._stopping) if pod.runs_from <= now]
        self._cpu.append(fsum(pod.cores for pod in running) / CORES)
        self._service.append(fsum(pod.cores for pod in running if pod.owner == "nginx") / CORES)
        for job, pods in self._trainers.items():
            if job not in self._first_run and any(pod.runs_from <= now for pod in pods):
                self._first_run[job] = now
        self._running.append(len(self._first_run))


def _places(pods: Sequence[_Pod]) -> tuple[str, ...]:
    return tuple(pod.node for pod in pods if pod.node is not None)
