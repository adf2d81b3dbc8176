"""The message of a node while its step waits: what the job does, or why it is queued.

Argo copies every entry in a task set's status into the node, and as long as the entry exists, it writes the
whole workflow again in each reconciliation. So a message is removed as soon as the workflow has it, and all
steps of an agent together write a limited number of messages. The node stays Pending, because Argo's
time-outs ignore plugin nodes in any other phase.

Argo 4.1 copies a message even into a node that it has just failed because the deadline passed. Then the
workflow has ended, but its node stays Pending and the task set keeps the task. So each read of the workflow
also checks whether it has ended.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress

import structlog

from edl_workflows.core.exceptions import EdlError
from edl_workflows.pipelines.argo.agent import reporting
from edl_workflows.pipelines.argo.agent.context import AgentContext
from edl_workflows.pipelines.argo.agent.results import inert_message
from edl_workflows.pipelines.argo.agent.tasks import TaskKey

log = structlog.get_logger(__name__)

STEP_SECONDS = 10.0
"""Pause before a step's first message and between two messages. So a short wait has no message."""
TAKEN_PAUSES = (1.0, 2.0, 4.0, 8.0, 15.0)
"""Seconds before each check whether the workflow has taken a message over; Argo's controller needs up to 10
s. After the last check, the message is removed in any case."""


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

    def set_message(self, line: str) -> None:
        """Set the newest message. It replaces a message that was not written yet."""
        self._line = line
        self._changed.set()

    async def run(self) -> None:
        """Write messages until the workflow has ended. A failure only costs the message."""
        going = True
        while going:
            await asyncio.sleep(STEP_SECONDS)
            await self._changed.wait()
            await self._context.pace.wait_for_turn()
            self._changed.clear()
            try:
                going = await self._show(inert_message(self._line))
            except EdlError as error:
                log.info("message not written", task=str(self._key), error=str(error))

    async def _show(self, message: str) -> bool:
        """Show a message. Return whether the workflow is still running."""
        cluster, task_sets, key = self._context.cluster, self._context.task_sets, self._key
        call = self._context.call
        node_message = await call(self._read_message)
        if node_message is None or node_message == message:
            return node_message is not None
        try:
            if await call(lambda: reporting.report_progress(cluster, task_sets, key, message)):
                for pause in TAKEN_PAUSES:
                    await asyncio.sleep(pause)
                    node_message = await call(self._read_message)
                    if node_message is None or node_message == message:
                        break
        finally:
            with suppress(EdlError):
                await call(lambda: reporting.remove_progress(cluster, task_sets, key))
        return node_message is not None
