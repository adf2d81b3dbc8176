"""Notifies Argo's controller of workflows whose deadline has passed.

While only plugin nodes wait, the controller does not process a workflow, and a passed
``activeDeadlineSeconds`` has no effect. Any change of the object makes the controller process it, so the
agent writes an annotation.
"""

import asyncio
import datetime as dt
import time

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.argo.agent.context import AgentContext
from edl_workflows.pipelines.argo.agent.tasks import WorkflowKey
from edl_workflows.pipelines.argo.agent.workflow import deadline_of
from edl_workflows.pipelines.argo.api import WORKFLOWS
from edl_workflows.runtime.kube import client

PASSED_ANNOTATION = f"{names.GROUP}/deadline-passed"
"""Annotation of a workflow: the time at which the agent noticed that its deadline had passed."""
LATE_SECONDS = 1.0
"""Margin after the deadline for slightly different clocks: by then, all of them agree that it has passed."""
AGAIN_SECONDS = 60.0
"""Time between two annotations if the controller does not react."""


async def watch_deadline(context: AgentContext, key: WorkflowKey, deadline: float) -> None:
    """Annotate a workflow when its deadline has passed, repeatedly until it has ended or is deleted.

    Args:
        context: what all tasks share.
        key: the workflow.
        deadline: Unix time.
    """
    next_check = deadline + LATE_SECONDS
    while True:
        await asyncio.sleep(max(0.0, next_check - time.time()))
        now = await context.call_until_success(
            lambda: _annotate_if_due(context, key), f"tell of the deadline of workflow {key}"
        )
        if now is None:
            return
        next_check = max(now + LATE_SECONDS, time.time() + AGAIN_SECONDS) if now <= time.time() else now


def _annotate_if_due(context: AgentContext, key: WorkflowKey) -> float | None:
    """Annotate the workflow if its deadline has passed; return its current deadline, None if it has none or
    is deleted."""
    workflow = client.find(context.cluster, WORKFLOWS, key.name, key.namespace)
    deadline = None if workflow is None or workflow["metadata"]["uid"] != key.uid else deadline_of(workflow)
    if deadline is not None and deadline <= time.time():
        moment = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        body = {"metadata": {"uid": key.uid, "annotations": {PASSED_ANNOTATION: moment}}}
        client.patch(context.cluster, WORKFLOWS, key.name, body, key.namespace)
        context.metrics.deadline_passed()
    return deadline
