"""What is observed of one TrainingJob. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.jobs.replicas.facts import JobFacts, ReplicaState, own_objects, seconds_to_restart
from edl_workflows.core.jobs.training_job import pods
from edl_workflows.core.jobs.training_job.model import (
    Failure,
    TrainingJob,
    TrainingJobPhase,
    TrainingReplicaStatus,
)
from edl_workflows.core.jobs.training_job.types import TrainingRole
from edl_workflows.core.kubernetes import pod_state

STARTING = (None, TrainingJobPhase.CREATING, TrainingJobPhase.SUSPENDED)
"""Phases of a job that does not run yet."""


@dataclass(frozen=True)
class TrainingReplicaState(ReplicaState):
    """One replica of the job. It has completed when its program has exited with 0. A master is never stale,
    since it does not know the other replicas.

    Attributes:
        role: what it does.
        failures: the remembered failures of its pods, oldest first.
    """

    role: TrainingRole
    failures: Sequence[Failure]

    @property
    def active(self) -> bool:
        """Whether its pod runs, is not being deleted, and its program has not ended."""
        return self.runs and not self.end

    @property
    def ready(self) -> bool:
        """Whether its pod is ready, so that other replicas can use it."""
        return self.active and self.pod is not None and pod_state.is_ready(self.pod)

    @property
    def up(self) -> bool:
        """Whether it is in its wanted state: a server is ready, a trainer runs, or it has completed."""
        return self.completed or (self.ready if self.role.serves else self.active)

    @property
    def failed(self) -> bool:
        """Whether its pod has failed. A pod that somebody deletes is replaced in any case."""
        return self.pod is not None and _has_succeeded(self.pod) is False

    @property
    def end(self) -> Mapping[str, Any]:
        """``state.terminated`` of its own container; empty if it did not end, or if its state was lost."""
        return {} if self.pod is None else pod_state.own_end(self.pod)

    @property
    def exit_code(self) -> int | None:
        """Exit code of its container; None if there is none, for example because the pod was lost with its
        node."""
        code = self.end.get("exitCode")
        return code if isinstance(code, int) else None

    @property
    def recorded(self) -> bool:
        """Whether the failure of its present pod is counted."""
        return self.pod is not None and any(failure.uid == self.uid for failure in self.failures)

    def seconds_to_replacement(self, now: datetime) -> float:
        """Seconds until a failed pod is replaced, from the time when its failure was seen."""
        since = self.failures[-1].time if self.failures else None
        return seconds_to_restart(len(self.failures), since, now)


@dataclass(frozen=True)
class TrainingJobFacts(JobFacts[TrainingJob, TrainingReplicaState]):
    """A job and what is observed of it.

    Attributes:
        too_late: the wanted number of trainers, if it was changed too late: the job can only continue with
            the trainers that it has. Otherwise 0.
    """

    too_late: int = 0

    @classmethod
    def of(cls, job: TrainingJob, observed: Observed) -> "TrainingJobFacts":
        """Sort what was observed.

        If trainers know each other, a change of their number makes a new cluster. Once a trainer has
        succeeded, no new cluster is made: that trainer would not take part, and the others would wait for it.
        """
        before, desired = job.status.parallelism, job.spec.trainer.desired
        if not job.spec.fault_tolerant and before not in (0, desired):
            old = cls._of(pods.with_trainers(job, before), observed)
            if any(replica.completed for replica in old.trainers):
                return replace(old, too_late=desired)
        return cls._of(job, observed)

    @classmethod
    def _of(cls, job: TrainingJob, observed: Observed) -> "TrainingJobFacts":
        own = own_objects(job, observed, "Pod")
        cluster = pods.cluster_id(job)
        replicas = [_observe(job, role, index, own, cluster) for role, index in pods.list_replicas(job)]
        return cls(job, observed, replicas)

    @property
    def starting(self) -> bool:
        """Whether the job has yet to run, for the first time or after it was suspended."""
        return self.job.status.phase in STARTING

    @property
    def trainers(self) -> list[TrainingReplicaState]:
        return self.of_role(TrainingRole.TRAINER)

    def of_role(self, role: TrainingRole) -> list[TrainingReplicaState]:
        return [replica for replica in self.replicas if replica.role is role]

    @property
    def failed(self) -> list[TrainingReplicaState]:
        """Replicas whose failure counts.

        Pods of an earlier cluster or of a suspended job are stopped one after another. A pod that crashes
        because it lost its peers before it was stopped itself does not count as failed.
        """
        if self.job.spec.suspend:
            return []
        return [
            replica
            for replica in self.replicas
            if replica.failed and not replica.completed and not replica.stale
        ]

    @property
    def winding_down(self) -> bool:
        """Whether a trainer of a fault-tolerant job has succeeded: no data is left for the others."""
        return self.job.spec.fault_tolerant and any(replica.completed for replica in self.trainers)

    def role_up(self, role: TrainingRole) -> bool:
        """Whether the roles that start after this one may start.

        Parameter servers: all are ready. Trainers: all run, or at least one in a fault-tolerant job.
        """
        replicas_up = [replica.up for replica in self.of_role(role)]
        any_will_do = role is TrainingRole.TRAINER and self.job.spec.fault_tolerant
        return any(replicas_up) if any_will_do else all(replicas_up)

    @property
    def waiting_role(self) -> TrainingRole | None:
        """The first role that is not up yet (`role_up`); None if all are."""
        return next((role for role in self.job.spec.counts if not self.role_up(role)), None)


def _observe(
    job: TrainingJob, role: TrainingRole, index: int, own: Mapping[str, Manifest], cluster: str
) -> TrainingReplicaState:
    name = pods.replica_name(job, role, index)
    pod = own.get(name)
    known_completed = index in job.status.replica_statuses.get(role, TrainingReplicaStatus()).completed
    completed = known_completed or (pod is not None and _has_succeeded(pod) is True)
    pod_cluster = (
        cluster
        if pod is None or role is TrainingRole.MASTER
        else manifests.get_label(pod, pods.CLUSTER_LABEL)
    )
    return TrainingReplicaState(
        index=index,
        name=name,
        pod=pod,
        completed=completed,
        known_completed=known_completed,
        role=role,
        stale=pod_cluster != cluster and not completed,
        failures=[f for f in job.status.failures if (f.role, f.index) == (role, index)],
    )


def _has_succeeded(pod: Manifest) -> bool | None:
    """Whether a pod ended well; None if it has not ended, or is being deleted.

    A program that exits with 0 because its pod is being deleted has not succeeded.
    """
    if manifests.is_terminating(pod) or not pod_state.has_ended(pod):
        return None
    return pod_state.pod_phase(pod) == "Succeeded"
