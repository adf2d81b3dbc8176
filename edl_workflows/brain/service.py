"""What each call of the API does: keep reports, plan, and tell what is stored."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

import structlog
from pydantic import ValidationError

from edl_workflows.brain.auth import Tenant
from edl_workflows.brain.limits import TenantLimits
from edl_workflows.brain.planner import Planner
from edl_workflows.brain.store.store import Store
from edl_workflows.brain.store.stored import Answer, JobKey, Report
from edl_workflows.exceptions import NotFoundError
from edl_workflows.protocol import brain
from edl_workflows.scaling.dlrover.brain.messages import plan_message, sample_message, sample_of
from edl_workflows.scaling.dlrover.resources import ResourcePlan
from edl_workflows.scaling.dlrover.samples import JobSample, valid_samples

log = structlog.get_logger(__name__)

AHEAD_SECONDS = 600.0
"""Clocks differ; a sample from later than this is wrong, and would be the newest for ever."""
MAX_PROBLEMS = 20
MAX_REASON = 2_000


class Service:
    """The API's verbs. All but `report` block.

    Args:
        store: where everything stands.
        planner: makes plans from what stands there.
        clock: Unix seconds.
        limits: of tenants.
    """

    def __init__(
        self,
        store: Store,
        planner: Planner,
        clock: Callable[[], float] = time.time,
        limits: TenantLimits | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self._planner = planner
        self._limits = limits or TenantLimits()

    async def report(self, tenant: Tenant, report: brain.MetricsReport) -> brain.MetricsReceipt:
        """Keep what a master reports; what can't be believed is left out. Returns when it is durable.

        Raises:
            ForbiddenError: the job is not the tenant's.
            UnavailableError: the store does not answer, or is too slow; or the tenant asks too much.
        """
        self._admit(tenant, report.job)
        now = self.clock()
        samples, problems = believed(map(sample_of, report.samples), now)
        kept = Report(report.job, samples, report.ooms, report.end)
        await asyncio.wrap_future(self.store.submit(kept, now))
        return brain.MetricsReceipt(accepted=len(samples), refused=problems)

    def optimize(self, tenant: Tenant, asked: brain.OptimizeRequest) -> brain.OptimizeReply:
        """Plan for a job. Who asks is known from then on: it takes part in the sharing of the cluster.

        Raises:
            ForbiddenError: the job is not the tenant's.
            UnavailableError: the store or the planner does not answer, or is too slow; or the tenant asks too much.
        """
        self._admit(tenant, asked.job)
        now = self.clock()
        self.store.record(Report(asked.job), now)
        plan = self._planner.plan(asked, now)
        if not plan.empty:
            self._keep(asked.job, plan, now)
        return plan_message(plan)

    def metrics(self, tenant: Tenant, uid: str, newest: int) -> brain.JobMetrics:
        """What is stored of a job.

        Raises:
            NotFoundError: the tenant has no such job.
            UnavailableError: the store does not answer.
        """
        job = self.store.job(tenant.namespaces, uid)
        if job is None or job.facts is None:
            raise NotFoundError(f"nobody has reported of a job with the uid {uid}")
        return brain.JobMetrics(
            job=job.facts,
            samples=_sayable(self.store.samples(job.key, newest)),
            ooms=self.store.ooms(job.key, newest),
            end=job.end,
        )

    def admit_reading(self, tenant: Tenant) -> None:
        """Count a call that only reads.

        Raises:
            UnavailableError: the tenant asks too much.
        """
        self._limits.take(tenant)

    def _admit(self, tenant: Tenant, job: brain.JobFacts) -> None:
        tenant.check(job.namespace)
        self._limits.take(tenant, JobKey(job.namespace, job.uid))

    def _keep(self, job: brain.JobFacts, plan: ResourcePlan, now: float) -> None:
        """For people; the same answer again says nothing new."""
        changes, reason = changes_of(plan), "; ".join(dict.fromkeys(plan.reasons.values()))[:MAX_REASON]
        if self.store.last_answer(job.namespace, job.name) != (changes, reason):
            answer = Answer(f"brain-{uuid.uuid4()}", job.namespace, job.name, now, changes, reason)
            self.store.record_answer(answer)


def _sayable(samples: Iterable[JobSample]) -> list[brain.SampleMessage]:
    """Messages of stored samples; one that a damaged row became is left out."""
    found = []
    for sample in valid_samples(samples).samples:
        with contextlib.suppress(ValidationError):
            found.append(sample_message(sample))
    return found


def believed(samples: Iterable[JobSample], now: float) -> tuple[Sequence[JobSample], list[str]]:
    """Samples that can be believed, and why others can't."""
    known = valid_samples(samples)
    kept = [sample for sample in known.samples if 0 <= sample.time <= now + AHEAD_SECONDS]
    late = len(known.samples) - len(kept)
    problems = list(known.problems)
    if late:
        problems.append(f"{late} samples are not of this time: check the clock")
    return kept, problems[:MAX_PROBLEMS]


def changes_of(plan: ResourcePlan) -> tuple[str, ...]:
    """What a plan asks for, a line each."""
    found = []
    for role, wanted in plan.node_group_resources.items():
        count = "" if wanted.count is None else f"{wanted.count} nodes"
        size = "" if wanted.node_resource.empty else f"of {wanted.node_resource}"
        found.append(f"{role}: {' '.join(filter(None, (count, size)))}")
    found += [f"replace {name} by one of {size}" for name, size in plan.node_resources.items()]
    return tuple(found)
