"""The stage `submit`: which job it creates, uses or replaces."""

from dataclasses import replace

import pytest

from edl_workflows.core.exceptions import ConflictError, JobFailedError, ManifestError
from edl_workflows.core.kubernetes.api import ELASTIC_JOBS
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.stages.stage_runs import CLEARED, ME, RETRY, begin, run


def test_submit_waits_until_the_job_has_succeeded(cluster: Cluster, stand_in: StandIn) -> None:
    """The outputs have the final phase, the last step and the newest checkpoint of the job."""
    outputs = run(cluster, "submit", manifest=elastic_job("mnist", ends="Succeeded"))

    assert (outputs.name, outputs.phase, outputs.step) == ("mnist", "Succeeded", 100)
    assert outputs.checkpoint is not None
    assert outputs.checkpoint.uri == "/ck/100"


def test_a_job_without_a_name_is_named_after_the_task(cluster: Cluster) -> None:
    """A job without a name gets the same name each time that the stage begins, so there is one job."""
    handles = [
        begin(cluster, "submit", who, manifest=elastic_job(None), hint="dag-task")
        for who in (ME, RETRY, RETRY)
    ]

    assert len({handle.uid for handle in handles}) == len(jobs(cluster)) == 1
    assert handles[0].name.startswith("dag-task-")


def test_a_handle_tells_whether_an_earlier_attempt_created_the_job(
    cluster: Cluster, stand_in: StandIn
) -> None:
    """An attempt adopts the job of an earlier one, also of one that delivered its result while the job ran.
    What it created itself, before a deferral or in place of a failed job, is not adopted."""
    attempts = (ME, ME, RETRY, replace(CLEARED, attempt="3"))
    handles = [begin(cluster, "submit", who, manifest=elastic_job("mnist")) for who in attempts]
    stand_in.end("mnist", "Failed")
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == "Failed", "its end")
    last = begin(cluster, "submit", replace(RETRY, attempt="4"), manifest=elastic_job("mnist"))

    assert [handle.is_adopted for handle in (*handles, last)] == [False, False, True, True, False]
    assert len({handle.uid for handle in handles}) == 1
    assert last.uid != handles[0].uid


def test_a_foreign_job_of_that_name_is_an_error(cluster: Cluster) -> None:
    """A job that a user created by hand or that belongs to another run is not adopted."""
    client.create(cluster, elastic_job("mnist"))
    begin(cluster, "submit", StageIdentity("airflow/dag/other/task/-1"), manifest=elastic_job("other"))

    with pytest.raises(ConflictError, match="was not created by a pipeline; choose another name"):
        begin(cluster, "submit", manifest=elastic_job("mnist"))
    with pytest.raises(ConflictError, match="belongs to airflow/dag/other/task/-1"):
        begin(cluster, "submit", manifest=elastic_job("other"))


@pytest.mark.parametrize("owner", [None, StageIdentity("airflow/dag/other/task/-1")], ids=["nobody", "other"])
def test_the_name_of_a_job_that_is_being_deleted_is_waited_for(
    cluster: Cluster, owner: StageIdentity | None
) -> None:
    """A job of that name which is being deleted, whoever created it, is no conflict: the stage says that it
    waits until it is gone, and then creates its own."""
    former = elastic_job("mnist")
    former["metadata"]["finalizers"] = ["test.example/hold"]
    if owner is None:
        client.create(cluster, former)
    else:
        begin(cluster, "submit", owner, manifest=former)
    uid = jobs(cluster)["mnist"]["metadata"]["uid"]
    client.delete(cluster, ELASTIC_JOBS, "mnist")
    notes: list[str] = []

    def release(line: str) -> None:
        notes.append(line)
        if "is being deleted" in line:
            client.patch(cluster, ELASTIC_JOBS, "mnist", {"metadata": {"finalizers": None}})

    handle = begin(cluster, "submit", replace(ME, notify=release), manifest=elastic_job("mnist"))

    assert handle.uid not in ("", uid)
    assert [("is being deleted" in line, "created" in line) for line in notes] == [
        (True, True),
        (False, True),
    ]


def test_a_wrong_manifest_makes_nothing(cluster: Cluster) -> None:
    """The error names the wrong field, and no job is created."""
    manifest = elastic_job("mnist")
    manifest["spec"]["replicaSpec"] = manifest["spec"]["replicaSpecs"]

    with pytest.raises(ManifestError, match=r"spec\.replicaSpec: unknown field; did you mean 'replicaSpecs'"):
        begin(cluster, "submit", manifest=manifest)
    assert not jobs(cluster)


@pytest.mark.parametrize(
    ("ended", "who", "same"),
    [
        ("Failed", ME, True),  # this attempt's own result
        ("Failed", RETRY, False),
        ("Succeeded", RETRY, True),  # the attempt before died before it could say so
        ("Succeeded", CLEARED, False),
    ],
)
def test_what_a_later_attempt_does_with_a_finished_job(
    cluster: Cluster, stand_in: StandIn, ended: str, who: StageIdentity, same: bool
) -> None:
    """A later attempt replaces a failed job, uses a result that was not delivered, and creates a new job if
    the result was delivered."""
    first = begin(cluster, "submit", manifest=elastic_job("mnist", ends=ended))
    eventually(lambda: jobs(cluster)["mnist"].get("status", {}).get("phase") == ended, ended)

    second = begin(cluster, "submit", who, manifest=elastic_job("mnist"))

    assert (second.uid == first.uid) is same


def test_a_failed_job_fails_the_stage(cluster: Cluster, stand_in: StandIn) -> None:
    """The error of a failed job has the controller's reason."""
    with pytest.raises(JobFailedError, match="TestSaysSo"):
        run(cluster, "submit", manifest=elastic_job("mnist", ends="Failed"))
