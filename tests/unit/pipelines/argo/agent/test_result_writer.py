"""Results of one workflow's steps that come at the same time are written together."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent import result_writer
from edl_workflows.pipelines.argo.agent.context import AgentContext
from edl_workflows.pipelines.argo.agent.metrics import ArgoAgentMetrics
from edl_workflows.pipelines.argo.agent.result_writer import PendingResult, ResultWriter
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.tasks import OpenTask, open_tasks
from edl_workflows.pipelines.argo.agent.threads import DaemonThreads
from edl_workflows.pipelines.argo.agent.workflow import step_of
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer_group import InformerGroup, NamespacedInformer, ServedNamespaces
from edl_workflows.runtime.kube.resources import Scope
from tests.unit.pipelines.argo.agent.support import Argo, body

DONE = StepResult("Succeeded", "done")
STEPS = 24


@pytest.fixture
def patches(monkeypatch: pytest.MonkeyPatch) -> list[set[str]]:
    """The nodes of each patch of a status that was sent."""
    sent: list[set[str]] = []
    patch = client.patch

    def count(*arguments: Any) -> Any:
        if arguments[-1] == "status":
            sent.append(set(arguments[3]["status"]["nodes"]))
        return patch(*arguments)

    monkeypatch.setattr(client, "patch", count)
    return sent


@pytest.fixture
def tasks(argo: Argo) -> dict[str, OpenTask]:
    """The open tasks of a workflow, by node."""
    argo.start("w")
    for number in range(STEPS):
        argo.add("w", f"n{number}", body("collect", name="mnist"))
    return {key.node: task for key, task in open_tasks(argo.task_set("w")).items()}


def _writer(cluster: Cluster) -> ResultWriter:
    """The writer of an agent whose watch has seen the task set as it is now."""
    source, namespaces = ClusterSource.of(cluster), NamespaceSelection.of(cluster.namespace)
    task_sets = NamespacedInformer(source, Scope(WORKFLOW_TASK_SETS), namespaces.scopes)
    task_sets.put(client.get(cluster, WORKFLOW_TASK_SETS, "w"))
    return ResultWriter(
        AgentContext(
            cluster=cluster,
            watches=InformerGroup(task_sets.informers, lambda _scope, _error: None),
            served=ServedNamespaces(source, namespaces),
            task_sets=task_sets,
            threads=DaemonThreads(16),
            metrics=ArgoAgentMetrics(),
            guard=lambda: None,
            everywhere=False,
            cross_namespace=False,
        )
    )


def _write_at_once(writer: ResultWriter, reports: list[PendingResult]) -> list[bool | BaseException]:
    async def write() -> list[bool | BaseException]:
        writes: list[Coroutine[Any, Any, bool]] = [writer.write(report) for report in reports]
        return await asyncio.gather(*writes, return_exceptions=True)

    return asyncio.run(write())


def test_results_that_come_at_once_are_written_together(
    cluster: Cluster, argo: Argo, tasks: dict[str, OpenTask], patches: list[set[str]]
) -> None:
    """While the first result is being written, the others wait, and are then written by one request. None is
    rejected because another one was faster."""
    written = _write_at_once(_writer(cluster), [PendingResult(task, None, DONE) for task in tasks.values()])

    assert written == [True] * STEPS
    assert [len(nodes) for nodes in patches] == [1, STEPS - 1]
    assert all(argo.result("w", node) == DONE.to_node() for node in tasks)


def test_a_request_is_of_limited_size(
    cluster: Cluster, tasks: dict[str, OpenTask], patches: list[set[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results that are too large for one request are written by several, and each is written."""
    size = len(json.dumps(DONE.to_node()))
    monkeypatch.setattr(result_writer, "MAX_BYTES", 5 * size)

    written = _write_at_once(_writer(cluster), [PendingResult(task, None, DONE) for task in tasks.values()])

    assert written == [True] * STEPS
    assert [len(nodes) for nodes in patches] == [1, 5, 5, 5, 5, 3]
    assert set.union(*patches) == set(tasks)


def test_a_step_that_is_gone_is_left_out(
    cluster: Cluster, argo: Argo, tasks: dict[str, OpenTask], patches: list[set[str]]
) -> None:
    """Among the results that are written together, one of a step that was retried or timed out meanwhile is
    not written."""
    workflow = argo.workflow("w")
    reports = [PendingResult(task, step_of(workflow, task), DONE) for task in tasks.values()]
    argo.retry("w", "n3", body("collect", name="mnist"), "2026-01-01T01:00:00Z")
    argo.fail("w", "n4")

    written = _write_at_once(_writer(cluster), reports)

    late = {report.task.key.node for report, done in zip(reports, written, strict=True) if not done}
    assert late == {"n3", "n4"}
    assert set.union(*patches) == set(tasks) - late


def test_a_rejected_result_costs_only_its_own_step(
    cluster: Cluster, tasks: dict[str, OpenTask], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the API server rejects one of the results that are written together, the others are written."""
    patch = client.patch

    def reject(*arguments: Any) -> Any:
        if "n5" in arguments[3]["status"]["nodes"]:
            raise InvalidError("the message is not accepted")
        return patch(*arguments)

    monkeypatch.setattr(client, "patch", reject)
    reports = [PendingResult(task, None, DONE) for task in tasks.values()]

    written = _write_at_once(_writer(cluster), reports)

    errors = {
        report.task.key.node: outcome
        for report, outcome in zip(reports, written, strict=True)
        if outcome is not True
    }
    assert set(errors) == {"n5"}
    assert isinstance(errors["n5"], EdlError)
