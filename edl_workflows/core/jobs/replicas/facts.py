"""Base of what is observed of one job: each replica with its pod, surplus pods, services. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cached_property
from typing import Generic, TypeVar

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.jobs.status import Job
from edl_workflows.core.kubernetes import lost_pods, pod_state

_BACKOFF = Backoff(first=10, most=300)


def seconds_to_restart(failures: int, since: datetime | None, now: datetime) -> float:
    """Seconds until a failed pod is replaced. It stays not at all after the first failure, then 10, 20, 40 …
    300 s.

    Args:
        failures: how often the replica has failed, this failure included.
        since: when the pod failed; None if unknown.
        now: the time of the decision.
    """
    if failures <= 1 or since is None:
        return 0.0
    return max(0.0, (since + timedelta(seconds=_BACKOFF.delay(failures - 1)) - now).total_seconds())


def has_succeeded(pod: Manifest | None) -> bool:
    """Whether a pod ended with success, and not because it is being deleted."""
    return pod is not None and pod_state.pod_phase(pod) == "Succeeded" and not manifests.is_terminating(pod)


@dataclass(frozen=True)
class ReplicaState:
    """One replica that the job wants, and its pod.

    Attributes:
        index: within its role.
        name: of its pod.
        pod: None if there is none.
        completed: whether it has succeeded, now or earlier.
        known_completed: whether the status already says so.
        stale: it has not completed, and its pod was made for an earlier cluster or generation of the job.
    """

    index: int
    name: str
    pod: Manifest | None
    completed: bool
    known_completed: bool
    stale: bool

    @property
    def uid(self) -> str:
        """Uid of its current pod; "" if there is none."""
        return "" if self.pod is None else str(self.pod["metadata"].get("uid", ""))

    @property
    def runs(self) -> bool:
        """Whether its pod is Running and not being deleted."""
        pod = self.pod
        return pod is not None and pod_state.pod_phase(pod) == "Running" and not manifests.is_terminating(pod)


JobT = TypeVar("JobT", bound=Job)
ReplicaT = TypeVar("ReplicaT", bound=ReplicaState)


@dataclass(frozen=True)
class JobFacts(Generic[JobT, ReplicaT]):
    """A job and what is observed of it.

    Attributes:
        replicas: one for each replica that the job wants, in the order in which they start.
    """

    job: JobT
    observed: Observed
    replicas: Sequence[ReplicaT]

    @cached_property
    def surplus(self) -> list[Manifest]:
        """Pods of the job beyond those of its replicas."""
        replica_names = {replica.name for replica in self.replicas}
        own = own_objects(self.job, self.observed, "Pod")
        return [pod for name, pod in own.items() if name not in replica_names]

    @cached_property
    def services(self) -> list[Manifest]:
        """The job's services."""
        return list(own_objects(self.job, self.observed, "Service").values())

    @property
    def stale(self) -> list[Manifest]:
        """Pods of replicas that are `ReplicaState.stale`."""
        return [replica.pod for replica in self.replicas if replica.stale and replica.pod is not None]

    @property
    def now(self) -> datetime:
        """The time of the decision."""
        return self.observed.now

    @property
    def pods(self) -> list[Manifest]:
        """All pods of the job."""
        return [*(replica.pod for replica in self.replicas if replica.pod is not None), *self.surplus]

    @property
    def live(self) -> list[Manifest]:
        """Pods that must be deleted to end, including those being deleted."""
        return [pod for pod in self.pods if pod_state.must_be_stopped(pod)]

    @property
    def outlived(self) -> list[Manifest]:
        """Pods of replicas whose success the status has recorded, in which another container still runs."""
        recorded = [r.pod for r in self.replicas if r.known_completed and r.pod is not None]
        return [pod for pod in recorded if pod_state.outliving_containers(pod)]

    @cached_property
    def lost(self) -> list[Manifest]:
        """Pods that count as gone although they still have their names, see `lost_pods`."""
        return [pod for pod in self.pods if lost_pods.is_gone(pod, self.now)]

    def holds_up(self, pod: Manifest) -> bool:
        """Whether others must wait for the end of a pod that is or will be deleted."""
        return pod_state.must_be_stopped(pod) and pod not in self.lost

    @property
    def recorded_pods(self) -> list[Manifest]:
        """All pods except those whose success is not in the status yet: so far only the pod itself shows
        it.
        """
        fresh = [r.pod for r in self.replicas if r.completed and not r.known_completed]
        return [pod for pod in self.pods if pod not in fresh]


def own_objects(job: Job, observed: Observed, kind: str) -> dict[str, Manifest]:
    """The observed objects of a kind that the job owns, by name."""
    return {manifests.name_of(o): o for o in observed.of(kind) if manifests.owned_by(o, job)}
