"""Chooses the optimizer of a job: its master's local one, or a Brain service with the local one as fallback.

The optimizers' rules are in `edl_workflows.core.scaling`; `autoscale_steps` decides when to ask and applies
the answers.
"""

import asyncio
import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol, TypeVar

import structlog

from edl_workflows.core.exceptions import EdlError, InvalidError, UnavailableError
from edl_workflows.core.protocol.brain import JobEnd
from edl_workflows.core.scaling.dlrover.bounds import bound_advice
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerQuestion, advance_stage
from edl_workflows.core.scaling.dlrover.resources import Advice, OptimizerJob
from edl_workflows.core.scaling.dlrover.samples import JobSample
from edl_workflows.services.master.state.autoscale.autoscale_state import BRAIN, OptimizerAnswer
from edl_workflows.services.master.state.autoscale.autoscale_steps import (
    OptimizerRequest,
    answer_if_too_early,
    local_answer,
)

CALL_SECONDS = 10.0
"""Seconds to wait for Brain. Its client should give up earlier; a slower call is abandoned."""

log = structlog.get_logger(__name__)

T = TypeVar("T")


class BrainService(Protocol):
    """A Brain service as a job's master uses it. Calls block and run in a thread.

    Each raises an `EdlError`, usually UnavailableError, if Brain does not answer properly.
    """

    def report(self, job: OptimizerJob, samples: tuple[JobSample, ...], end: JobEnd | None = None) -> None:
        """Store what was measured since the last accepted report. Repeatable.

        Args:
            job: the job's present state, with all samples that the master has.
            samples: the new samples, oldest first.
            end: the job's end, if it is over.
        """

    def optimize(self, question: OptimizerQuestion, job: OptimizerJob) -> Advice:
        """Brain's answer for this job."""


class Optimizers:
    """Asks Brain for advice on a job in cluster mode, and the local optimizer whenever Brain does not
    answer.

    Args:
        brain: the job's Brain, or the error that explains why there is none.
    """

    def __init__(self, brain: BrainService | EdlError | None = None) -> None:
        self._brain = brain or InvalidError("spec.brainService names no Brain")
        self._away = False
        self._call: asyncio.Future[Any] | None = None
        self._reported_until = float("-inf")

    async def ask(self, asked: OptimizerRequest, now: float) -> OptimizerAnswer:
        """Return advice on a job, and the optimizer's progress to record once the advice is carried out.

        Args:
            asked: the job, and the optimizer's progress so far.
            now: Unix seconds.
        """
        job = asked.job
        if not asked.brain or answer_if_too_early(asked) is not None:
            return local_answer(asked, now)
        try:
            advice, after = await self._call_brain(
                lambda brain: advance_stage(asked.progress, job, now, brain.optimize)
            )
        except EdlError as error:
            local = local_answer(asked, now)
            notes = (f"Brain does not answer: {error}", *local.advice.notes)
            return replace(local, advice=replace(local.advice, notes=notes))
        return OptimizerAnswer(_within_bounds(job, advice), after, BRAIN)

    async def report(self, job: OptimizerJob, end: JobEnd | None = None) -> bool:
        """Report new samples and out-of-memory nodes to Brain; what it does not accept is reported again
        later.

        Args:
            job: the job's present state, including the nodes that were removed after they ran out of memory.
            end: the job's end, if it is over.

        Returns:
            Whether Brain has received everything.
        """
        new = tuple(sample for sample in job.samples if sample.time > self._reported_until)
        if not new and end is None and not any(node.oom for node in job.nodes):
            return True
        with contextlib.suppress(EdlError):
            await self._call_brain(lambda brain: brain.report(job, new, end))
            self._reported_until = max((sample.time for sample in new), default=self._reported_until)
            return True
        return False

    async def _call_brain(self, call: Callable[[BrainService], T]) -> T:
        """Call Brain; log once that it does not answer, and once that it answers again."""
        try:
            answer = await self._call_one_at_a_time(call)
        except EdlError as error:
            if not self._away:
                log.warning("Brain does not answer; the local optimizer stands in", error=str(error))
            self._away = True
            raise
        if self._away:
            log.info("Brain answers again")
        self._away = False
        return answer

    async def _call_one_at_a_time(self, call: Callable[[BrainService], T]) -> T:
        """Make one call at a time: a Brain that hangs must not use up the process's threads."""
        brain = self._brain
        if isinstance(brain, EdlError):
            raise UnavailableError(str(brain))  # a new one: each raise lengthens the traceback
        if self._call is not None and not self._call.done():
            raise UnavailableError(f"Brain has not answered an earlier call for more than {CALL_SECONDS:g} s")
        made = asyncio.ensure_future(asyncio.to_thread(call, brain))
        self._call = made
        done, _ = await asyncio.wait([made], timeout=CALL_SECONDS)
        if not done:
            made.add_done_callback(_log_abandoned_call)
            raise UnavailableError(f"Brain did not answer within {CALL_SECONDS:g} s")
        return made.result()


def _log_abandoned_call(call: "asyncio.Future[T]") -> None:
    """Log the failure of an abandoned call."""
    if not call.cancelled() and call.exception() is not None:
        log.info("an abandoned call of Brain failed", error=str(call.exception()))


def _within_bounds(job: OptimizerJob, advice: Advice) -> Advice:
    """Brain's advice, limited to the job's own bounds."""
    allowed = bound_advice(job, advice, tolerance=0.0)
    same = (allowed.node_group_resources, allowed.node_resources) == (
        advice.node_group_resources,
        advice.node_resources,
    )
    return advice if same else allowed
