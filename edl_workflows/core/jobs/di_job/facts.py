"""What is observed of one DIJob. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.model import DIJob, DIJobPhase, TaskCounts
from edl_workflows.core.jobs.di_job.pods import DIReplica
from edl_workflows.core.jobs.replicas.facts import (
    JobFacts,
    ReplicaState,
    has_succeeded,
    own_objects,
    seconds_to_restart,
)
from edl_workflows.core.kubernetes import pod_state

PAUSE = timedelta(seconds=10)
"""A lost pod is replaced no sooner than this after its creation."""
STEADY = timedelta(minutes=10)
"""A pod that ran for at least this long is replaced at once, however many restarts there were (kubelet's
rule)."""


@dataclass(frozen=True)
class DIReplicaState(ReplicaState):
    """One replica and its pod.

    Attributes:
        desired: the replica as the job wants it.
    """

    desired: DIReplica

    @property
    def live(self) -> bool:
        """Whether its pod has not ended, is not being deleted and is not lost."""
        pod = self.pod
        return (
            pod is not None
            and pod_state.pod_phase(pod) in ("Pending", "Running")
            and not manifests.is_terminating(pod)
        )

    @property
    def over(self) -> bool:
        """Whether its pod ended, or was lost, before the replica succeeded. False while the pod is being
        deleted.
        """
        pod = self.pod
        return pod is not None and not self.completed and not self.live and not manifests.is_terminating(pod)

    @property
    def failed(self) -> bool:
        """Whether its pod failed by its own fault."""
        return self.pod is not None and self.over and not _lost(self.pod)

    @property
    def lost(self) -> bool:
        """Whether its pod ended for another cause: stopped, evicted, never admitted, its node lost."""
        return self.over and not self.failed

    @property
    def ready(self) -> bool:
        """Whether its pod is ready."""
        return self.live and self.pod is not None and pod_state.is_ready(self.pod)

    @property
    def moved(self) -> bool:
        """Whether its pod was made for another rank, node or template."""
        return (
            self.pod is not None
            and not self.completed
            and not manifests.is_terminating(self.pod)
            and manifests.get_label(self.pod, pods.PLACE_LABEL) != self.desired.place
        )

    def how(self) -> str:
        """How its pod ended."""
        codes = bad_exits(self.pod) if self.pod is not None else []
        last_words = manifests.last_words(self.pod or {"spec": {}})
        if codes:
            return f"exit code {codes[-1]}{last_words}"
        reason = ((self.pod or {}).get("status") or {}).get("reason") or "lost"
        return f"{reason}, without an exit code{last_words}"


@dataclass(frozen=True)
class DIJobFacts(JobFacts[DIJob, DIReplicaState]):
    """A job and what is observed of it.

    Attributes:
        secret: the job's token.
    """

    secret: Manifest | None

    @classmethod
    def of(cls, job: DIJob, observed: Observed) -> "DIJobFacts":
        """Sort what is observed."""
        own = own_objects(job, observed, "Pod")
        replicas = [_observe(job, replica, own) for replica in pods.list_replicas(job)]
        secret = own_objects(job, observed, "Secret").get(pods.token_secret_name(job))
        return cls(job, observed, replicas, secret)

    @property
    def phase(self) -> DIJobPhase | None:
        """As the status has it."""
        return self.job.status.phase

    @property
    def stale(self) -> list[Manifest]:
        """Pods of an earlier generation: those of unfinished replicas, and surplus ones."""
        return [*super().stale, *(pod for pod in self.surplus if not _is_of_now(self.job, pod))]

    @property
    def completed(self) -> bool:
        """Whether all replicas that the job wants now have succeeded."""
        return bool(self.replicas) and all(replica.completed for replica in self.replicas)

    @property
    def cut_short(self) -> bool:
        """Whether a new allocation has left a preemptible job only replicas that had already succeeded, and
        took away those still at work.

        Otherwise the job ended by itself: then a pod has just succeeded, and no replica was taken away.
        """
        fresh = any(replica.completed and not replica.known_completed for replica in self.replicas)
        ended = fresh and len(self.replicas) >= self.job.status.replicas
        return self.job.spec.preemptible and self.completed and not ended

    @property
    def new_failures(self) -> list[DIReplicaState]:
        """Failed pods that no restart was counted for.

        One restart covers all pods that fail until every replica has a pod again, because a learner and its
        collectors often fail together. It does not cover pods that were made for this restart. A failure does
        not count if the job is suspended, or if the pod was made for another rank, template or generation:
        such a pod is about to be deleted, and may fail because its peers are already gone.
        """
        if self.job.spec.suspend:
            return []
        failed = [p for p in self.replicas if p.failed and not p.moved and not p.stale]
        if self.phase is not DIJobPhase.RESTARTING:
            return failed
        count = str(self.job.status.restarts)
        return [p for p in failed if p.pod and manifests.get_label(p.pod, pods.RESTARTS_LABEL) == count]

    @property
    def reallocated(self) -> bool:
        """Whether a preemptible job has pods of its present generation that do not fit its allocation."""
        if not self.job.spec.preemptible:
            return False
        stale = self.stale
        moved = [replica.pod for replica in self.replicas if replica.moved]
        surplus = [
            pod for pod in self.surplus if not pod_state.has_ended(pod) and not manifests.is_terminating(pod)
        ]
        return any(pod not in stale for pod in (*moved, *surplus))

    @property
    def deviates(self) -> bool:
        """Whether a pod must be made or deleted, for whatever reason."""
        return bool(self.surplus or self.stale) or any(
            not replica.completed and (not replica.live or replica.moved) for replica in self.replicas
        )

    def pause(self, replica: DIReplicaState) -> float:
        """Seconds until a pod that has ended is replaced.

        After the first failure there is no pause; after later ones it is 10, 20, 40 … 300 s from the pod's
        end. A lost pod is replaced 10 s after its creation at the earliest.
        """
        pod = replica.pod
        if pod is None:
            return 0.0
        created = manifests.parse_time(pod["metadata"].get("creationTimestamp")) or self.now
        end = _finished_at(pod) or created
        restarts = self.job.status.restarts
        if replica.lost:
            return max(0.0, (created + PAUSE - self.now).total_seconds())
        return 0.0 if end - created >= STEADY else seconds_to_restart(restarts, end, self.now)


def _is_of_now(job: DIJob, pod: Manifest) -> bool:
    """Whether a pod is of the job's present generation."""
    return manifests.get_label(pod, pods.GENERATION_LABEL) == str(job.status.generation)


def _lost(pod: Manifest) -> bool:
    """Whether a pod ended through no fault of its own. Whoever tells it to end deletes it or marks it as
    disrupted, so exit code 143 without that is the program's own."""
    reason = str((pod.get("status") or {}).get("reason") or "")
    if reason == "DeadlineExceeded":  # of the pod's own activeDeadlineSeconds
        return False
    if manifests.refused_by_node(pod):
        return False
    # Kubelet spells it OutOfcpu; upstream looks for Outof, and so never finds it.
    if reason.lower().startswith("outof") or pod_state.marked_disrupted(pod):
        return True
    return pod_state.pod_phase(pod) == "Unknown" or not bad_exits(pod)


def bad_exits(pod: Manifest) -> list[int]:
    """Nonzero exit codes of its own container and of its init containers."""
    codes = [ended.get("exitCode") for ended in _ends(pod)]
    return [int(code) for code in codes if code]


def _ends(pod: Manifest) -> list[Mapping[str, Any]]:
    inits = map(pod_state.terminated_state, pod_state.init_statuses(pod))
    return [*inits, pod_state.own_end(pod)]


def _finished_at(pod: Manifest) -> datetime | None:
    times = [manifests.parse_time(ended.get("finishedAt")) for ended in _ends(pod)]
    return max((time for time in times if time is not None), default=None)


def _observe(job: DIJob, desired: DIReplica, own: Mapping[str, Manifest]) -> DIReplicaState:
    pod = own.get(desired.name)
    before = job.status.replica_statuses.get(desired.task.title, TaskCounts()).completed
    known_completed = desired.index in before
    of_now = pod is None or _is_of_now(job, pod)
    completed = known_completed or (has_succeeded(pod) and of_now)
    return DIReplicaState(
        index=desired.index,
        name=desired.name,
        pod=pod,
        completed=completed,
        known_completed=known_completed,
        stale=not of_now and not completed,
        desired=desired,
    )
