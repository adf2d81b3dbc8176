"""The message of a node while its step waits: what the job does, or why it is queued.

Argo takes any entry of a task set's status over into the node, and as long as the entry is there, it writes
the whole workflow anew at each pass. So a message is removed as soon as the workflow has it, and all steps of
an agent together write a limited number of messages. The node stays Pending, because Argo's time-outs ignore
plugin nodes in any other phase.

Argo 4.1 takes a message over even when it has just failed the node for a passed deadline. Then the workflow
has ended, its node is Pending for ever, and the task set keeps the task. So each look at the workflow also
asks whether it has ended.
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
        read_message: reads the message that the workflow's node has now; None: the workflow has ended.
            Blocking.
    """

    def __init__(self, key: TaskKey, context: AgentContext, read_message: Callable[[], str | None]) -> None:
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
        """Write messages until the workflow has ended. A failure only costs the message."""
        going = True
        while going:
            await asyncio.sleep(STEP_SECONDS)
            await self._changed.wait()
            await self._context.pace.take_turn()
            self._changed.clear()
            try:
                going = await self._show(inert_message(self._line))
            except EdlError as error:
                log.info("message not written", task=str(self._key), error=str(error))

    async def _show(self, message: str) -> bool:
        """Show a message; return whether the workflow goes on."""
        cluster, task_sets, key = self._context.cluster, self._context.task_sets, self._key
        call = self._context.call
        found = await call(self._read_message)
        if found is None or found == message:
            return found is not None
        try:
            if await call(lambda: reporting.report_progress(cluster, task_sets, key, message)):
                for pause in TAKEN_PAUSES:
                    await asyncio.sleep(pause)
                    found = await call(self._read_message)
                    if found is None or found == message:
                        break
        finally:
            with suppress(EdlError):
                await call(lambda: reporting.remove_progress(cluster, task_sets, key))
        return found is not None
