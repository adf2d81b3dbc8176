"""The scenario of PaddlePaddle EDL's experiment: training jobs and a web service on a CPU cluster.

In the report (``doc/edl/experiment`` in PaddlePaddle/cloud), a cluster of 133 nodes with 2348 cores runs jobs
with 10 parameter servers of 4 cores and 2 to 60 trainers of 5 cores. In case 1, twenty jobs are submitted ten
seconds apart. In case 2, six jobs share the cluster with Nginx, whose 400 instances of 3 cores shrink to 100
and grow again, with a step every 90 s. Without autoscaling, a job has a fixed number of trainers.

Where the report gives no details, the simulation assumes equal nodes, 1.5 s from scheduling a pod to running
it, and 30 s to delete a pod (the default of Kubernetes). No job ends within the measured time.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from statistics import fmean

from edl_workflows.core.scaling.paddle import fulfilment
from edl_workflows.core.scaling.paddle.nodes import FulfilmentNode

NODES = 133
CORES = 2348
SERVERS, SERVER_CORES = 10, 4.0
TRAINER_CORES = 5.0
MIN_TRAINERS, MAX_TRAINERS = 2, 60
NGINX_CORES = 3.0
DECISION_INTERVAL = 5
"""Seconds between two decisions, as in PaddlePaddle EDL."""
START_SECONDS = 1.5
STOP_SECONDS = 30.0


@dataclass(frozen=True)
class PaddleCase:
    """One of the report's cases.

    Attributes:
        jobs: number of jobs, submitted ten seconds apart.
        trainers: fixed number of trainers of each job; None lets the algorithm decide.
        nginx: (seconds, instances from then on), ascending.
        seconds: the measured time.
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
"""Mean seconds from the creation of a job's first trainer pod until it runs, or to the end.

Recomputed from the report's raw logs, since its own averages divide ten values by eleven.
"""
PUBLISHED_CPU = {TRAINING_ONLY: 0.763, TRAINING_ONLY_FIXED: 0.762, MIXED: 0.834, MIXED_FIXED: 0.619}
"""Requests of running pods relative to the nodes' cores, averaged over the measured time."""


@dataclass(frozen=True)
class PaddleResult:
    """The measurements of one case.

    Attributes:
        pending: mean seconds from a job's submission to its first running trainer, or to the end.
        cpu: requests of pods in phase Running relative to the cluster's cores, averaged over time.
        running: number of jobs with at least one trainer that has run so far.
        cpu_each, service_each: `cpu` of all pods and of Nginx's pods, by second.
        running_each: `running` by second.
    """

    pending: float
    cpu: float
    running: int
    cpu_each: Sequence[float]
    service_each: Sequence[float]
    running_each: Sequence[int]


@dataclass(eq=False)
class _Pod:
    owner: str
    cores: float
    created: int
    node: str | None = None
    runs_from: float = float("inf")
    gone_at: float = float("inf")


def run_case(case: PaddleCase) -> PaddleResult:
    """Simulate one case second by second."""
    experiment = _Experiment(case)
    for now in range(case.seconds):
        experiment.step(now)
    return experiment.outcome()


class _Experiment:
    def __init__(self, case: PaddleCase) -> None:
        self._case = case
        self._nodes = [f"node-{number:03}" for number in range(NODES)]
        self._cores = CORES / NODES
        self._trainers: dict[str, list[_Pod]] = {}
        """Job → its trainer pods that are not being deleted, oldest first."""
        self._other_pods: dict[str, list[_Pod]] = {"nginx": []}
        """Parameter servers of each job, and Nginx's pods."""
        self._stopping: list[_Pod] = []
        self._submitted: dict[str, int] = {}
        self._first_run: dict[str, int] = {}
        self._cpu: list[float] = []
        self._service: list[float] = []
        self._running: list[int] = []

    def step(self, now: int) -> None:
        self._stopping = [pod for pod in self._stopping if pod.gone_at > now]
        self._arrive(now)
        if self._case.trainers is None and now % DECISION_INTERVAL == 0:
            self._scale_jobs(now)
        self._schedule(now)
        self._measure(now)

    def outcome(self) -> PaddleResult:
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
        """Submit a job every ten seconds, and scale Nginx."""
        if now % 10 == 0 and len(self._submitted) < self._case.jobs:
            job = f"job-{len(self._submitted):02}"
            self._submitted[job] = now
            self._other_pods[job] = [_Pod(job, SERVER_CORES, now) for _ in range(SERVERS)]
            self._trainers[job] = []
            self._resize(self._trainers[job], job, TRAINER_CORES, self._case.trainers or MIN_TRAINERS, now)
        nginx_counts = [count for begin, count in self._case.nginx if begin <= now]
        if nginx_counts:
            self._resize(self._other_pods["nginx"], "nginx", NGINX_CORES, nginx_counts[-1], now)

    def _resize(self, pods: list[_Pod], owner: str, cores: float, count: int, now: int) -> None:
        """Create pods, or delete the youngest."""
        pods += [_Pod(owner, cores, now) for _ in range(count - len(pods))]
        while len(pods) > count:
            self._delete(pods, pods[-1], now)

    def _delete(self, pods: list[_Pod], pod: _Pod, now: int) -> None:
        """Delete a pod. A pod without a node is removed at once."""
        pods.remove(pod)
        if pod.node is not None:
            pod.gone_at = now + STOP_SECONDS
            self._stopping.append(pod)

    def _scale_jobs(self, now: int) -> None:
        """Carry out a decision: delete pods on other nodes than decided, and create new ones."""
        jobs = {
            job: fulfilment.FulfilmentJob(
                {"cpu": TRAINER_CORES}, MIN_TRAINERS, MAX_TRAINERS, len(pods), _places(pods)
            )
            for job, pods in self._trainers.items()
        }
        for owner, pods in self._other_pods.items():
            for number, pod in enumerate(pods):
                if pod.node is None:
                    jobs[f"{owner}/{number}"] = fulfilment.FulfilmentJob({"cpu": pod.cores}, 1, 1, 1)
        decision = fulfilment.decide_fulfilment(jobs, self._available_nodes())
        for job, change in decision.changes.items():
            pods = self._trainers[job]
            stay = Counter(decision.places.get(job, _places(pods)))
            for pod in [pod for pod in pods if pod.node is not None]:
                if stay[str(pod.node)]:
                    stay[str(pod.node)] -= 1
                elif len(pods) > change.after:
                    self._delete(pods, pod, now)
            self._resize(pods, job, TRAINER_CORES, change.after, now)

    def _available_nodes(self) -> Mapping[str, FulfilmentNode]:
        """The nodes, with the resources that pods other than trainers use.

        Terminating pods are not counted, because their cores would be freed twice.
        """
        used = dict.fromkeys(self._nodes, 0.0)
        for pods in self._other_pods.values():
            for pod in pods:
                if pod.node is not None:
                    used[pod.node] += pod.cores
        return {node: FulfilmentNode({"cpu": self._cores}, {"cpu": used[node]}) for node in self._nodes}

    def _schedule(self, now: int) -> None:
        """Place pending pods, oldest first, on the node with the most free cores, as Kubernetes does."""
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
        """All pods that are not being deleted."""
        pods = list(self._other_pods["nginx"])
        for job in self._submitted:
            pods += [*self._other_pods[job], *self._trainers[job]]
        return pods

    def _measure(self, now: int) -> None:
        # A terminating pod is in phase Running until it is gone, so the report counts it.
        running = [pod for pod in (*self._pods(), *self._stopping) if pod.runs_from <= now]
        self._cpu.append(fsum(pod.cores for pod in running) / CORES)
        self._service.append(fsum(pod.cores for pod in running if pod.owner == "nginx") / CORES)
        for job, pods in self._trainers.items():
            if job not in self._first_run and any(pod.runs_from <= now for pod in pods):
                self._first_run[job] = now
        self._running.append(len(self._first_run))


def _places(pods: Sequence[_Pod]) -> tuple[str, ...]:
    return tuple(pod.node for pod in pods if pod.node is not None)
