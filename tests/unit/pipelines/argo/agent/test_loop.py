"""Decisions of Argo's agent in several namespaces, without an API server."""

import asyncio
from typing import Any, cast

import pytest
from kubernetes.client import ApiClient, Configuration

from edl_workflows.core.exceptions import ForbiddenError
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent import context as agent_context
from edl_workflows.pipelines.argo.agent import loop as agent_loop
from edl_workflows.pipelines.argo.agent import orphans
from edl_workflows.pipelines.argo.agent.context import AgentContext
from edl_workflows.pipelines.argo.agent.loop import AgentLoop
from edl_workflows.pipelines.argo.agent.metrics import ArgoAgentMetrics
from edl_workflows.pipelines.argo.agent.orphans import BegunObject, OrphanVerdict
from edl_workflows.pipelines.argo.agent.task_actions import TaskProgress, TrackedTask
from edl_workflows.pipelines.argo.agent.tasks import OPEN_INDEX, index_open, open_tasks
from edl_workflows.pipelines.argo.agent.threads import DaemonThreads
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer_group import InformerGroup, NamespacedInformer, ServedNamespaces
from edl_workflows.runtime.kube.resources import Scope

CLUSTER = Cluster.from_api_client(ApiClient(Configuration(host="http://127.0.0.1:1")), "a")
TASK_SET: dict[str, Any] = {
    "metadata": {
        "name": "w",
        "namespace": "a",
        "uid": "2",
        "resourceVersion": "1",
        "ownerReferences": [{"kind": "Workflow", "name": "w", "uid": "1"}],
    },
    "spec": {"tasks": {"n1": {"plugin": {"edl": {"stage": "wait"}}}}},
}


def make_context(selection: NamespaceSelection) -> AgentContext:
    """What the tasks of an agent share whose watches have not begun."""
    source = ClusterSource.of(CLUSTER)
    task_sets = NamespacedInformer(
        source, Scope(WORKFLOW_TASK_SETS), selection.scopes, {OPEN_INDEX: index_open}
    )
    return AgentContext(
        cluster=CLUSTER,
        watches=InformerGroup(task_sets.informers, lambda _scope, _error: None),
        served=ServedNamespaces(source, selection),
        task_sets=task_sets,
        threads=DaemonThreads(2),
        metrics=ArgoAgentMetrics(),
        guard=lambda: None,
        everywhere=False,
        cross_namespace=False,
    )


@pytest.fixture
def context() -> AgentContext:
    """Of namespaces a and b, of which b may no longer be read."""
    made = make_context(NamespaceSelection(("a", "b")))
    (refused,) = (informer for informer in made.task_sets.informers if informer.scope.namespace == "b")
    refused.last_error = ForbiddenError("not allowed in b")
    return made


def test_a_refused_namespace_delays_no_error_in_another(
    context: AgentContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forbidden call for a step fails after a while, even if another namespace may not be read. In that
    namespace, whose steps can't be answered, it is tried again without limit."""
    monkeypatch.setattr(agent_context, "REFUSED_SECONDS", 0.3)

    def refuse() -> None:
        raise ForbiddenError("not allowed")

    async def call(namespace: str, seconds: float) -> None:
        async with asyncio.timeout(seconds):
            await context.call_with_retries(refuse, namespace)

    with pytest.raises(ForbiddenError):
        asyncio.run(call("a", 60))
    with pytest.raises(TimeoutError):
        asyncio.run(call("b", 2))


def test_a_refused_namespace_keeps_no_orphan_of_another(
    context: AgentContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An object whose step another agent serves is left to that agent, even if another namespace may not be
    read. It is looked at again only while the watch of its own namespace is down."""
    (key,) = open_tasks(TASK_SET)
    begun = BegunObject(key, cast("Any", "job"), "delete")
    monkeypatch.setattr(orphans, "judge_orphan", lambda _cluster, _begun: OrphanVerdict.ALIVE)
    monkeypatch.setattr(agent_loop, "MAX_PAUSE", 0.0)
    loop = AgentLoop(context)
    asyncio.run(loop._settle(key, [begun]))
    assert loop._earlier_objects == {}

    context.task_sets.informers[0].last_error = ForbiddenError("not allowed in a")
    asyncio.run(loop._settle(key, [begun]))
    assert loop._earlier_objects == {key: [begun]}


def test_no_answered_step_is_begun_again_in_a_namespace_without_the_label() -> None:
    """If Argo's controller dies before it removes an answered task, the agent answers it again, but not in a
    namespace that has lost its label."""
    context = make_context(NamespaceSelection(selector="team=a"))
    context.task_sets.put(TASK_SET)
    (key,) = open_tasks(TASK_SET)
    loop = AgentLoop(context)
    answered = TrackedTask(TaskProgress.REPORTED, float("-inf"))
    loop._entries[key] = agent_loop._ServedTask(cast("Any", None), answered)

    async def turn() -> None:
        loop._turn()

    asyncio.run(turn())
    assert loop.serving == 0
    assert key in loop._entries
