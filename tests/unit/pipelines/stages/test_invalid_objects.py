"""Objects that the API server admitted and this package refuses: they are shown, changed and deleted as all
others."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.view import JobView
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.catalog import stage_of
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.observed import read_object
from edl_workflows.pipelines.waiting.results import Done, InProgress, StageResult
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster

ME = StageIdentity("tests/invalid")


def tf_job(workers: int, gang: int) -> dict[str, Any]:
    """A TFJob; with a larger gang than it has workers it is invalid, which the API server doesn't see."""
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
    return {
        "apiVersion": TF_JOBS.api_version,
        "kind": TF_JOBS.kind,
        "metadata": {"name": "mnist"},
        "spec": {
            "tfReplicaSpecs": {"Worker": {"replicas": workers, "template": template}},
            "runPolicy": {"schedulingPolicy": {"minAvailable": gang}},
        },
    }


def begin(cluster: Cluster, stage: str, **request: Any) -> StageResult:
    """Begin a stage, and look where it stands."""
    found = stage_of(stage)
    return driver.check_now(cluster, found.begin(cluster, found.request.of(request), ME))


def workers(cluster: Cluster) -> int:
    """How many the job asks for."""
    count: int = client.get(cluster, TF_JOBS, "mnist")["spec"]["tfReplicaSpecs"]["Worker"]["replicas"]
    return count


def to(count: int) -> dict[str, Any]:
    """A request for so many workers."""
    return {"job": "mnist", "kind": "TFJob", "replicas": {"worker": {"replicas": count}}}


@pytest.mark.parametrize("row", kinds.KINDS, ids=lambda row: row.name)
@pytest.mark.parametrize("spec", [{}, {"nonsense": 1}, None], ids=["empty", "unknown field", "no spec"])
def test_each_kind_is_seen_whatever_its_spec(row: Kind, spec: dict[str, Any] | None) -> None:
    """An object with an invalid spec is read with its name, its phase and the reason InvalidSpec."""
    manifest = {
        "apiVersion": row.source.api.api_version,
        "kind": row.name,
        "metadata": {"name": "mnist", "namespace": "team", "uid": "u-1", "generation": 3},
        "spec": spec,
        "status": {"phase": row.failed, "observedGeneration": 3},
    }

    seen = read_object(row.name, manifest)

    assert seen is not None
    if isinstance(seen, JobView):
        assert (seen.name, seen.namespace, seen.uid, seen.phase) == ("mnist", "team", "u-1", "Failed")
    else:
        assert (seen.metadata.uid, seen.status.phase) == ("u-1", "Failed")


def test_an_invalid_job_says_what_is_wrong() -> None:
    """The reason of an invalid job is InvalidSpec, even before a controller has seen it. A job that has ended
    keeps the reason of its end."""
    manifest = tf_job(workers=1, gang=2)

    new = read_object("TFJob", manifest)
    over = read_object(
        "TFJob", manifest | {"status": {"phase": "Succeeded", "reason": "JobSucceeded", "message": "done"}}
    )

    assert isinstance(new, JobView)
    assert isinstance(over, JobView)
    assert (new.phase, new.reason) == ("Pending", "InvalidSpec")
    assert "spec.runPolicy.schedulingPolicy.minAvailable" in new.message
    assert (over.phase, over.reason, over.message) == ("Succeeded", "JobSucceeded", "done")


def test_a_plan_with_a_bad_spec_still_names_its_job() -> None:
    """A plan with an invalid spec is listed with its job."""
    manifest = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {"name": "plan"},
        "spec": {"ownerJob": "mnist", "stepTimeoutSeconds": -1},
    }

    seen = read_object("ScalePlan", manifest)

    assert seen is not None
    assert not isinstance(seen, JobView)
    assert seen.job == "mnist"


def test_scaling_writes_no_spec_that_the_model_refuses(cluster: Cluster) -> None:
    """A gang of two can't have one worker: the error names the field, and the job is not changed."""
    client.create(cluster, tf_job(workers=2, gang=2))

    with pytest.raises(ManifestError, match=r"spec\.runPolicy\.schedulingPolicy\.minAvailable"):
        begin(cluster, "scale", **to(1))
    assert workers(cluster) == 2


def test_scaling_mends_an_invalid_job(cluster: Cluster) -> None:
    """Scaling may make an invalid job valid or leave it invalid, but never adds an error."""
    client.create(cluster, tf_job(workers=1, gang=3))

    begin(cluster, "scale", **to(2))
    assert workers(cluster) == 2
    begin(cluster, "scale", **to(3))
    assert workers(cluster) == 3
    observed = read_object("TFJob", client.get(cluster, TF_JOBS, "mnist"))
    assert isinstance(observed, JobView)
    assert observed.reason == ""


def test_an_invalid_job_is_suspended_and_resumed(cluster: Cluster) -> None:
    """The job is suspended, and the wait says that InvalidSpec keeps the controller from acting on it."""
    client.create(cluster, tf_job(workers=1, gang=2))

    now = begin(cluster, "suspend", name="mnist", kind="TFJob")
    assert isinstance(now, InProgress)
    assert "InvalidSpec" in now.message
    assert client.get(cluster, TF_JOBS, "mnist")["spec"]["runPolicy"]["suspend"] is True
    begin(cluster, "resume", name="mnist", kind="TFJob")
    assert client.get(cluster, TF_JOBS, "mnist")["spec"]["runPolicy"]["suspend"] is False


def test_an_invalid_job_is_deleted(cluster: Cluster) -> None:
    """The stage deletes an invalid job and waits while a finalizer holds it."""
    manifest = tf_job(workers=1, gang=2)
    manifest["metadata"]["finalizers"] = ["example.com/hold"]
    client.create(cluster, manifest)

    assert isinstance(begin(cluster, "delete", name="mnist", kind="TFJob"), InProgress)
    client.patch(cluster, TF_JOBS, "mnist", {"metadata": {"finalizers": None}})
    assert isinstance(begin(cluster, "delete", name="mnist", kind="TFJob"), Done)


def test_a_stage_s_own_job_that_became_invalid_is_cancelled(cluster: Cluster) -> None:
    """The end of the pipeline cancels an invalid job like any other."""
    submit = stage_of("submit")
    handle = submit.begin(cluster, submit.request.of({"manifest": tf_job(workers=2, gang=2)}), ME)
    client.patch(cluster, TF_JOBS, "mnist", {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}}})

    assert ownership.cancel_object(cluster, handle)
    assert client.find(cluster, TF_JOBS, "mnist") is None


def test_waiting_for_an_invalid_job_goes_on_until_it_has_ended(cluster: Cluster) -> None:
    """A running job may become invalid by an edit. The wait continues to its end."""
    made = client.create(cluster, tf_job(workers=1, gang=2))
    client.patch_status(cluster, TF_JOBS, "mnist", {"phase": "Running", "observedGeneration": 1})

    assert isinstance(begin(cluster, "wait", name="mnist", kind="TFJob"), InProgress)
    client.patch_status(
        cluster,
        TF_JOBS,
        "mnist",
        {"phase": "Succeeded", "observedGeneration": made["metadata"]["generation"]},
    )
    assert isinstance(begin(cluster, "wait", name="mnist", kind="TFJob"), Done)
