"""The agent against a real API server: what becomes of a job whose step has gone."""

from typing import Any

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests.airflow.support import StandIn, elastic_job, eventually, jobs, plans
from tests.unit.pipelines.argo.agent.support import Argo, answered, body, running


@pytest.mark.parametrize("how", ["vanish", "complete", "delete"])
def test_a_vanished_step_cancels_its_job(cluster: Cluster, argo: Argo, stand_in: StandIn, how: str) -> None:
    """If a step's task is gone, or its workflow has ended or was deleted, the job is deleted and no result is
    written."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job()))
        eventually(lambda: "mnist" in jobs(cluster), "the job")
        match how:
            case "vanish":
                argo.vanish("w", "n1")
            case "complete":
                argo.complete("w")
            case "delete":
                argo.delete("w")
        eventually(lambda: jobs(cluster) == {}, "the job is deleted")
    if how != "delete":
        assert argo.result("w", "n1") is None


def test_a_job_may_be_suspended_instead_and_a_retry_resumes_it(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """The suspended job is resumed by the next attempt of the step, which has another node."""
    argo.start("w")
    step = body("submit", manifest=elastic_job(), on_cancel="suspend")
    with running(cluster):
        argo.add("w", "n1", step, name="w.train(0)")
        eventually(lambda: "mnist" in jobs(cluster), "the job")
        uid = jobs(cluster)["mnist"]["metadata"]["uid"]
        argo.fail("w", "n1")
        eventually(lambda: jobs(cluster)["mnist"]["spec"].get("suspend") is True, "suspended")
        argo.add("w", "n2", step, name="w.train(1)")
        eventually(lambda: jobs(cluster)["mnist"]["spec"].get("suspend") is False, "resumed")
        stand_in.end("mnist")
        answered(argo, "w", "n2", "Succeeded")
    job = jobs(cluster)["mnist"]
    assert job["metadata"]["uid"] == uid
    assert names.SUSPENDED_ANNOTATION not in job["metadata"]["annotations"]


def test_keep_leaves_the_job_as_it_is(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """With ``onCancel: keep`` the job stays, while the job of another step is deleted."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job("kept"), on_cancel="keep"))
        argo.add("w", "n2", body("submit", manifest=elastic_job("gone")))
        eventually(lambda: set(jobs(cluster)) == {"kept", "gone"}, "both jobs")
        argo.complete("w")
        eventually(lambda: set(jobs(cluster)) == {"kept"}, "one is deleted")
    assert not jobs(cluster)["kept"]["spec"].get("suspend")


def test_what_vanished_while_no_agent_ran_is_cancelled_at_its_start(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """When the agent starts, it deletes the jobs of steps that vanished in the meantime. Jobs with the policy
    ``keep``, jobs of others, and those of live steps stay."""
    kept = body("submit", manifest=elastic_job("kept"), on_cancel="keep")
    argo.start("w")
    argo.start("deleted")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job("gone")))
        argo.add("w", "n2", body("submit", manifest=elastic_job("suspended"), on_cancel="suspend"))
        argo.add("w", "n3", kept)
        argo.add("w", "n4", body("submit", manifest=elastic_job("alive")))
        argo.add("deleted", "n1", body("submit", manifest=elastic_job("orphan")))
        eventually(lambda: len(jobs(cluster)) == 5, "the jobs")
    client.create(cluster, _owned_by(elastic_job("foreign"), "airflow/dag/run/task/-1"))
    for node in ("n1", "n2", "n3"):
        argo.fail("w", node)
    argo.delete("deleted")
    with running(cluster):
        eventually(lambda: set(jobs(cluster)) == {"suspended", "kept", "alive", "foreign"}, "two are deleted")
        eventually(lambda: jobs(cluster)["suspended"]["spec"].get("suspend") is True, "one is suspended")
        stand_in.end("alive")
        answered(argo, "w", "n4", "Succeeded")
    assert not jobs(cluster)["kept"]["spec"].get("suspend")


def _owned_by(manifest: dict[str, Any], owner: str) -> dict[str, Any]:
    marks = StageIdentity(owner, on_cancel="delete").annotations
    return {**manifest, "metadata": {**manifest["metadata"], "annotations": marks}}


def test_a_step_in_error_leaves_its_job_for_a_retry_until_the_workflow_ends(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """A new agent keeps the job of a step in phase Error until the workflow ends."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job("left")))
        argo.add("w", "n2", body("submit", manifest=elastic_job("gone")))
        eventually(lambda: len(jobs(cluster)) == 2, "the jobs")
    argo.fail("w", "n1", "Error")
    argo.fail("w", "n2")
    with running(cluster):
        eventually(lambda: set(jobs(cluster)) == {"left"}, "the other is deleted")
        argo.complete("w")
        eventually(lambda: jobs(cluster) == {}, "it is deleted with the workflow")


def test_a_plan_that_has_begun_is_not_torn(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """Cancelling a migration that has begun does not withdraw its plan."""
    stand_in.hold = type(stand_in.hold)("Migrating")
    client.create(cluster, elastic_job())
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("migrate-ps", job="mnist", replicas=3))
        eventually(
            lambda: [p.get("status", {}).get("phase") for p in plans(cluster).values()] == ["Migrating"],
            "it migrates",
        )
        argo.fail("w", "n1")
        argo.start("v")
        argo.add("v", "n1", body("collect", name="mnist"))
        answered(argo, "v", "n1", "Succeeded")
    assert len(plans(cluster)) == 1


def test_a_job_whose_step_vanishes_before_the_next_agent_has_taken_it_up(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """If a step vanishes before the next agent has started to serve it, that agent finds its job by the marks
    and cancels it."""
    argo.start("w")
    argo.start("other")
    step = body("submit", manifest=elastic_job())
    with running(cluster):
        argo.add("w", "n1", step)
        eventually(lambda: "mnist" in jobs(cluster), "the job")
    argo.drop_node("w", "n1")
    with running(cluster):
        argo.add("other", "n1", body("collect", name="mnist"))
        answered(argo, "other", "n1", "Succeeded")
        argo.vanish("w", "n1")
        eventually(lambda: jobs(cluster) == {}, "the job is deleted")
