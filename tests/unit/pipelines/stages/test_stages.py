"""What each stage does on an API server. A stage may begin any number of times."""

import time
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError, ManifestError, NotFoundError, PlanFailedError
from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.catalog import STAGES, stage_of
from edl_workflows.pipelines.waiting.results import Done, Failed, InProgress, Skipped
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from tests.airflow.support import StandIn, create_ps_pod, elastic_job, eventually, jobs, plans
from tests.cases.stages import STAGE_CASES
from tests.unit.pipelines.stages.stage_runs import ME, RETRY, begin, run


@pytest.mark.parametrize(
    "wanted",
    [{"phases": ["Running"]}, {"step": "100"}, {"condition": "Ready"}, {"phases": ["Running"], "step": 100}],
    ids="+".join,
)
def test_wait_for_a_job_that_comes_later(cluster: Cluster, stand_in: StandIn, wanted: dict[str, Any]) -> None:
    """The wait may start before the job exists, and ends with its phase, step or condition."""
    handle = begin(cluster, "wait", name="mnist", **wanted)
    assert isinstance(driver.check_now(cluster, handle), InProgress)
    client.create(cluster, elastic_job("mnist"))

    result = driver.wait_for_goal(ClusterSource.of(cluster), handle, time.time() + 30)

    assert isinstance(result, Done)
    assert result.outputs.step == 100


def test_suspend_and_resume(cluster: Cluster, stand_in: StandIn) -> None:
    """Suspend and resume wait until the controller has carried out the change, and may be repeated."""
    client.create(cluster, elastic_job("mnist"))

    assert run(cluster, "suspend", name="mnist").phase == "Suspended"
    assert run(cluster, "suspend", name="mnist").phase == "Suspended"
    assert run(cluster, "resume", name="mnist").phase == "Running"


CHANGES = {name: cases.change for name, cases in STAGE_CASES.items() if cases.change is not None}
"""Each stage that changes a job, or asks for its plan."""


def test_every_stage_that_changes_a_job_is_tried() -> None:
    """The cases of all stages have a change, except of those that begin, watch or end a job."""
    rest = {"submit", "wait", "wait-plan", "collect", "cancel", "delete"}
    changes = {stage.name for stage in STAGES} - rest
    assert CHANGES.keys() == changes, "the cases of a stage that changes a job have a `change`"


def test_a_finished_job_is_neither_suspended_nor_changed(cluster: Cluster, stand_in: StandIn) -> None:
    """On a job that has ended, no change creates or edits anything. The caller chooses whether the stage is
    skipped, succeeds or fails."""
    run(cluster, "submit", manifest=elastic_job("mnist", ends="Succeeded"))

    before = jobs(cluster)["mnist"]

    for stage, values in CHANGES.items():
        for choice, expected in (("skip", Skipped), ("succeed", Done), ("fail", Failed)):
            handle = begin(cluster, stage, **values, if_finished=choice)
            result = driver.check_now(cluster, handle)
            assert type(result) is expected, (stage, choice, result)
    assert not plans(cluster)
    assert jobs(cluster)["mnist"] == before


def test_scale_makes_one_manual_plan_owned_by_the_job(cluster: Cluster, stand_in: StandIn) -> None:
    """The stage creates one manual ScalePlan, however often it begins, and names the task as its reason. The
    job owns it, so that it is deleted with the job."""
    job = client.create(cluster, elastic_job("mnist"))
    request: dict[str, Any] = {
        "job": "mnist",
        "replicas": {"worker": {"replicas": "3", "resource": {"cpu": 2}}},
    }

    outputs = [run(cluster, "scale", who, **request) for who in (ME, RETRY)]

    assert outputs[0] == outputs[1]
    assert (outputs[0].job, outputs[0].phase) == ("mnist", "Succeeded")
    (plan,) = plans(cluster).values()
    assert plan["metadata"]["labels"] == {"elasticjob.dlrover/name": "mnist", "scale-type": "manual"}
    assert plan["spec"]["replicaResourceSpecs"] == {"worker": {"replicas": 3, "resource": {"cpu": "2"}}}
    assert plan["metadata"]["ownerReferences"][0]["uid"] == job["metadata"]["uid"]
    assert plan["spec"]["reason"] == ME.requester


def test_checkpoint_says_where_it_is(cluster: Cluster, stand_in: StandIn) -> None:
    """The stage creates a plan that asks for a checkpoint only, and its outputs have the checkpoint's place
    and step."""
    client.create(cluster, elastic_job("mnist"))

    outputs = run(cluster, "checkpoint", job="mnist")

    assert outputs.checkpoint is not None
    assert (outputs.checkpoint.uri, outputs.checkpoint.step) == ("/ck/120", 120)


def test_migration_names_the_pods_that_hold_the_ranks(cluster: Cluster, stand_in: StandIn) -> None:
    """The request names ranks, and the plan names the pods that hold these ranks."""
    client.create(cluster, elastic_job("mnist"))
    create_ps_pod(cluster, "mnist", node_id=7, rank=0)

    outputs = run(cluster, "migrate-ps", job="mnist", replicas=3, migrate={"0": {"cpu": "2"}})

    assert (outputs.resumed_step, outputs.stall_seconds) == (121, 0.5)
    (plan,) = plans(cluster).values()
    assert plan["spec"]["migratePods"][0]["name"] == "mnist-edljob-ps-7"
    assert plan["spec"]["replicaResourceSpecs"]["ps"]["replicas"] == 3


def test_migration_can_be_followed_in_two_steps(cluster: Cluster, stand_in: StandIn) -> None:
    """The first wait ends when the new servers are ready, the second when training continues on them."""
    client.create(cluster, elastic_job("mnist"))
    stand_in.hold = ScalePlanPhase.RESTARTING

    begun = run(cluster, "migrate-ps", job="mnist", replicas=3, until="Restarting")
    stand_in.hold = ScalePlanPhase.SUCCEEDED
    done = run(cluster, "wait-plan", name=begun.name)

    assert (begun.phase, done.phase) == ("Restarting", "Succeeded")


def test_a_plan_that_fails_fails_the_stage_and_a_retry_makes_another(
    cluster: Cluster, stand_in: StandIn
) -> None:
    """A failed migration leaves the job on its old servers and fails the stage. The next attempt creates
    another plan."""
    client.create(cluster, elastic_job("mnist"))
    stand_in.fail = True
    with pytest.raises(PlanFailedError, match="StepTimeout: rolled back; the job goes on as before"):
        run(cluster, "migrate-ps", job="mnist", replicas=3)

    stand_in.fail = False
    assert run(cluster, "migrate-ps", RETRY, job="mnist", replicas=3).phase == "Succeeded"


@pytest.mark.parametrize(
    ("stage", "request_", "error", "says"),
    [
        ("scale", {"job": "absent", "replicas": {"worker": {"replicas": 1}}}, NotFoundError, "absent"),
        (
            "scale",
            {"job": "mnist", "replicas": {"chief": {"replicas": 1}}},
            ManifestError,
            "replicas.chief: the job has no such role",
        ),
        (
            "scale",
            {"job": "mnist", "replicas": {"worker": {"replica": 1}}},
            ManifestError,
            "replicas.worker.replica",
        ),
        (
            "migrate-ps",
            {"job": "mnist", "migrate": {5: {"cpu": "1"}}},
            ManifestError,
            "migrate.5: no parameter server of this rank",
        ),
        ("migrate-ps", {"job": "mnist"}, ManifestError, "there is nothing to do"),
        ("suspend", {"name": "absent"}, NotFoundError, "absent"),
        ("wait", {"name": ""}, ManifestError, "name"),
        ("submit", {"manifest": {"kind": "Elasticjob"}}, InvalidError, "no kind of this package"),
        (
            "submit",
            {"manifest": {"kind": "ScalePlan", "metadata": {"name": "x"}}},
            InvalidError,
            "is not a job",
        ),
    ],
)
def test_wrong_requests_get_one_clear_error(
    cluster: Cluster, stage: str, request_: dict[str, Any], error: type[Exception], says: str
) -> None:
    """The error names the argument, and nothing is created."""
    client.create(cluster, elastic_job("mnist"))

    with pytest.raises(error, match=says):
        begin(cluster, stage, **request_)
    assert not plans(cluster)
    assert len(jobs(cluster)) == 1


def test_delete_waits_until_the_job_is_gone(cluster: Cluster) -> None:
    """A job that does not exist counts as deleted."""
    client.create(cluster, elastic_job("mnist"))

    run(cluster, "delete", name="mnist")
    run(cluster, "delete", name="mnist")

    assert not jobs(cluster)


def test_collect_tells_what_is(cluster: Cluster, stand_in: StandIn) -> None:
    """`collect` returns the job's present state without waiting."""
    client.create(cluster, elastic_job("mnist"))
    eventually(lambda: jobs(cluster)["mnist"].get("status"), "a status")

    assert run(cluster, "collect", name="mnist").phase == "Running"


def test_a_plan_is_no_job_to_wait_for(cluster: Cluster) -> None:
    """Waiting for a ScalePlan with ``wait`` is an error that names ``wait-plan``."""
    with pytest.raises(InvalidError, match="wait-plan"):
        begin(cluster, "wait", name="mnist", kind="ScalePlan")


def test_every_stage_is_found_by_its_name() -> None:
    """An unknown name is an error that lists the stages."""
    assert all(stage_of(stage.name) is stage for stage in STAGES)
    with pytest.raises(InvalidError, match="stages are submit, wait"):
        stage_of("submitt")
