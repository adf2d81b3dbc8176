"""Messages of steps that wait: written, taken over by Argo, removed; and never in the place of a result."""

import pytest

from edl_workflows.pipelines.argo.agent import progress
from edl_workflows.pipelines.argo.agent.reporting import remove_progress, report_progress, report_results
from edl_workflows.pipelines.argo.agent.results import StepResult
from edl_workflows.pipelines.argo.agent.tasks import TaskKey, WorkflowKey
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.argo.agent.support import Argo, body, running
from tests.unit.pipelines.argo.agent.test_reporting import stale

DONE = StepResult("Succeeded", "done")


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Messages without pauses."""
    monkeypatch.setattr(progress, "STEP_SECONDS", 0.05)
    monkeypatch.setattr(progress, "TAKEN_PAUSES", (0.05,) * 2000)


@pytest.mark.usefixtures("fast")
def test_a_step_that_waits_says_what_its_job_does(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """The message changes with phase, nodes and step. It is removed once the workflow has it, so that Argo
    does not write the workflow again and again, and the result comes after it."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job("mnist")))
        eventually(
            lambda: "is Running; ready: worker 1/1; step 100" in argo.take_message("w", "n1"), "message"
        )
        eventually(lambda: argo.entry("w", "n1") is None, "the message is removed")
        stand_in.end("mnist")
        eventually(lambda: argo.result("w", "n1") is not None, "the result")

    assert argo.take("w", "n1")["phase"] == "Succeeded"


@pytest.mark.usefixtures("fast")
def test_a_step_whose_job_is_queued_says_so(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """The message names the queue, and Argo expands nothing in it."""
    stand_in.stop()
    manifest = elastic_job("mnist")
    manifest["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "nightly"}
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=manifest))
        eventually(lambda: "mnist" in jobs(cluster), "the job")
        status = {"phase": "Suspended", "reason": "Queued", "message": "{{workflow.name}}"}
        client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)
        eventually(lambda: "in the queue nightly of Kueue" in argo.take_message("w", "n1"), "the queue")
        message = argo.workflow("w")["status"]["nodes"]["n1"]["message"]

    assert "{{" not in message


def test_a_message_of_an_agent_that_died_is_no_answer(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """A message that a dead agent left does not count as a result, and the next agent serves the step."""
    uid = argo.start("w")
    argo.add("w", "n1", body("submit", manifest=elastic_job(ends="Succeeded")))
    key = TaskKey(WorkflowKey(cluster.namespace, "w", uid), "n1")
    assert report_progress(cluster, stale(cluster), key, "is Running")
    with running(cluster):
        eventually(lambda: argo.result("w", "n1") is not None, "the result")

    assert argo.take("w", "n1")["phase"] == "Succeeded"


def test_no_message_takes_the_place_of_a_result(cluster: Cluster, argo: Argo) -> None:
    """A message never replaces a result, even if its writer has not seen the result, and removing a message
    never removes a result."""
    uid = argo.start("w")
    argo.add("w", "n1", body("collect", name="mnist"))
    key = TaskKey(WorkflowKey(cluster.namespace, "w", uid), "n1")
    seen = [stale(cluster), stale(cluster)]
    assert report_results(cluster, stale(cluster), {key: DONE})

    assert not report_progress(cluster, seen[0], key, "is Running")
    assert not remove_progress(cluster, seen[1], key)
    assert argo.result("w", "n1") == {"phase": "Succeeded", "message": "done"}


@pytest.mark.usefixtures("fast")
def test_a_message_that_meets_a_deadline_costs_no_cancellation(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """If Argo takes a message over just when it ends the workflow for its deadline, the task set keeps the
    task for ever. The agent sees that the workflow has ended, deletes the job, and makes no other."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job("mnist")))
        eventually(lambda: argo.entry("w", "n1") is not None, "a message")
        argo.end_workflow("w")
        eventually(lambda: jobs(cluster) == {}, "the job is deleted")
        argo.start("other")
        argo.add("other", "n1", body("submit", manifest=elastic_job("fine", ends="Succeeded")))
        eventually(lambda: argo.result("other", "n1") is not None, "another step is served")

    assert set(jobs(cluster)) == {"fine"}
    assert argo.entry("w", "n1") is None


def test_the_next_agent_ends_what_such_a_workflow_left(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """An agent that starts after such an end deletes the job of the step, and leaves other jobs alone."""
    argo.start("w")
    argo.start("other")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job("mnist")))
        argo.add("other", "n1", body("submit", manifest=elastic_job("alive")))
        eventually(lambda: set(jobs(cluster)) == {"mnist", "alive"}, "the jobs")
    argo.end_workflow("w")
    with running(cluster):
        eventually(lambda: set(jobs(cluster)) == {"alive"}, "its job is deleted")
        stand_in.end("alive")
        eventually(lambda: argo.result("other", "n1") is not None, "the other step is served")

    assert argo.result("w", "n1") is None
