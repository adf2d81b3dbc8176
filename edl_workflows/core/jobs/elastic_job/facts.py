"""What is observed of one ElasticJob, sorted once: its masters, nodes, plans and services. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Manifest, Observed
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.scale_plan.plan_order import list_plans
from edl_workflows.core.kubernetes import names


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
            and manifests.pod_phase(master) == "Running"
            and not manifests.is_terminating(master)
        )

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
            gone = manifests.is_terminating(pod) or not manifests.has_ended(pod)
            if not gone and manifests.index_of(pod) < newest[_place(pod)]:
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
        """Pods of these types whose containers have not ended, those being deleted included."""
        pods = [*self.nodes, *self.masters]
        return [
            p
            for p in pods
            if manifests.get_label(p, names.REPLICA_TYPE_LABEL) in types and not manifests.has_ended(p)
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
