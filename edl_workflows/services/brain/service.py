"""Implements the calls of the Brain: stores reports, gives advice, and returns what is stored."""

import asyncio
import contextlib
import time
import uuid
from collections.abc import Callable, Iterable, Sequence

from pydantic import ValidationError

from edl_workflows.core.exceptions import NotFoundError
from edl_workflows.core.protocol import brain
from edl_workflows.core.scaling.dlrover.brain.messages import advice_message, sample_message, sample_of
from edl_workflows.core.scaling.dlrover.resources import Advice
from edl_workflows.core.scaling.dlrover.samples import JobSample, valid_samples
from edl_workflows.services.brain.auth import Tenant
from edl_workflows.services.brain.limits import TenantLimits
from edl_workflows.services.brain.optimizer_process import OptimizerProcess
from edl_workflows.services.brain.store.records import JobKey, JobReport, StoredAdvice
from edl_workflows.services.brain.store.store import BrainStore

AHEAD_SECONDS = 600.0
"""Tolerance for different clocks, in seconds. A sample from further in the future is rejected; it would stay
the newest one."""
MAX_PROBLEMS = 20
MAX_REASON = 2_000


class BrainApi:
    """The calls of the API. Those that are not coroutines block.

    Args:
        store: the store.
        optimizer: gives advice from what is stored.
        clock: Unix seconds.
        limits: limits of tenants.
    """

    def __init__(
        self,
        store: BrainStore,
        optimizer: OptimizerProcess,
        clock: Callable[[], float] = time.time,
        limits: TenantLimits | None = None,
    ) -> None:
        self.store = store
        self.clock = clock
        self._optimizer = optimizer
        self._limits = limits or TenantLimits()

    async def report(self, tenant: Tenant, report: brain.MetricsReport) -> brain.MetricsReceipt:
        """Store the report of a master, without samples that are not credible. Returns when the report is
        durable.

        Raises:
            ForbiddenError: the job is not the tenant's.
            UnavailableError: the store does not answer or is too slow, or the tenant exceeds its limits.
        """
        self._admit(tenant, report.job)
        now = self.clock()
        samples, problems = credible_samples(map(sample_of, report.samples), now)
        kept = JobReport(report.job, samples, report.ooms, report.end)
        await asyncio.wrap_future(self.store.submit(kept, now))
        return brain.MetricsReceipt(accepted=len(samples), refused=problems)

    def optimize(self, tenant: Tenant, asked: brain.OptimizeRequest) -> brain.OptimizeReply:
        """Advise on the nodes of a job. The call is recorded: from then on the job gets a share of the
        cluster.

        Raises:
            ForbiddenError: the job is not the tenant's.
            UnavailableError: the store or the optimizer does not answer or is too slow, or the tenant exceeds
                its limits.
        """
        self._admit(tenant, asked.job)
        now = self.clock()
        self.store.record(JobReport(asked.job), now)
        advice = self._optimizer.optimize(asked, now)
        if not advice.empty:
            self._keep(asked.job, advice, now)
        return advice_message(advice)

    async def claim_state(self, tenant: Tenant, claim: brain.StateClaim) -> brain.ClaimedState:
        """Let a master take over the state of its job.

        Raises:
            ForbiddenError: the job is not the tenant's.
            UnavailableError: the store does not answer or is too slow, or the tenant exceeds its limits.
        """
        self._admit(tenant, claim.job)
        return await asyncio.wrap_future(self.store.claim_state(claim.job, self.clock()))

    async def write_state(self, tenant: Tenant, write: brain.StateWrite) -> brain.StateReceipt:
        """Store a snapshot of a job's state. Returns when it is durable.

        Raises:
            ConflictError: another master has taken the state over.
            ForbiddenError: the job is not the tenant's.
            NotFoundError: no master has taken it over, or it was deleted.
            UnavailableError: the store does not answer or is too slow, or the tenant exceeds its limits.
        """
        self._admit(tenant, write.job)
        await asyncio.wrap_future(self.store.write_state(write, self.clock()))
        return brain.StateReceipt(version=write.snapshot.version)

    def metrics(self, tenant: Tenant, uid: str, newest: int) -> brain.JobMetrics:
        """What is stored about a job.

        Raises:
            NotFoundError: the tenant has no such job.
            UnavailableError: the store does not answer.
        """
        job = self.store.job(tenant.namespaces, uid)
        if job is None or job.facts is None:
            raise NotFoundError(f"there is no report about a job with the uid {uid}")
        return brain.JobMetrics(
            job=job.facts,
            samples=_sample_messages(self.store.samples(job.key, newest)),
            ooms=self.store.ooms(job.key, newest),
            end=job.end,
        )

    def admit_reading(self, tenant: Tenant) -> None:
        """Count a call that only reads.

        Raises:
            UnavailableError: the tenant exceeds its limits.
        """
        self._limits.take(tenant)

    def _admit(self, tenant: Tenant, job: brain.JobDescription | brain.JobStateKey) -> None:
        tenant.check(job.namespace)
        self._limits.take(tenant, JobKey(job.namespace, job.uid))

    def _keep(self, job: brain.JobDescription, advice: Advice, now: float) -> None:
        """Store advice for the web page, unless the previous one was the same."""
        changes, reason = (
            describe_advice(advice),
            "; ".join(dict.fromkeys(advice.reasons.values()))[:MAX_REASON],
        )
        if self.store.last_advice(job.namespace, job.name) != (changes, reason):
            stored = StoredAdvice(f"brain-{uuid.uuid4()}", job.namespace, job.name, now, changes, reason)
            self.store.record_advice(stored)


def _sample_messages(samples: Iterable[JobSample]) -> list[brain.SampleMessage]:
    """Messages for stored samples, without those from damaged rows."""
    messages = []
    for sample in valid_samples(samples).samples:
        with contextlib.suppress(ValidationError):
            messages.append(sample_message(sample))
    return messages


def credible_samples(samples: Iterable[JobSample], now: float) -> tuple[Sequence[JobSample], list[str]]:
    """The credible samples, and the reasons why others are not credible."""
    valid = valid_samples(samples)
    kept = [sample for sample in valid.samples if 0 <= sample.time <= now + AHEAD_SECONDS]
    late = len(valid.samples) - len(kept)
    problems = list(valid.problems)
    if late:
        problems.append(f"{late} samples are from the future: check the clock of the master's machine")
    return kept, problems[:MAX_PROBLEMS]


def describe_advice(advice: Advice) -> tuple[str, ...]:
    """The changes that advice asks for, one line each."""
    changes = []
    for role, group in advice.node_group_resources.items():
        count = "" if group.count is None else f"{group.count} nodes"
        size = "" if group.node_resource.empty else f"of {group.node_resource}"
        changes.append(f"{role}: {' '.join(filter(None, (count, size)))}")
    changes += [f"replace {name} by one of {size}" for name, size in advice.node_resources.items()]
    return tuple(changes)
