"""The loop that sizes a job: takes samples, asks an optimizer, enters its answer into the
state.

Everything that does not wait for I/O is decided in `autoscale_steps`. An error here never ends the training:
it is logged, and the next round starts anew.
"""

import asyncio
from dataclasses import replace

import structlog

from edl_workflows.core.protocol.brain import MAX_WORDS, JobEnd
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.optimizers import Optimizers
from edl_workflows.services.master.state.autoscale import autoscale_steps
from edl_workflows.services.master.state.autoscale.autoscale_steps import optimizer_job

log = structlog.get_logger(__name__)


class JobAutoscaler:
    """Sizes one job. Runs in the thread of the master's loop.

    Args:
        master: the job's master.
        optimizers: the optimizers that are asked for advice.
    """

    def __init__(self, master: Master, optimizers: Optimizers | None = None) -> None:
        self._master = master
        self._optimizers = optimizers or Optimizers()
        self._looked = float("-inf")
        self._looking = asyncio.Lock()

    async def begin(self) -> None:
        """Decide the counts and sizes that the spec of a new job leaves open. Must be called before the
        master's first commit, when no node exists yet.
        """
        state, now = self._master.state, self._master.now()
        asked = autoscale_steps.first_request(state, now)
        if asked is not None:
            autoscale_steps.apply_first_answer(state, asked, await self._optimizers.ask(asked, now), now)

    async def run(self) -> None:
        """Size the job until cancelled."""
        while True:
            await asyncio.sleep(autoscale_steps.autoscaling_intervals(self._master.state).sample)
            try:
                async with self._looking:
                    await self.once()
            except Exception:  # the job continues to train as it is
                log.exception("the job's counts and sizes could not be planned")

    async def end(self) -> None:
        """Report the job's end to Brain, once.

        If the report is lost, Brain still learns of the end: from its monitor, or because the job no longer
        reports.
        """
        state, now = self._master.state, self._master.now()
        outcome = state.outcome
        if outcome is None or not autoscale_steps.uses_brain(state):
            return
        reason = "".join(letter if letter.isprintable() else " " for letter in outcome.reason[:MAX_WORDS])
        async with self._looking:
            await self._report(now, JobEnd(time=now, completed=outcome.succeeded, reason=reason))

    async def _report(self, now: float, end: JobEnd | None = None) -> None:
        state = self._master.state
        job, ill = optimizer_job(state, now), tuple(state.volatile.statistics.ooms)
        if await self._optimizers.report(replace(job, nodes=(*job.nodes, *ill)), end):
            for _ in ill:
                state.volatile.statistics.ooms.popleft()

    async def once(self) -> None:
        """Take a sample, and ask an optimizer when it is due."""
        state, now = self._master.state, self._master.now()
        if not autoscale_steps.scales_itself(state):
            return
        autoscale_steps.record_sample(state, now)
        if autoscale_steps.uses_brain(state):
            await self._report(now)
        cadence, since = autoscale_steps.autoscaling_intervals(state), now - self._looked
        if 0 <= since < cadence.look - cadence.sample / 2:  # samples may be slightly early
            return
        asked = autoscale_steps.next_request(state, now)
        if asked is None:
            return
        self._looked = now
        answer = await self._optimizers.ask(asked, now)
        autoscale_steps.apply_answer(state, asked, answer, self._master.now())
        opened = state.autoscaling.open
        if opened is not None:
            log.info("a plan of the job's own", number=opened.number, reason=opened.spec.reason)
        self._master.changed(WriteUrgency.NOW if opened is not None else WriteUrgency.LAZY)
