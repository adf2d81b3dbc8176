"""What guards a step that Argo has ended against a late result, and a job whose step is alive against a late
cancellation."""

import pytest

from edl_workflows.pipelines.argo.agent.orphans import BegunObject, OrphanVerdict, judge_orphan, list_begun
from edl_workflows.pipelines.argo.agent.reporting import report_results
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.tasks import TaskKey, WorkflowKey
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS
from edl_workflows.pipelines.waiting.goals import ExistsGoal, Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer_group import NamespacedInformer
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Scope
from tests.airflow.support import elastic_job, eventually
from tests.unit.pipelines.argo.agent.support import Argo, body, running

DONE = StepResult("Succeeded", "done")


@pytest.fixture
def key(cluster: Cluster, argo: Argo) -> TaskKey:
    """A task of a workflow."""
    uid = argo.start("w")
    argo.add("w", "n1", body("collect", name="mnist"))
    return TaskKey(WorkflowKey(cluster.namespace, "w", uid), "n1")


def stale(cluster: Cluster) -> NamespacedInformer:
    """A watch that has seen the task sets as they are now, and sees nothing more."""
    seen = NamespacedInformer(ClusterSource.of(cluster), Scope(WORKFLOW_TASK_SETS), (cluster.namespace,))
    seen.put(client.get(cluster, WORKFLOW_TASK_SETS, "w"))
    return seen


def test_a_result_is_written_past_changes_that_leave_the_task(
    cluster: Cluster, argo: Argo, key: TaskKey
) -> None:
    """If the task set changed in the meantime, the write is rejected, the task set read again, and the result
    written."""
    seen = stale(cluster)
    argo.add("w", "n2", body("collect", name="mnist"))
    assert report_results(cluster, seen, {key: DONE})
    assert argo.result("w", "n1") == {"phase": "Succeeded", "message": "done"}


@pytest.mark.parametrize("how", ["vanish", "complete", "delete"])
def test_a_late_result_is_not_written(cluster: Cluster, argo: Argo, key: TaskKey, how: str) -> None:
    """If the task is gone, its result is not written, even if the agent's watch has not seen that."""
    seen = stale(cluster)
    match how:
        case "vanish":
            argo.vanish("w", "n1")
        case "complete":
            argo.complete("w")
        case "delete":
            argo.delete("w")
    assert not report_results(cluster, seen, {key: DONE})
    assert how == "delete" or argo.result("w", "n1") is None


def test_an_answered_task_is_left_alone(cluster: Cluster, argo: Argo, key: TaskKey) -> None:
    """A result that Argo's controller has not taken yet is not written again, even by a new agent."""
    assert report_results(cluster, stale(cluster), {key: DONE})
    before = argo.task_set("w")["metadata"]["resourceVersion"]
    argo.start("other")
    argo.add("other", "n1", {"stage": "fly"})
    with running(cluster):
        eventually(lambda: argo.result("other", "n1") is not None, "another task is answered")
    assert argo.task_set("w")["metadata"]["resourceVersion"] == before


def test_a_step_is_judged_by_what_the_server_says_now(cluster: Cluster, argo: Argo, key: TaskKey) -> None:
    """A step is alive while its task exists. It is left alone while it is in phase Error and its workflow
    runs. Otherwise its object is an orphan."""
    handle = Handle(kind="ElasticJob", namespace=cluster.namespace, name="mnist", goal=ExistsGoal())
    found = BegunObject(key, handle, "delete")
    assert judge_orphan(cluster, found) is OrphanVerdict.ALIVE
    argo.fail("w", "n1", "Error")
    assert judge_orphan(cluster, found) is OrphanVerdict.LEFT
    argo.end_node("w", "n1", "Failed")
    assert judge_orphan(cluster, found) is OrphanVerdict.ORPHANED
    argo.end_node("w", "n1", "Error")
    argo.complete("w")
    assert judge_orphan(cluster, found) is OrphanVerdict.ORPHANED
    other = BegunObject(TaskKey(key.workflow._replace(uid="earlier"), "n1"), handle, "delete")
    assert judge_orphan(cluster, other) is OrphanVerdict.ORPHANED


def test_only_objects_of_steps_that_a_cancellation_ends_are_found(cluster: Cluster) -> None:
    """Only objects with complete marks of steps that cancel their jobs are found: not those of other engines,
    of steps that keep their jobs, or those that have ended."""
    owner = "argo/ns/w/uid/w[0].train"
    marks = {
        "ours": StageIdentity(owner, "n1@t", on_cancel="suspend"),
        "kept": StageIdentity(owner, "n1@t", on_cancel="keep"),
        "unmarked": StageIdentity(owner, "n1@t"),
        "broken": StageIdentity("argo/ns", "n1@t", on_cancel="delete"),
        "foreign": StageIdentity("airflow/dag/run/task/-1", on_cancel="delete"),
    }
    for name, identity in marks.items():
        manifest = elastic_job(name)
        manifest["metadata"]["annotations"] = identity.annotations
        client.create(cluster, manifest)
    for name in ("ended", "other"):
        manifest = elastic_job(name)
        manifest["metadata"]["annotations"] = marks["ours"].annotations
        client.create(cluster, manifest)
    client.patch_status(cluster, ELASTIC_JOBS, "ended", {"phase": "Failed"})
    client.delete(cluster, ELASTIC_JOBS, "other")
    (found,) = list_begun(cluster, cluster.namespace, lambda _key: True)
    assert (found.handle.name, found.action) == ("ours", "suspend")
    assert found.key == TaskKey(WorkflowKey("ns", "w", "uid"), "n1")
