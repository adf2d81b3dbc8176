"""What the end of a pipeline or a task does to the jobs and plans that it created."""

import pytest

from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, SCALE_PLANS
from tests.airflow.support import StandIn, elastic_job, eventually, jobs, plans
from tests.unit.pipelines.stages.stage_runs import RETRY, begin, run


def test_cancel_deletes_what_the_stage_made(cluster: Cluster) -> None:
    """The first cancellation deletes the job; a second one finds nothing to do."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))

    assert ownership.cancel_object(cluster, handle)
    assert not ownership.cancel_object(cluster, handle)
    assert not jobs(cluster)


def test_cancel_can_suspend_instead(cluster: Cluster) -> None:
    """A cancellation with ``suspend`` keeps the job with its data position and checkpoints."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))

    assert ownership.cancel_object(cluster, handle, "suspend")
    assert jobs(cluster)["mnist"]["spec"]["suspend"] is True


def test_a_retry_resumes_what_a_cancellation_suspended(cluster: Cluster) -> None:
    """The retry resumes the job that the cancellation suspended; otherwise it would wait for a job without
    pods. A job that somebody else suspended stays suspended."""
    handle = begin(cluster, "submit", manifest=elastic_job("mnist"))
    ownership.cancel_object(cluster, handle, "suspend")
    begin(cluster, "submit", RETRY, manifest=elastic_job("mnist"))
    assert jobs(cluster)["mnist"]["spec"]["suspend"] is False

    handle = begin(cluster, "submit", manifest=elastic_job("other"))
    client.patch(cluster, ELASTIC_JOBS, "other", {"spec": {"suspend": True}})
    ownership.cancel_object(cluster, handle, "suspend")
    begin(cluster, "submit", RETRY, manifest=elastic_job("other"))
    assert jobs(cluster)["other"]["spec"]["suspend"] is True


def test_a_late_cancel_of_an_earlier_attempt_touches_nothing(cluster: Cluster) -> None:
    """Airflow may kill the trigger of a cleared task after the next attempt has begun. The late cancellation
    changes nothing."""
    first = begin(cluster, "submit", manifest=elastic_job("mnist"))
    begin(cluster, "submit", RETRY, manifest=elastic_job("mnist"))

    assert not ownership.cancel_object(cluster, first)
    assert "mnist" in jobs(cluster)


def test_cancel_leaves_a_finished_job_and_a_successor_alone(cluster: Cluster, stand_in: StandIn) -> None:
    """A cancellation does not touch a job that has ended, or a later job of the same name."""
    finished = begin(cluster, "submit", manifest=elastic_job("done", ends="Succeeded"))
    eventually(lambda: jobs(cluster)["done"].get("status", {}).get("phase") == "Succeeded", "success")
    old = begin(cluster, "submit", manifest=elastic_job("mnist"))
    client.delete(cluster, ELASTIC_JOBS, "mnist")
    begin(cluster, "submit", manifest=elastic_job("mnist"))

    assert not ownership.cancel_object(cluster, finished)
    assert not ownership.cancel_object(cluster, old)
    assert set(jobs(cluster)) == {"done", "mnist"}


def test_a_plan_is_withdrawn_only_before_its_first_step(cluster: Cluster) -> None:
    """A cancellation withdraws a plan that has not begun. A plan that has begun ends by itself."""
    client.create(cluster, elastic_job("mnist"))
    pending = begin(cluster, "migrate-ps", job="mnist", replicas=3)
    under_way = begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    client.patch_status(cluster, SCALE_PLANS, under_way.name, {"phase": "Scaling"})

    assert ownership.cancel_object(cluster, pending)
    assert not ownership.cancel_object(cluster, under_way)
    assert set(plans(cluster)) == {under_way.name}


def test_a_plan_can_only_be_withdrawn(cluster: Cluster) -> None:
    """A killed task with the policy ``suspend`` withdraws its pending plan, since a plan can't be
    suspended."""
    client.create(cluster, elastic_job("mnist"))
    pending = begin(cluster, "migrate-ps", job="mnist", replicas=3)

    assert ownership.cancel_object(cluster, pending, "suspend")
    assert plans(cluster) == {}


MINE = "argo/default/train/1f0e/"


def submit_as(cluster: Cluster, owner: str) -> Handle:
    return begin(cluster, "submit", StageIdentity(f"{owner}train.submit"), manifest=elastic_job("mnist"))


@pytest.mark.parametrize("action", ["delete", "suspend"])
def test_cancel_ends_a_job_of_its_own_pipeline(cluster: Cluster, stand_in: StandIn, action: str) -> None:
    """The stage waits until the job is deleted or suspended. Run again, it does nothing."""
    submit_as(cluster, MINE)

    for _ in range(2):
        run(cluster, "cancel", name="mnist", owner=MINE, action=action)

        left = client.find(cluster, ELASTIC_JOBS, "mnist")
        assert (left is None) == (action == "delete")
        assert left is None or left["status"]["phase"] == "Suspended"


@pytest.mark.parametrize(("owner", "action"), [("argo/default/train/other/", "delete"), (MINE, "keep")])
def test_cancel_leaves_what_is_not_to_be_touched(
    cluster: Cluster, stand_in: StandIn, owner: str, action: str
) -> None:
    """A job of another workflow is left alone, even if only the uid of the workflow differs. With the policy
    ``keep``, every job is."""
    before = submit_as(cluster, MINE)

    run(cluster, "cancel", name="mnist", owner=owner, action=action)

    job = client.get(cluster, ELASTIC_JOBS, "mnist")
    assert (job["metadata"]["uid"], job["spec"].get("suspend", False)) == (before.uid, False)


def test_cancel_leaves_what_has_ended_or_is_absent(cluster: Cluster, stand_in: StandIn) -> None:
    """A job that has ended is kept and shown. A job that does not exist is no error."""
    run(cluster, "submit", StageIdentity(f"{MINE}a"), manifest=elastic_job("mnist", ends="Succeeded"))

    assert run(cluster, "cancel", name="mnist", owner=MINE).phase == "Succeeded"
    assert run(cluster, "cancel", name="absent", owner=MINE).phase == ""


def test_cancel_says_what_it_does_and_why(cluster: Cluster, stand_in: StandIn) -> None:
    """The log of a teardown tells whether the job was ended."""
    told: list[str] = []
    who = StageIdentity(f"{MINE}exit", notify=told.append)
    job = f"ElasticJob {cluster.namespace}/mnist"

    begin(cluster, "cancel", who, name="mnist", owner=MINE)
    submit_as(cluster, MINE)
    begin(cluster, "cancel", who, name="mnist", owner="argo/default/other/")
    begin(cluster, "cancel", who, name="mnist", owner=MINE, action="keep")
    begin(cluster, "cancel", who, name="mnist", owner=MINE, action="suspend")
    stand_in.end("mnist")
    begin(cluster, "resume", name="mnist")
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == "Succeeded", "the job's end")
    begin(cluster, "cancel", who, name="mnist", owner=MINE)

    assert told == [
        f"{job} does not exist: there is nothing to cancel",
        f"{job} is left alone: it belongs to {MINE}train.submit",
        f"{job} is left alone: the action is keep",
        f"{job} has not ended: it is suspended",
        f"{job} is left alone: it has ended (Succeeded)",
    ]
