"""What is observed of one TrainingJob, sorted once: a place for each pod, and what stands beside the places.
Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from edl_workflows.jobs import manifests
from edl_workflows.jobs.actions import Manifest, Observed
from edl_workflows.jobs.training_job import pods
from edl_workflows.jobs.training_job.model import (
    Failure,
    TrainingJob,
    TrainingJobPhase,
    TrainingReplicaStatus,
)
from edl_workflows.jobs.training_job.types import TrainingRole

FIRST_BACKOFF_SECONDS = 10
MAX_BACKOFF = timedelta(seconds=300)
STARTING = (None, TrainingJobPhase.CREATING, TrainingJobPhase.SUSPENDED)
"""Phases of a job that has yet to run."""


@dataclass(frozen=True)
class TrainingReplicaState:
    """One pod that the job is to have.

    Attributes:
        pod: the one that is there, if there is one.
        completed: its program has ended with 0, now or earlier.
        stale: its pod is to do something yet and was told of an earlier cluster. The master needs to know
            none.
        failures: of its pods, those that are remembered, oldest first.
    """

    role: TrainingRole
    index: int
    name: str
    pod: Manifest | None
    completed: bool
    stale: bool
    failures: Sequence[Failure]

    @property
    def active(self) -> bool:
        """Whether it runs and is to go on."""
        pod = self.pod
        running = (
            pod is not None and manifests.pod_phase(pod) == "Running" and not manifests.is_terminating(pod)
        )
        return running and not self.end

    @property
    def ready(self) -> bool:
        """Whether others can rely on it."""
        return self.active and self.pod is not None and manifests.is_ready(self.pod)

    @property
    def up(self) -> bool:
        """Whether it is as it shall be: a server is ready, a trainer runs, or it has done its part."""
        return self.completed or (self.ready if self.role.serves else self.active)

    @property
    def failed(self) -> bool:
        """Whether its pod ended badly. One that somebody is deleting is replaced in any case."""
        return self.pod is not None and _ended(self.pod, self.role) is False

    @property
    def end(self) -> Mapping[str, Any]:
        """``state.terminated`` of its container; empty if it did not end, or was lost without a trace."""
        return {} if self.pod is None else _end(self.pod, self.role)

    @property
    def exit_code(self) -> int | None:
        """Of its container; None if it has none, as of a pod that was lost with its node."""
        code = self.end.get("exitCode")
        return code if isinstance(code, int) else None

    @property
    def uid(self) -> str:
        """Of its present pod."""
        return "" if self.pod is None else str(self.pod["metadata"].get("uid", ""))

    @property
    def recorded(self) -> bool:
        """Whether the failure of its present pod is counted."""
        return self.pod is not None and any(failure.uid == self.uid for failure in self.failures)

    def wait(self, now: datetime) -> float:
        """Seconds until a failed pod is replaced: none after the first failure, then 10, 20, 40 and so on."""
        if len(self.failures) <= 1:
            return 0.0
        doubled = timedelta(seconds=FIRST_BACKOFF_SECONDS * 2 ** min(len(self.failures) - 2, 5))
        return max(0.0, (self.failures[-1].time + min(doubled, MAX_BACKOFF) - now).total_seconds())


@dataclass(frozen=True)
class TrainingJobFacts:
    """A job and its world.

    Attributes:
        places: one for each pod that the job is to have, in the order in which they are started.
        surplus: pods of the job beyond these.
        services: its services, by name.
        too_late: so many trainers are wanted, but the job goes on with those that it has; 0 if that is not
            so.
    """

    job: TrainingJob
    observed: Observed
    places: Sequence[TrainingReplicaState]
    surplus: Sequence[Manifest]
    services: Mapping[str, Manifest]
    too_late: int = 0

    @classmethod
    def of(cls, job: TrainingJob, observed: Observed) -> "TrainingJobFacts":
        """Sort what was observed.

        Trainers that know each other are a new cluster when their number changes. Once one has succeeded
        there is none: it would not take part, and the others would wait for it.
        """
        before, wanted = job.status.parallelism, job.spec.trainer.wanted
        if not job.spec.fault_tolerant and before not in (0, wanted):
            old = cls._of(pods.with_trainers(job, before), observed)
            if any(place.completed for place in old.trainers):
                return replace(old, too_late=wanted)
        return cls._of(job, observed)

    @classmethod
    def _of(cls, job: TrainingJob, observed: Observed) -> "TrainingJobFacts":
        own = {manifests.name_of(p): p for p in observed.of("Pod") if manifests.owned_by(p, job)}
        cluster = pods.cluster_id(job)
        places = [_place(job, role, index, own, cluster) for role, index in pods.list_replicas(job)]
        wanted = {place.name for place in places}
        surplus = [pod for name, pod in own.items() if name not in wanted]
        services = {manifests.name_of(s): s for s in observed.of("Service") if manifests.owned_by(s, job)}
        return cls(job, observed, places, surplus, services)

    @property
    def now(self) -> datetime:
        """The time of the decision."""
        return self.observed.now

    @property
    def pods(self) -> list[Manifest]:
        """All pods of the job."""
        return [*(place.pod for place in self.places if place.pod is not None), *self.surplus]

    @property
    def live(self) -> list[Manifest]:
        """Pods whose containers have not ended, those being deleted included."""
        return [pod for pod in self.pods if not manifests.has_ended(pod)]

    @property
    def starting(self) -> bool:
        """Whether the job has yet to run, for the first time or after it was suspended."""
        return self.job.status.phase in STARTING

    @property
    def trainers(self) -> list[TrainingReplicaState]:
        """The trainers' places."""
        return self.of_role(TrainingRole.TRAINER)

    def of_role(self, role: TrainingRole) -> list[TrainingReplicaState]:
        """The places of a role."""
        return [place for place in self.places if place.role is role]

    @property
    def stale(self) -> list[Manifest]:
        """Pods of unfinished pservers and trainers that were told of an earlier cluster."""
        return [place.pod for place in self.places if place.stale and place.pod is not None]

    @property
    def failed(self) -> list[TrainingReplicaState]:
        """Places whose pods ended badly and were to run on.

        Pods of an earlier cluster, and of a job that is suspended, go one after another: one that loses the
        others before it is told to end has not failed.
        """
        if self.job.spec.suspend:
            return []
        return [place for place in self.places if place.failed and not place.completed and not place.stale]

    @property
    def winding_down(self) -> bool:
        """Whether a trainer of a fault-tolerant job has succeeded: all data is trained, the others only end."""
        return self.job.spec.fault_tolerant and any(place.completed for place in self.trainers)

    def role_up(self, role: TrainingRole) -> bool:
        """Whether a role is far enough for those behind it.

        Servers: all are ready. Trainers: all run, or of a fault-tolerant job the first.
        """
        found = [place.up for place in self.of_role(role)]
        any_will_do = role is TrainingRole.TRAINER and self.job.spec.fault_tolerant
        return any(found) if any_will_do else all(found)

    @property
    def waiting_role(self) -> TrainingRole | None:
        """The first role that is not far enough; None if all are."""
        return next((role for role in self.job.spec.counts if not self.role_up(role)), None)

    def known_complete(self, place: TrainingReplicaState) -> bool:
        """Whether the status says already that a pod has succeeded."""
        return (
            place.index in self.job.status.replica_statuses.get(place.role, TrainingReplicaStatus()).completed
        )


def _place(
    job: TrainingJob, role: TrainingRole, index: int, own: Mapping[str, Manifest], cluster: str
) -> TrainingReplicaState:
    name = pods.replica_name(job, role, index)
    pod = own.get(name)
    before = job.status.replica_statuses.get(role, TrainingReplicaStatus()).completed
    completed = index in before or (pod is not None and _ended(pod, role) is True)
    told = (
        cluster
        if pod is None or role is TrainingRole.MASTER
        else manifests.get_label(pod, pods.CLUSTER_LABEL)
    )
    return TrainingReplicaState(
        role=role,
        index=index,
        name=name,
        pod=pod,
        completed=completed,
        stale=told != cluster and not completed,
        failures=[f for f in job.status.failures if (f.role, f.index) == (role, index)],
    )


def _end(pod: Manifest, role: TrainingRole) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or ()
    own: Mapping[str, Any] = next((s for s in statuses if s.get("name") == str(role)), {})
    found: Mapping[str, Any] = (own.get("state") or {}).get("terminated") or {}
    return found


def _killed(pod: Manifest) -> bool:
    """Whether a pod did not end by itself: evicted, past its deadline, its machine shut down. Only then it
    has a reason.
    """
    reason = (pod.get("status") or {}).get("reason")
    return manifests.pod_phase(pod) == "Failed" and bool(reason or manifests.marked_disrupted(pod))


def _ended(pod: Manifest, role: TrainingRole) -> bool | None:
    """Whether a pod ended well; None if it has not ended, or is being deleted.

    The role's container decides: what runs beside it, as etcd, may run on. A program that ends with 0 because
    it was told to, with its pod, has not done its part.
    """
    if manifests.is_terminating(pod):
        return None
    if _killed(pod):
        return False
    code = _end(pod, role).get("exitCode")
    if code is not None:
        return bool(code == 0)
    return manifests.pod_phase(pod) == "Succeeded" if manifests.has_ended(pod) else None
