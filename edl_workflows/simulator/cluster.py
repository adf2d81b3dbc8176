"""Simulates a run interval by interval.

As in the simulator of the Pollux artifact, jobs train for an interval with the GPUs that they hold. Then the
scheduler decides once, and each job whose nodes change restarts. Submissions, failures and services take
effect at the end of an interval: a job that completes in the interval in which its node fails is not
affected.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, isfinite

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.application import Application
from edl_workflows.simulator.capacity import FAILURE, CapacityChange
from edl_workflows.simulator.job import SimulatedJob
from edl_workflows.simulator.schedulers.scheduler import ActiveJob, JobScheduler
from edl_workflows.simulator.throughput import Placement
from edl_workflows.simulator.workload import WorkloadJob


@dataclass(frozen=True)
class SimulationSettings:
    """The cluster and its rules; the defaults are those of the Pollux paper's evaluation.

    Attributes:
        nodes: number of nodes.
        node_gpus: GPUs of each node.
        interval: seconds between two decisions.
        restart_penalty: seconds that a job does not train after its nodes changed.
        interference: fraction of its speed that a job on several nodes loses while it shares a node with
            another such job.
        checkpoint_interval: seconds of training between two checkpoints. They are saved at the start of an
            interval, so a failure can undo up to an interval more.
        changes: node failures and services; see `capacity`.
        horizon: seconds after the last submission at which the run ends, complete or not.

    Raises:
        InvalidError: a number is out of its range, or a change names an unknown node.
    """

    nodes: int = 16
    node_gpus: int = 4
    interval: float = 60.0
    restart_penalty: float = 30.0
    interference: float = 0.0
    checkpoint_interval: float = 600.0
    changes: Sequence[CapacityChange] = ()
    horizon: float = 30 * 24 * 3600.0

    def __post_init__(self) -> None:
        for name in ("nodes", "node_gpus", "interval", "checkpoint_interval", "horizon"):
            if not 0 < getattr(self, name) < inf:
                raise InvalidError(f"{name}: {getattr(self, name)} is not a number above 0")
        if not 0 <= self.restart_penalty < inf:
            raise InvalidError(f"restart_penalty: {self.restart_penalty} is not a number of at least 0")
        if not 0 <= self.interference <= 1:
            raise InvalidError(f"interference: {self.interference} is not between 0 and 1")
        nodes = self.capacity()
        for change in self.changes:
            if change.node not in nodes or not isfinite(change.time) or change.taken < 0:
                raise InvalidError(f"{change}: give a node of {self.nodes}, a time, and 0 or more GPUs")

    def capacity(self) -> dict[str, int]:
        """Node → GPUs, without changes."""
        return {f"node-{number:03}": self.node_gpus for number in range(self.nodes)}


@dataclass(frozen=True)
class JobResult:
    """The result of a job. Times are in seconds after the start of the run.

    Attributes:
        name: of the job.
        submitted: when it was submitted.
        started: when it first held a GPU; None if it never did.
        finished: when it was complete; None if it was not at the end of the run.
        pending: seconds without a GPU.
        attained_service: GPU seconds.
        restarts: number of restarts, not counting the first start.
    """

    name: str
    submitted: float
    started: float | None
    finished: float | None
    pending: float
    attained_service: float
    restarts: int


@dataclass(frozen=True)
class ClusterSample:
    """The cluster after one decision.

    Attributes:
        time: in seconds.
        gpus: GPUs available to jobs.
        used: GPUs that jobs hold.
        running: number of jobs with GPUs.
        waiting: number of jobs without.
    """

    time: float
    gpus: int
    used: int
    running: int
    waiting: int


@dataclass(frozen=True)
class HoldingPeriod:
    """A period in which a job held a number of GPUs.

    Attributes:
        job: its name.
        start, end: in seconds.
        gpus: number of GPUs.
    """

    job: str
    start: float
    end: float
    gpus: int


@dataclass(frozen=True)
class SimulationRun:
    """The result of a run.

    Attributes:
        jobs: in the order of submission.
        samples: one for each interval in which there were jobs.
        holdings: in the order of their ends; a new one starts whenever a job's nodes change.
    """

    jobs: Sequence[JobResult]
    samples: Sequence[ClusterSample]
    holdings: Sequence[HoldingPeriod] = ()


def simulate(
    workload: Sequence[WorkloadJob],
    applications: Mapping[str, Application],
    scheduler: JobScheduler,
    settings: SimulationSettings | None = None,
) -> SimulationRun:
    """Run a workload.

    Args:
        workload: in any order; jobs submitted at the same time are ordered by name.
        applications: all applications of the workload, by name.
        scheduler: a new scheduler.
        settings: the cluster.

    Raises:
        InvalidError: an application is missing, two jobs have the same name, or the scheduler allocates GPUs
            that don't exist.
    """
    run = _Simulation(workload, applications, scheduler, settings or SimulationSettings())
    while not run.over():
        run.step()
    return run.result()


class _Simulation:
    """The state of a run."""

    def __init__(
        self,
        workload: Sequence[WorkloadJob],
        applications: Mapping[str, Application],
        scheduler: JobScheduler,
        settings: SimulationSettings,
    ) -> None:
        _check(workload, applications)
        self._settings = settings
        self._scheduler = scheduler
        self._jobs = {
            spec.name: SimulatedJob(
                spec,
                applications[spec.application],
                scheduler.agent(spec, applications[spec.application]),
                settings.checkpoint_interval,
            )
            for spec in sorted(workload, key=lambda spec: (spec.submitted, spec.name))
        }
        self._to_come = list(self._jobs.values())[::-1]
        """The jobs not yet submitted, the next one last."""
        self._end = max((spec.submitted for spec in workload), default=0.0) + settings.horizon
        self._active: dict[str, SimulatedJob] = {}
        self._held: dict[str, Sequence[str]] = {}
        self._total = settings.capacity()
        self._taken: Counter[tuple[str, str]] = Counter()
        """(Node, failure or service) → GPUs that it takes."""
        self._nodes = dict(self._total)
        """Node → GPUs available to jobs."""
        self._changes = sorted(settings.changes, key=lambda change: change.time)[::-1]
        self._now = 0.0
        self._samples: list[ClusterSample] = []
        self._open: dict[str, tuple[float, int]] = {}
        """Job → (start, GPUs) of its current holding period."""
        self._holdings: list[HoldingPeriod] = []

    def over(self) -> bool:
        """Whether all jobs are complete or the end of the run is reached."""
        return not (self._active or self._to_come) or self._now >= self._end

    def step(self) -> None:
        """Simulate one interval and one decision."""
        if self._active:
            self._train()
        self._now += self._settings.interval
        self._admit()
        self._change_capacity()
        if self._active:
            self._decide()

    def result(self) -> SimulationRun:
        for name in list(self._open):
            self._book(name, 0, self._now)
        return SimulationRun(
            [
                JobResult(
                    name=job.spec.name,
                    submitted=job.spec.submitted,
                    started=job.started,
                    finished=job.finished,
                    pending=job.pending,
                    attained_service=job.attained_service,
                    restarts=job.restarts,
                )
                for job in self._jobs.values()
            ],
            self._samples,
            self._holdings,
        )

    def _book(self, name: str, gpus: int, now: float) -> None:
        """End the job's holding period and start one with this number of GPUs."""
        since, before = self._open.pop(name, (now, 0))
        if before:
            self._holdings.append(HoldingPeriod(name, since, now, before))
        if gpus:
            self._open[name] = now, gpus

    def _train(self) -> None:
        disturbed = self._disturbed() if self._settings.interference else set[str]()
        for name, job in list(self._active.items()):
            job.advance(
                self._now, self._settings.interval, self._settings.interference if name in disturbed else 0.0
            )
            if job.finished is not None:
                del self._active[name]
                self._held.pop(name, None)
                self._book(name, 0, job.finished)

    def _disturbed(self) -> set[str]:
        """Jobs on several nodes that share a node with another such job."""
        spread = {name: set(places) for name, places in self._held.items() if len(set(places)) > 1}
        shared = Counter(node for nodes in spread.values() for node in nodes)
        return {name for name, nodes in spread.items() if any(shared[node] > 1 for node in nodes)}

    def _admit(self) -> None:
        """Admit the jobs submitted in this interval."""
        while self._to_come and self._to_come[-1].spec.submitted <= self._now:
            job = self._to_come.pop()
            job.pending += self._now - job.spec.submitted
            self._active[job.spec.name] = job

    def _change_capacity(self) -> None:
        """Apply capacity changes; on overloaded nodes, jobs lose all their GPUs, the youngest first."""
        while self._changes and self._changes[-1].time <= self._now:
            change = self._changes.pop()
            self._taken[change.node, change.by] = change.taken
            taken = sum(count for (node, _), count in self._taken.items() if node == change.node)
            self._nodes[change.node] = max(0, self._total[change.node] - taken)
            self._evict(change.node, crash=change.by == FAILURE)

    def _evict(self, node: str, *, crash: bool) -> None:
        affected_jobs = [name for name in self._active if node in self._held.get(name, ())]
        while sum(self._held[name].count(node) for name in affected_jobs) > self._nodes[node]:
            name = affected_jobs.pop()
            del self._held[name]
            self._book(name, 0, self._now)
            if crash:
                self._active[name].crash()
            else:
                self._active[name].place((), self._now, 0.0)

    def _decide(self) -> None:
        """Call the scheduler, and give each job its new allocation."""
        nodes = {node: gpus for node, gpus in self._nodes.items() if gpus > 0}
        allocations = self._scheduler.schedule([self._seen(job) for job in self._active.values()], nodes)
        _check_promise(allocations, nodes)
        for name, job in self._active.items():
            places = list(allocations.get(name, ()))
            if places != self._held.get(name, []):
                job.place(_placement(places), self._now, self._settings.restart_penalty)
                self._held[name] = places
                self._book(name, len(places), self._now)
        used = sum(len(self._held.get(name, ())) for name in self._active)
        running = sum(bool(job.placement) for job in self._active.values())
        waiting = len(self._active) - running
        self._samples.append(ClusterSample(self._now, sum(nodes.values()), used, running, waiting))

    def _seen(self, job: SimulatedJob) -> ActiveJob:
        return ActiveJob(
            spec=job.spec,
            application=job.application,
            epoch=job.epoch,
            age=self._now - job.spec.submitted,
            attained_service=job.attained_service,
            restarts=job.restarts,
            held=self._held.get(job.spec.name, []),
        )


def _placement(places: Sequence[str]) -> Placement:
    """Replicas on each node, in the order of their first ranks."""
    return tuple(Counter(places).values())


def _check(workload: Sequence[WorkloadJob], applications: Mapping[str, Application]) -> None:
    """Check the input of `simulate`."""
    names = Counter(job.name for job in workload)
    if twice := sorted(name for name, count in names.items() if count > 1):
        raise InvalidError(f"workload: {', '.join(twice)}: more than one job of this name; make names unique")
    if missing := sorted({job.application for job in workload} - set(applications)):
        raise InvalidError(f"workload: no traces of the applications {', '.join(missing)}; read them first")


def _check_promise(allocations: Mapping[str, Sequence[str]], nodes: Mapping[str, int]) -> None:
    used = Counter(node for places in allocations.values() for node in places)
    for node, count in used.items():
        if count > nodes.get(node, 0):
            raise InvalidError(
                f"scheduler: {count} replicas on {node}, which has {nodes.get(node, 0)} GPUs; "
                "correct the scheduler"
            )
