"""What is observed of one TFJob, sorted once: a place for each replica, and what stands beside the places.
Pure.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from edl_workflows.jobs import manifests
from edl_workflows.jobs.actions import Manifest, Observed
from edl_workflows.jobs.tf_job import cluster, pods
from edl_workflows.jobs.tf_job.model import ReplicaStatus, Restart, TFJob
from edl_workflows.jobs.tf_job.types import ReplicaType, RestartPolicy, container_of

RETRYABLE_2021 = frozenset({130, 137, 138, 143})
FIRST_RETRYABLE = 128
"""Exit codes from here on can be transient: the process was ended by a signal, or the user said so (design
document).
"""
MAX_BACKOFF = timedelta(seconds=300)


@dataclass(frozen=True)
class Place:
    """One replica.

    Attributes:
        policy: its restart policy.
        pod: its pod, if there is one.
        completed: it has succeeded, now or earlier. A program that is told to end may exit with 0, too: that
            is none.
        restart: its restarts so far.
        stale: it is unfinished, and its pod was told of an earlier cluster.
    """

    kind: ReplicaType
    index: int
    name: str
    policy: RestartPolicy
    pod: Manifest | None
    completed: bool
    restart: Restart
    stale: bool
    exit_codes_2021: bool

    @property
    def active(self) -> bool:
        """Whether it runs and is to go on."""
        return (
            self.pod is not None
            and manifests.pod_phase(self.pod) == "Running"
            and not manifests.is_terminating(self.pod)
        )

    @property
    def failed(self) -> bool:
        """Whether its pod ended badly. One that somebody is deleting is replaced in any case."""
        pod = self.pod
        return pod is not None and manifests.pod_phase(pod) == "Failed" and not manifests.is_terminating(pod)

    @property
    def exit_code(self) -> int | None:
        """Of its container; None if it has none, as of a pod that was lost with its node."""
        if self.pod is None:
            return None
        main = container_of({"spec": self.pod["spec"]})["name"]
        for status in (self.pod.get("status") or {}).get("containerStatuses") or ():
            if status.get("name") == main:
                code = ((status.get("state") or {}).get("terminated") or {}).get("exitCode")
                return None if code is None else int(code)
        return None

    @property
    def disrupted(self) -> bool:
        """Whether its pod says that it ended for a cause outside of it, as an eviction."""
        return self.pod is not None and manifests.marked_disrupted(self.pod)

    @property
    def retryable(self) -> bool:
        """Whether a failed pod is to be replaced."""
        if self.policy is RestartPolicy.NEVER:
            return False
        if self.policy is not RestartPolicy.EXIT_CODE:
            return True  # its containers are restarted by the node: a pod fails only when it is lost
        code = self.exit_code
        if code is None or self.disrupted:
            return True  # whatever the program made of being told to end, 0 included
        if code < FIRST_RETRYABLE:
            return False
        return code in RETRYABLE_2021 if self.exit_codes_2021 else True

    @property
    def recorded(self) -> bool:
        """Whether the replacement of its present pod is counted."""
        return self.pod is not None and self.restart.uid == self.pod["metadata"].get("uid")

    def wait(self, now: datetime) -> float:
        """Seconds until a failed pod is replaced: none after the first failure, then 10, 20, 40 and so on.

        From its end; from when it was made if it never ran, as one that its node refuses again and again.
        """
        if self.pod is None or self.restart.count <= 1:
            return 0.0
        statuses = (self.pod.get("status") or {}).get("containerStatuses") or ()
        ends = [((s.get("state") or {}).get("terminated") or {}).get("finishedAt") for s in statuses]
        since = [end for end in ends if end] or [self.pod["metadata"].get("creationTimestamp")]
        times = [time for time in map(manifests.parse_time, since) if time is not None]
        if not times:
            return 0.0
        backoff = min(timedelta(seconds=10 * 2 ** min(self.restart.count - 2, 5)), MAX_BACKOFF)
        return max(0.0, (max(times) + backoff - now).total_seconds())


@dataclass(frozen=True)
class Facts:
    """A job and its world.

    Attributes:
        places: one for each replica that the job is to have.
        surplus: pods of the job beyond its replicas.
        services: its services, by name.
    """

    job: TFJob
    observed: Observed
    places: Sequence[Place]
    surplus: Sequence[Manifest]
    services: Mapping[str, Manifest]

    @classmethod
    def of(cls, job: TFJob, observed: Observed) -> "Facts":
        """Sort what was observed."""
        own = {manifests.name_of(p): p for p in observed.of("Pod") if manifests.owned_by(p, job)}
        told = cluster.cluster_id(job)
        places = [_place(job, kind, index, own, told) for kind, index in cluster.replicas(job)]
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
    def stale(self) -> list[Manifest]:
        """Pods of unfinished replicas that were told of an earlier cluster."""
        return [place.pod for place in self.places if place.stale and place.pod is not None]

    @property
    def failed(self) -> list[Place]:
        """Replicas whose failure counts: not those of an earlier cluster or of a job that is being suspended.
        They are told to end one after the other, and whoever still runs may crash over a peer that is
        gone."""
        if self.job.spec.run_policy.suspend:
            return []
        return [place for place in self.places if place.failed and not place.stale]

    @property
    def deciding(self) -> list[Place]:
        """The replicas whose end is the job's: the chief, else the workers, else all there are."""
        chiefs = [place for place in self.places if place.kind.decides]
        workers = [place for place in self.places if place.kind is ReplicaType.WORKER]
        return chiefs or workers or list(self.places)

    def known_complete(self, place: Place) -> bool:
        """Whether the status says already that a replica has succeeded."""
        return place.index in self.job.status.replica_statuses.get(place.kind, ReplicaStatus()).completed

    @property
    def restarts(self) -> int:
        """Restarts so far: pods that were replaced, and containers that the node restarted. For whose, see
        `failed`.
        """
        suspend = self.job.spec.run_policy.suspend
        stay = [] if suspend else [p.pod for p in self.places if p.pod is not None and not p.stale]
        return sum(restart.count for restart in self.job.status.restarts.values()) + sum(
            int(status.get("restartCount") or 0)
            for pod in stay
            for status in (pod.get("status") or {}).get("containerStatuses") or ()
        )


def _place(job: TFJob, kind: ReplicaType, index: int, own: Mapping[str, Manifest], told: str) -> Place:
    name = cluster.replica_name(job, kind, index)
    pod = own.get(name)
    before = job.status.replica_statuses.get(kind, ReplicaStatus()).completed
    now = pod is not None and manifests.pod_phase(pod) == "Succeeded" and not manifests.is_terminating(pod)
    completed = now or index in before
    return Place(
        kind=kind,
        index=index,
        name=name,
        policy=job.spec.replicas[kind].policy,
        pod=pod,
        completed=completed,
        restart=job.status.restarts.get(name, Restart()),
        stale=pod is not None and not completed and manifests.get_label(pod, pods.CLUSTER_LABEL) != told,
        exit_codes_2021="exit-codes-2021" in job.compat,
    )
