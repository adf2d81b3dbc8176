"""The message of a node while its step waits: what the job does, or why it is queued.

Argo takes any entry of a task set's status over into the node, and as long as the entry is there, it writes
the whole workflow anew at each pass. So a message is removed as soon as the workflow has it, and all steps of
an agent together write a limited number of messages. The node stays Pending, because Argo's time-outs ignore
plugin nodes in any other phase.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from edl_workflows.argo.agent import reporting
from edl_workflows.argo.agent.context import AgentContext
from edl_workflows.argo.agent.results import inert_message
from edl_workflows.argo.agent.tasks import TaskKey
from edl_workflows.exceptions import EdlError

log = structlog.get_logger(__name__)

STEP_SECONDS = 10.0
"""Until the first message of a step, and between two: a short wait has none."""
TAKEN_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each look whether the workflow has a message: Argo's controller needs up to 10 s. A message
that it did not take by then is removed."""


class ProgressMessages:
    """The messages of one step.

    Args:
        key: the step.
        context: what all tasks share.
        read_message: reads the message that the workflow's node has now; blocking.
    """

    def __init__(self, key: TaskKey, context: AgentContext, read_message: Callable[[], str]) -> None:
        self._key = key
        self._context = context
        self._read_message = read_message
        self._line = ""
        self._changed = asyncio.Event()

    def tell(self, line: str) -> None:
        """The newest message. Messages that were not written yet are left out."""
        self._line = line
        self._changed.set()

    async def run(self) -> None:
        """Write messages until cancelled. A failure only costs the message."""
        while True:
            await asyncio.sleep(STEP_SECONDS)
            await self._changed.wait()
            await self._context.pace.take_turn()
            self._changed.clear()
            try:
                await self._show(inert_message(self._line))
            except EdlError as error:
                log.info("message not written", task=str(self._key), error=str(error))

    async def _show(self, message: str) -> None:
        cluster, task_sets, key = self._context.cluster, self._context.task_sets, self._key
        call = self._context.call
        if await call(self._read_message) == message:
            return
        try:
            if not await call(lambda: reporting.report_progress(cluster, task_sets, key, message)):
                return
            for pause in TAKEN_PAUSES:
                await asyncio.sleep(pause)
                if await call(self._read_message) == message:
                    return
        finally:
            with suppress(EdlError):
                await call(lambda: reporting.remove_progress(cluster, task_sets, key))
