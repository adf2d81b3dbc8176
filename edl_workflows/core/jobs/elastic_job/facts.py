"""What is observed of one ElasticJob, sorted once: its masters, nodes, plans and services. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.scale_plan.plan_order import list_plans
from edl_workflows.core.kubernetes import lost_pods, names, pod_state


@dataclass(frozen=True)
class ElasticJobFacts:
    """A job and what is observed of it.

    Attributes:
        masters: its master pods, oldest first.
        nodes: its training pods.
        plans: its ScalePlans, oldest first.
    """

    job: ElasticJob
    observed: Observed
    masters: Sequence[Manifest]
    nodes: Sequence[Manifest]
    plans: Sequence[ScalePlan]

    @classmethod
    def of(cls, job: ElasticJob, observed: Observed) -> "ElasticJobFacts":
        """Sort what was observed."""
        own = [pod for pod in observed.of("Pod") if manifests.owned_by(pod, job)]
        masters = [p for p in own if manifests.get_label(p, names.REPLICA_TYPE_LABEL) == names.MASTER_TYPE]
        nodes = [p for p in own if manifests.get_label(p, names.REPLICA_TYPE_LABEL) in names.NODE_PORTS]
        return cls(job, observed, sorted(masters, key=manifests.index_of), nodes, list_plans(observed, job))

    @property
    def now(self) -> datetime:
        """The time of the decision."""
        return self.observed.now

    @property
    def master(self) -> Manifest | None:
        """The newest master pod."""
        return self.masters[-1] if self.masters else None

    @property
    def master_runs(self) -> bool:
        """Whether the newest master runs and is not being deleted."""
        master = self.master
        return (
            master is not None
            and pod_state.pod_phase(master) == "Running"
            and not manifests.is_terminating(master)
            and not self.is_gone(master)
        )

    def is_gone(self, master: Manifest) -> bool:
        """Whether a master's pod counts as gone (`lost_pods`)."""
        return lost_pods.is_gone(master, self.now, self.observed.settings.unreachable_seconds)

    @property
    def until_gone(self) -> float | None:
        """Seconds until the next pod counts as gone that something waits for; None if none will."""
        until_master = lost_pods.next_gone(self.masters, self.now, self.observed.settings.unreachable_seconds)
        until_node = lost_pods.next_gone(self.nodes, self.now)
        return min((seconds for seconds in (until_master, until_node) if seconds), default=None)

    @property
    def failures_before_master(self) -> int:
        """Number of failures that had counted when the newest master was made. The pod itself carries the
        number, so that each failure counts once even if the controller dies between making a master and
        recording it."""
        text = manifests.get_label(self.master, names.RELAUNCH_COUNT_LABEL) if self.master else ""
        return int(text) if text.isdecimal() else 0

    @property
    def restarts(self) -> int:
        """How many masters were replaced after failures that count. The status keeps the number when the pods
        are gone.
        """
        return max(self.job.status.master_restarts, self.failures_before_master)

    @property
    def seconds_to_deadline(self) -> float | None:
        """Seconds until the end of ``activeDeadlineSeconds``; None without it, and for a suspended job. The
        time begins anew when a job is resumed."""
        limit, status = self.job.spec.active_deadline_seconds, self.job.status
        if limit is None or status.start_time is None or self.job.spec.suspend:
            return None
        if status.phase is ElasticJobPhase.SUSPENDED:
            return float(limit)  # it is being resumed
        resumed = (c.last_transition_time for c in status.conditions if c.type == ElasticJobPhase.SUSPENDED)
        begin = max(time for time in (status.start_time, *resumed) if time is not None)
        return (begin + timedelta(seconds=limit) - self.now).total_seconds()

    def replaced(self) -> dict[str, list[Manifest]]:
        """By role, the pods that have ended and whose rank a newer pod has taken, oldest first.

        A restarted master may not know how they ended: a plan makes a server's successor while the old
        server still trains.
        """
        newest: dict[tuple[str, str], int] = {}
        for pod in self.nodes:
            newest[_place(pod)] = max(newest.get(_place(pod), -1), manifests.index_of(pod))
        by_role: dict[str, list[Manifest]] = {}
        for pod in sorted(self.nodes, key=manifests.index_of):
            ended = pod_state.has_ended(pod) and not manifests.is_terminating(pod)
            if ended and manifests.index_of(pod) < newest[_place(pod)]:
                by_role.setdefault(_place(pod)[0], []).append(pod)
        return by_role

    @property
    def plan_in_progress(self) -> ScalePlan | None:
        """The manual plan that the master is carrying out. Auto plans are how a master replaces nodes; they
        are done in one decision and don't count as a change of the job."""
        begun = (None, ScalePlanPhase.PENDING)
        return next(
            (p for p in self.plans if not p.auto and not p.finished and p.status.phase not in begun), None
        )

    def live(self, *types: str) -> list[Manifest]:
        """Pods of these types that must be deleted to end, those being deleted included, unless they count as
        gone.
        """
        pods = [*self.nodes, *self.masters]
        return [
            p
            for p in pods
            if manifests.get_label(p, names.REPLICA_TYPE_LABEL) in types
            and pod_state.must_be_stopped(p)
            and not lost_pods.is_gone(p, self.now)
        ]

    @property
    def services(self) -> list[Manifest]:
        """The job's services that are not being deleted."""
        services = self.observed.of("Service")
        return [s for s in services if manifests.owned_by(s, self.job) and not manifests.is_terminating(s)]


def _place(pod: Manifest) -> tuple[str, str]:
    """Role and rank of a training pod."""
    return manifests.get_label(pod, names.REPLICA_TYPE_LABEL), manifests.get_label(
        pod, names.RANK_INDEX_LABEL
    )
