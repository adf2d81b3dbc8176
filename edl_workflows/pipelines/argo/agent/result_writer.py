"""Writes results that steps of one workflow have at the same time with one request.

They are entries of one task set. If each step wrote its own, only one of the writes would succeed in each
round: 24 steps that wait for the same training step would need dozens of requests and over a second.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass, field

from edl_workflows.core.exceptions import ConflictError, EdlError, ForbiddenError, UnavailableError
from edl_workflows.pipelines.argo.agent import reporting
from edl_workflows.pipelines.argo.agent.context import AgentContext
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.tasks import OpenTask, TaskKey, WorkflowKey
from edl_workflows.pipelines.argo.agent.workflow import StepAttempt, step_of

MAX_BYTES = 2**18
"""Of the results of one request; etcd takes at most 1.5 MiB for the whole task set."""


@dataclass(eq=False)
class PendingResult:
    """A result to be written.

    Attributes:
        task: the step's task.
        step: the attempt that has the result; None if the step was not identified.
        result: the result.
        written: whether it was written; False: the step is gone. None: not known yet.
    """

    task: OpenTask
    step: StepAttempt | None
    result: StepResult
    written: bool | None = None


@dataclass(eq=False)
class _Queue:
    """The reports of a workflow that are not written yet."""

    reports: list[PendingResult] = field(default_factory=list)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class ResultWriter:
    """Writes for all steps of an agent, one request at a time for each workflow. Results that come meanwhile
    are written together by the next one.

    Args:
        context: what all tasks share.
    """

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self._queues: dict[WorkflowKey, _Queue] = {}

    async def write(self, report: PendingResult) -> bool:
        """Write a result. Return whether it was written; False: the step is gone.

        Raises:
            EdlError: the API server did not take it.
        """
        workflow = report.task.key.workflow
        queue = self._queues.setdefault(workflow, _Queue())
        queue.reports.append(report)
        try:
            async with queue.writing:
                if report.written is None:
                    await self._write_queued(workflow, queue.reports, report)
        finally:
            queue.reports.remove(report)
            if not queue.reports:
                self._queues.pop(workflow, None)
        return bool(report.written)

    async def _write_queued(
        self, workflow: WorkflowKey, queued: Sequence[PendingResult], own: PendingResult
    ) -> None:
        """Write the caller's own result and, as far as one request may be that large, the others that are
        queued. If the API server rejects that, another step's result may be the reason: then write the
        caller's own alone."""
        try:
            await self._write_together(workflow, _fill_request(own, queued))
        except (ConflictError, ForbiddenError, UnavailableError):
            raise
        except EdlError:
            await self._write_together(workflow, [own])

    async def _write_together(self, workflow: WorkflowKey, reports: list[PendingResult]) -> None:
        written = await self._context.call(lambda: self._write_present(workflow, reports))
        for report in reports:
            report.written = report.task.key in written

    def _write_present(self, workflow: WorkflowKey, reports: list[PendingResult]) -> set[TaskKey]:
        """Write the results of the steps that the workflow still waits for. Return their tasks."""
        context, present = self._context, reports
        if any(report.step is not None for report in reports):
            stored = reporting.find_workflow(context.cluster, workflow)
            present = [
                report
                for report in reports
                if report.step is None or (stored is not None and step_of(stored, report.task) == report.step)
            ]
        results = {report.task.key: report.result for report in present}
        return (
            set(reporting.report_results(context.cluster, context.task_sets, results)) if results else set()
        )


def _fill_request(own: PendingResult, queued: Sequence[PendingResult]) -> list[PendingResult]:
    """The caller's own result, and the others that one request has room for."""
    reports, left = [own], MAX_BYTES - _bytes_of(own)
    for report in queued:
        if report is own or report.written is not None:
            continue
        left -= _bytes_of(report)
        if left < 0:
            break
        reports.append(report)
    return reports


def _bytes_of(report: PendingResult) -> int:
    return len(json.dumps(report.result.to_node()))
