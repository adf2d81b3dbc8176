"""What is observed of one Kubeflow job. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.jobs.kubeflow import pods
from edl_workflows.core.jobs.kubeflow.model import (
    KubeflowJob,
    KubeflowReplicaStatus,
    ReplicaRestarts,
    ReplicaType,
    RestartPolicy,
    list_replicas,
    replica_name,
)
from edl_workflows.core.jobs.kubeflow.pods import KubeflowFramework
from edl_workflows.core.jobs.replicas.facts import (
    JobFacts,
    ReplicaState,
    has_succeeded,
    own_objects,
    seconds_to_restart,
)
from edl_workflows.core.kubernetes import pod_state

RETRYABLE_2021 = frozenset({130, 137, 138, 143})
FIRST_RETRYABLE = 128
"""Exit codes from here on can mean a transient failure: a signal ended the process, or the user's program
chose such a code (design document).
"""


@dataclass(frozen=True)
class KubeflowReplicaState(ReplicaState):
    """One replica. A program that exits with 0 because its pod is being deleted has not completed.

    Attributes:
        policy: its restart policy.
        restart: its restarts so far.
    """

    kind: ReplicaType
    policy: RestartPolicy
    restart: ReplicaRestarts
    exit_codes_2021: bool

    @property
    def failed(self) -> bool:
        """Whether its pod has failed. A pod that somebody deletes is replaced in any case."""
        pod = self.pod
        return pod is not None and pod_state.pod_phase(pod) == "Failed" and not manifests.is_terminating(pod)

    @property
    def exit_code(self) -> int | None:
        """Exit code of its own container, or of the init container that failed before it; None if there is
        none, for example because the pod was lost with its node."""
        if self.pod is None:
            return None
        ended = manifests.failed_init_container(self.pod) or pod_state.own_end(self.pod)
        code = ended.get("exitCode")
        return None if code is None else int(code)

    @property
    def disrupted(self) -> bool:
        """Whether its pod was ended from outside, for example by an eviction."""
        return self.pod is not None and pod_state.marked_disrupted(self.pod)

    @property
    def retryable(self) -> bool:
        """Whether a failed pod is to be replaced."""
        if self.policy is RestartPolicy.NEVER or (self.pod and manifests.refused_by_node(self.pod)):
            return False
        if self.policy is not RestartPolicy.EXIT_CODE:
            return True  # the kubelet restarts its containers, so the pod fails only if it is lost
        code = self.exit_code
        if code is None or self.disrupted:
            return True  # whatever its exit code, even 0: it was stopped
        if code < FIRST_RETRYABLE:
            return False
        return code in RETRYABLE_2021 if self.exit_codes_2021 else True

    @property
    def recorded(self) -> bool:
        """Whether the status already counts the replacement of its current pod."""
        return self.pod is not None and self.restart.uid == self.pod["metadata"].get("uid")

    def seconds_to_replacement(self, now: datetime) -> float:
        """Seconds until a failed pod is replaced, from its end; from its creation if it never ran."""
        if self.pod is None:
            return 0.0
        since = [pod_state.own_end(self.pod).get("finishedAt"), self.pod["metadata"].get("creationTimestamp")]
        times = [time for time in map(manifests.parse_time, since) if time is not None]
        return seconds_to_restart(self.restart.count, next(iter(times), None), now)


@dataclass(frozen=True)
class KubeflowFacts(JobFacts[KubeflowJob, KubeflowReplicaState]):
    """A job and what is observed of it."""

    framework: KubeflowFramework

    @property
    def failed(self) -> list[KubeflowReplicaState]:
        """Replicas whose failure counts.

        Pods of an earlier cluster or of a suspended job are stopped one after the other. One of them may
        crash because a peer is gone; this does not count as a failure.
        """
        if self.job.spec.run_policy.suspend:
            return []
        return [replica for replica in self.replicas if replica.failed and not replica.stale]

    @property
    def deciding(self) -> Sequence[KubeflowReplicaState]:
        """The replicas that decide how the job ends: those of a type that decides, else the workers, else
        all."""
        chiefs = [replica for replica in self.replicas if replica.kind.decides]
        workers = [replica for replica in self.replicas if replica.kind.is_worker]
        return chiefs or workers or self.replicas

    @property
    def restarts(self) -> int:
        """Restarts so far: replaced pods, and own containers that the kubelet restarted. Stale pods and pods
        of a suspended job do not count, as in `failed`.
        """
        suspend = self.job.spec.run_policy.suspend
        stay = [] if suspend else [r.pod for r in self.replicas if r.pod is not None and not r.stale]
        by_node = (int(pod_state.own_status(pod).get("restartCount") or 0) for pod in stay)
        return sum(restart.count for restart in self.job.status.restarts.values()) + sum(by_node)


def sort_facts(framework: KubeflowFramework, job: KubeflowJob, observed: Observed) -> KubeflowFacts:
    """Sort what is observed of a job."""
    own = own_objects(job, observed, "Pod")
    cluster = framework.cluster_id(job)
    replicas = [_replica(job, own, cluster, kind, index) for kind, index in list_replicas(job)]
    return KubeflowFacts(job, observed, replicas, framework)


def _replica(
    job: KubeflowJob,
    own: Mapping[str, Manifest],
    cluster: str,
    kind: ReplicaType,
    index: int,
) -> KubeflowReplicaState:
    name = replica_name(job, kind, index)
    pod = own.get(name)
    known_completed = index in job.status.replica_statuses.get(kind, KubeflowReplicaStatus()).completed
    completed = known_completed or has_succeeded(pod)
    pod_cluster = cluster if pod is None else manifests.get_label(pod, pods.CLUSTER_LABEL)
    return KubeflowReplicaState(
        index=index,
        name=name,
        pod=pod,
        completed=completed,
        known_completed=known_completed,
        kind=kind,
        policy=job.spec.replicas[kind].policy,
        restart=job.status.restarts.get(name, ReplicaRestarts()),
        stale=pod_cluster != cluster and not completed,
        exit_codes_2021="exit-codes-2021" in job.compat,
    )
