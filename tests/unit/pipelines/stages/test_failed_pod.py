"""The last lines of the pod with which a job failed, in the stage's error."""

import asyncio
import threading
import time
from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError, ForbiddenError, JobFailedError
from edl_workflows.core.jobs.tf_job.kind import TF_JOB
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.checkpoint import CheckpointRequest, begin_checkpoint
from edl_workflows.pipelines.stages.submit import SubmitRequest, begin_submit
from edl_workflows.pipelines.waiting import failed_pod
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.results import Failed
from edl_workflows.runtime.kube import client, logs
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.logs import LogOptions
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, SCALE_PLANS
from tests.airflow.support import elastic_job
from tests.unit.core.jobs.examples import make_example

ME = StageIdentity("airflow/dag/run/task/-1")


def _failed_elastic_job(cluster: Cluster, last_lines: str) -> Handle:
    handle = begin_submit(cluster, SubmitRequest(manifest=elastic_job("mnist")), ME)
    failure = {
        "reason": "TrainingFailed",
        "message": "worker-1: 4 failures",
        "pod": "mnist-edljob-worker-1",
        "lastLines": last_lines,
    }
    status = {
        "phase": "Failed",
        "reason": failure["reason"],
        "message": failure["message"],
        "failure": failure,
        "observedGeneration": 1,
    }
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)
    return handle


def _wait(cluster: Cluster, handle: Handle, way: str) -> str:
    source, deadline = ClusterSource.of(cluster), time.time() + 240
    result: Any
    if way == "now":
        result = driver.check_now(cluster, handle)
    elif way == "in the loop":
        result = asyncio.run(driver.await_goal(source, handle, deadline))
    else:
        result = driver.wait_for_goal(source, handle, deadline)
    assert isinstance(result, Failed)
    assert isinstance(result.error, JobFailedError)
    return str(result.error)


@pytest.mark.parametrize("way", ["now", "blocking", "in the loop"])
def test_the_error_has_the_lines_of_the_status(cluster: Cluster, way: str) -> None:
    """The error has the controller's reason first and then the output from the status, without reading a
    pod."""
    handle = _failed_elastic_job(cluster, "loading\nValueError: no data\n")

    assert _wait(cluster, handle, way).splitlines() == [
        f"ElasticJob {cluster.namespace}/mnist failed: TrainingFailed: worker-1: 4 failures",
        "last lines of pod mnist-edljob-worker-1:",
        "  loading",
        "  ValueError: no data",
    ]


@pytest.mark.parametrize("way", ["now", "blocking", "in the loop"])
def test_a_plan_that_failed_with_its_job_says_why_the_job_failed(cluster: Cluster, way: str) -> None:
    """A plan fails as soon as its job's master has decided that the job failed. The error waits for the job's
    phase, so that it has the job's reason and output, and the next task finds a job that has ended."""
    begin_submit(cluster, SubmitRequest(manifest=elastic_job("mnist")), ME)
    request = CheckpointRequest(job="mnist")
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", {"phase": "Running", "observedGeneration": 1})
    handle = begin_checkpoint(cluster, request, ME)
    assert isinstance(handle, Handle)
    ended = {"phase": "Failed", "reason": "JobFailed", "message": "the job ended before the plan did"}
    client.patch_status(cluster, SCALE_PLANS, handle.name, ended)
    failure = {
        "reason": "ExitCode",
        "message": "worker-0 exited with 1",
        "pod": "w",
        "lastLines": "no data\n",
    }
    status = {"phase": "Failed", "reason": "ExitCode", "message": failure["message"], "failure": failure}
    later = threading.Timer(
        1.0, client.patch_status, (cluster, ELASTIC_JOBS, "mnist", {**status, "observedGeneration": 1})
    )
    later.start()

    assert _wait(cluster, handle, way).splitlines()[1:] == [
        "the job failed: ExitCode: worker-0 exited with 1",
        "last lines of pod w:",
        "  no data",
    ]
    later.join()


def test_long_output_is_wrapped_and_bounded(cluster: Cluster) -> None:
    """Long output is wrapped, and its newest lines are kept."""
    handle = _failed_elastic_job(cluster, "x\n" * 2000 + "y" * 500)

    lines = _wait(cluster, handle, "now").splitlines()[2:]

    assert len(lines) == failed_pod.MAX_LINES
    assert [len(line) - 2 for line in lines[-3:]] == [200, 200, 100]


def _failed_tf_job(cluster: Cluster, **ends: dict[str, Any]) -> Handle:
    """A TFJob with a pod for each name, whose own container has this status, beside a proxy that failed
    earlier."""
    manifest = make_example("TFJob", {})
    manifest["metadata"] = {"name": "mnist"}
    manifest.pop("status", None)
    handle = begin_submit(cluster, SubmitRequest(manifest=manifest), ME)
    labels = dict(part.split("=", 1) for part in TF_JOB.pods_of("mnist").split(","))
    _job, role, index = TF_JOB.labels
    for number, (name, status) in enumerate(ends.items()):
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "labels": labels | {role: "worker", index: str(number)}},
            "spec": {
                "containers": [{"name": n, "image": "train:1"} for n in ("a-proxy", "tensorflow")],
            },
        }
        client.create(cluster, pod)
        statuses = [{"name": "a-proxy", "state": _terminated("00")}, {"name": "tensorflow", **status}]
        client.patch_status(cluster, PODS, name, {"containerStatuses": statuses})
    client.patch_status(
        cluster,
        TF_JOB.source.api,
        "mnist",
        {"phase": "Failed", "reason": "PodFailed", "message": "a worker failed", "observedGeneration": 1},
    )
    return handle


def _terminated(at: str, code: int = 1) -> dict[str, Any]:
    return {"terminated": {"exitCode": code, "finishedAt": f"2026-01-01T00:00:{at}Z"}}


def test_of_several_pods_the_first_that_failed_is_read(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of several failed pods, the one that failed first is read, since the others failed because of it. For a
    restarted container, the output before the restart is read. The failure of another container of a pod
    does not count."""
    handle = _failed_tf_job(
        cluster,
        later={"state": _terminated("09")},
        first={"state": {"running": {}}, "lastState": _terminated("05")},
        whole={"state": _terminated("01", 0)},
    )
    asked: list[tuple[str, LogOptions]] = []

    def read(_cluster: Cluster, pod: str, _namespace: str, options: LogOptions, _most: int) -> str:
        asked.append((pod, options))
        return "Traceback\nKeyError: {{x}}\n"

    monkeypatch.setattr(logs, "read_end", read)

    lines = _wait(cluster, handle, "now").splitlines()

    assert asked == [("first", LogOptions("tensorflow", tail_lines=failed_pod.MAX_LINES, previous=True))]
    assert lines[1:] == ["last lines of pod first (worker-1):", "  Traceback", "  KeyError: { {x}}"]


def test_without_the_right_to_read_logs_the_error_says_so(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the account may not read logs, the error says so and is still that of the job's failure."""
    handle = _failed_tf_job(cluster, first={"state": _terminated("05")})

    def read(*_arguments: Any) -> str:
        raise ForbiddenError("read the log of Pod ns/first: no right")

    monkeypatch.setattr(logs, "read_end", read)

    lines = _wait(cluster, handle, "now").splitlines()

    assert lines[0].endswith("failed: PodFailed: a worker failed")
    assert lines[1:] == ["the output of its pods could not be read: read the log of Pod ns/first: no right"]


def test_no_pod_failed(cluster: Cluster) -> None:
    """If a job fails without a failed pod, for example by a time limit, the error has the controller's reason
    only."""
    handle = _failed_tf_job(cluster)

    assert _wait(cluster, handle, "now").endswith("failed: PodFailed: a worker failed")


def test_a_retry_tells_the_lines_before_it_deletes_the_job(cluster: Cluster) -> None:
    """Before a retry deletes the failed job, it writes the job's last lines, since the attempt before may
    have died without doing so."""
    _failed_elastic_job(cluster, "ValueError: no data\n")
    told: list[str] = []

    retry = StageIdentity(ME.owner, attempt="2", notify=told.append)
    second = begin_submit(cluster, SubmitRequest(manifest=elastic_job("mnist")), retry)

    assert "it is replaced by a new one" in told[0]
    assert told[1:3] == ["last lines of pod mnist-edljob-worker-1:", "  ValueError: no data"]
    assert told[3] == f"{second} created (uid {second.uid})"


def test_an_unavailable_cluster_changes_no_error() -> None:
    """If the log of the failed pod can't be read, the error has what was known without it."""

    def connect() -> Cluster:
        raise EdlError("no route")

    handle = Handle.model_validate(
        {"kind": "TFJob", "namespace": "ns", "name": "mnist", "goal": {"type": "job"}}
    )
    failed = failed_pod.explain_failure(
        ClusterSource("key", connect), handle, Failed(JobFailedError("it failed"))
    )

    assert str(failed.error).splitlines() == [
        "it failed",
        "the output of its pods could not be read: no route",
    ]
