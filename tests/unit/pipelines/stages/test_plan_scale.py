"""What a job's optimizer would change: asked for, approved by whomever, and carried out; and numbers that
stay."""

import time
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError, InvalidError, ManifestError
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.kubernetes.api import TRAINING_JOBS
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.waiting.results import Done, InProgress, Skipped
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import StandIn, elastic_job, eventually, jobs, plans
from tests.unit.pipelines.stages.stage_runs import ME, begin, run

PLANNED: dict[str, Any] = {
    "optimizer": "local",
    "stage": "job_stage_running",
    "replicaResourceSpecs": {"worker": {"replicas": 3, "resource": {"cpu": "2"}}},
    "migratePods": [{"name": "mnist-edljob-ps-0", "type": "ps", "resource": {"cpu": "4"}}],
    "reasons": {"worker": "3 workers gain", "mnist-edljob-ps-0": "it is hot"},
    "notes": ["ps: 2 are enough"],
}
"""As a master writes it into the status."""
NOTHING = {
    "stage": "job_stage_running",
    "replicaResourceSpecs": {},
    "migratePods": [],
    "notes": ["all is well"],
}


def job(cluster: Cluster, annotation: str = "", mode: str = "single-job") -> None:
    """A parameter-server job."""
    manifest = elastic_job("mnist")
    manifest["spec"]["optimizeMode"] = mode
    if annotation:
        manifest["metadata"]["annotations"][autoscaling.ANNOTATION] = annotation
    client.create(cluster, manifest)


def planned(cluster: Cluster, plan: dict[str, Any] | None) -> None:
    """What its master says."""
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"autoscaling": plan})


def annotation(cluster: Cluster) -> str | None:
    """Whether autoscalers may change it."""
    metadata = jobs(cluster)["mnist"]["metadata"]
    value: str | None = (metadata.get("annotations") or {}).get(autoscaling.ANNOTATION)
    return value


def test_a_plan_is_told_and_nothing_is_changed(cluster: Cluster, stand_in: StandIn) -> None:
    """The stage returns the plan with counts, sizes, migrations and reasons, whether or not the job may be
    autoscaled."""
    job(cluster)
    planned(cluster, PLANNED)

    plan = run(cluster, "plan-scale", name="mnist").to_dict()["plan"]

    assert plan == {
        "optimizer": "local",
        "stage": "job_stage_running",
        "replicas": {"worker": {"replicas": 3, "resource": {"cpu": "2"}}},
        "migrate": [
            {
                "name": "mnist-edljob-ps-0",
                "id": 0,
                "rankIndex": 0,
                "service": "",
                "type": "ps",
                "resource": {"cpu": "4"},
            }
        ],
        "reasons": PLANNED["reasons"],
        "notes": PLANNED["notes"],
        "empty": False,
    }
    assert not plans(cluster)


def test_a_plan_that_comes_later_is_waited_for(cluster: Cluster, stand_in: StandIn) -> None:
    """The stage waits until there is a plan and, if asked for, until a plan changes something."""
    job(cluster)
    patient = begin(cluster, "plan-scale", name="mnist", wait_for_change="true")
    quick = begin(cluster, "plan-scale", name="mnist")
    assert isinstance(driver.check_now(cluster, quick), InProgress)

    planned(cluster, NOTHING)
    source = ClusterSource.of(cluster)
    first = driver.wait_for_goal(source, quick, time.time() + 30)
    assert isinstance(first, Done)
    assert first.outputs.plan is not None
    assert (first.outputs.plan.empty, first.outputs.plan.notes) == (True, ["all is well"])
    still = driver.check_now(cluster, patient)
    assert isinstance(still, InProgress)
    assert still.message == "has an empty plan: all is well"

    planned(cluster, PLANNED)
    second = driver.wait_for_goal(source, patient, time.time() + 30)
    assert isinstance(second, Done)


def test_no_plan_is_told_of_a_job_that_is_being_changed(cluster: Cluster) -> None:
    """While the job is being changed, a plan from before the change is not returned."""
    job(cluster)
    planned(cluster, PLANNED)
    handle = begin(cluster, "plan-scale", name="mnist")

    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Scaling"})
    assert isinstance(driver.check_now(cluster, handle), InProgress)
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Running"})
    assert isinstance(driver.check_now(cluster, handle), Done)


def test_a_plan_is_applied_as_it_is(cluster: Cluster, stand_in: StandIn) -> None:
    """The stage creates one ScalePlan with the reasons, however often it begins, and switches autoscaling off
    so that the change stays."""
    job(cluster, "true")
    planned(cluster, PLANNED)
    plan = run(cluster, "plan-scale", name="mnist").to_dict()["plan"]

    outputs = [run(cluster, "apply-plan", job="mnist", plan=plan) for _ in range(2)]

    assert outputs[0].phase == "Succeeded"
    (made,) = plans(cluster).values()
    assert made["spec"]["replicaResourceSpecs"] == {"worker": {"replicas": 3, "resource": {"cpu": "2"}}}
    assert [pod["name"] for pod in made["spec"]["migratePods"]] == ["mnist-edljob-ps-0"]
    advised = "mnist-edljob-ps-0: it is hot; worker: 3 workers gain"
    assert made["spec"]["reason"] == f"{advised}; {ME.requester}"
    assert annotation(cluster) == "false"


def test_its_numbers_are_what_scale_takes(cluster: Cluster, stand_in: StandIn) -> None:
    """The replicas of a plan can be passed to `scale`, for a pipeline that does not migrate."""
    job(cluster)
    planned(cluster, PLANNED)
    plan = run(cluster, "plan-scale", name="mnist").to_dict()["plan"]

    assert run(cluster, "scale", job="mnist", replicas=plan["replicas"]).phase == "Succeeded"


def test_an_empty_plan_is_applied_at_once(cluster: Cluster, stand_in: StandIn) -> None:
    """An empty plan creates no ScalePlan and leaves autoscaling on."""
    job(cluster, "true")

    assert run(cluster, "apply-plan", job="mnist", plan={"empty": True}).name == "mnist"
    assert not plans(cluster)
    assert annotation(cluster) == "true"


@pytest.mark.parametrize("given", ["true", "2-8"])
@pytest.mark.parametrize(
    ("stage", "request_"),
    [
        ("scale", {"replicas": {"worker": {"replicas": 3}}}),
        ("migrate-ps", {"replicas": 3}),
        ("apply-plan", {"plan": {"replicas": {"worker": {"replicas": 3}}}}),
    ],
)
def test_who_asks_for_a_number_gets_it(
    cluster: Cluster, stage: str, request_: dict[str, Any], given: str
) -> None:
    """A stage that sets a number switches autoscaling off. It stays off until somebody switches it on;
    repeating the stage does not switch it off again."""
    job(cluster, given)

    begin(cluster, stage, job="mnist", **request_)
    assert annotation(cluster) == "false"
    assert len(plans(cluster)) == 1
    begin(cluster, "autoscale", name="mnist", bounds=given)
    begin(cluster, stage, job="mnist", **request_)
    assert annotation(cluster) == given


def test_a_plan_that_is_refused_leaves_autoscaling_as_it_is(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a quota refuses the plan, the job's autoscaling stays enabled."""
    job(cluster, "2-8")

    def refuse(*_: Any) -> Any:
        raise ForbiddenError("exceeded quota: plans")

    with monkeypatch.context() as patched:
        patched.setattr(client, "create", refuse)
        with pytest.raises(ForbiddenError):
            begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    assert annotation(cluster) == "2-8"


@pytest.mark.parametrize("dies_at", [1, 2])
def test_a_stage_that_dies_after_its_plan_is_made_is_gone_on_with(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, dies_at: int
) -> None:
    """If a stage dies after it has created its plan, the next attempt finds the plan and switches autoscaling
    off. A third one has nothing left to do."""
    job(cluster, "true")
    patch, calls = client.patch, [0]

    def die(*arguments: Any) -> Any:
        calls[0] += 1
        if calls[0] == dies_at:
            raise KeyboardInterrupt
        return patch(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(client, "patch", die)
        with pytest.raises(KeyboardInterrupt):
            begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    assert len(plans(cluster)) == 1
    assert annotation(cluster) == "false"
    begin(cluster, "autoscale", name="mnist", bounds="true")
    begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    assert annotation(cluster) == "true"


def test_a_stage_that_may_not_switch_autoscaling_off_makes_no_plan(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the account may not switch autoscaling off, the autoscaler would undo the change. The stage
    withdraws its plan, and the error says why."""
    job(cluster, "true")

    def refuse(*_: Any) -> Any:
        raise ForbiddenError("may not patch elasticjobs")

    with monkeypatch.context() as patched:
        patched.setattr(client, "patch", refuse)
        with pytest.raises(ForbiddenError):
            begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    assert not plans(cluster)
    assert annotation(cluster) == "true"


@pytest.mark.parametrize(
    ("stage", "request_"),
    [
        ("checkpoint", {}),
        ("scale", {"replicas": {"chief": {"replicas": 1}}}),
        ("apply-plan", {"plan": {"replicas": {"chief": {"replicas": 1}}}}),
    ],
)
def test_who_asks_for_no_number_changes_no_annotation(
    cluster: Cluster, stage: str, request_: dict[str, Any]
) -> None:
    """A request for a checkpoint, or for a number that the job can't have, does not change the annotation."""
    job(cluster, "true")

    if stage == "checkpoint":
        begin(cluster, stage, job="mnist", **request_)
    else:
        with pytest.raises(ManifestError, match=r"replicas\.chief: the job has no such role"):
            begin(cluster, stage, job="mnist", **request_)
    assert annotation(cluster) == "true"


def test_a_job_without_the_annotation_gets_none(cluster: Cluster) -> None:
    """`scale` does not annotate a job that no autoscaler changes."""
    job(cluster)

    begin(cluster, "scale", job="mnist", replicas={"worker": {"replicas": 3}})
    assert annotation(cluster) is None


def test_jobs_without_a_plan_of_their_own(cluster: Cluster, stand_in: StandIn) -> None:
    """For a job without an optimizer of its own, the error says where its plans are shown. For a job that has
    ended, the stage is skipped."""
    job(cluster, mode="manual")
    trainer = {"entrypoint": "t", "min-instance": 1, "max-instance": 2}
    training = {"image": "i", "launcher": "sh", "trainer": trainer}
    head = {"apiVersion": TRAINING_JOBS.api_version, "kind": "TrainingJob", "metadata": {"name": "ctr"}}
    client.create(cluster, head | {"spec": training})

    with pytest.raises(InvalidError, match="--autoscaler-dry-run"):
        begin(cluster, "plan-scale", name="mnist")
    with pytest.raises(InvalidError, match="--autoscaler-dry-run"):
        begin(cluster, "plan-scale", name="ctr", kind="TrainingJob")
    stand_in.end("mnist")
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == "Succeeded", "the end")
    finished = driver.check_now(cluster, begin(cluster, "plan-scale", name="mnist"))
    assert isinstance(finished, Skipped)
    assert "nothing is planned for it any more" in finished.reason
