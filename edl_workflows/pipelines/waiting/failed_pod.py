"""The last lines of output of the pod whose failure ended a job, for the error of the stage.

They are read as soon as the failure is seen, before a new attempt deletes the job. An ElasticJob's status
contains them; for other kinds they are read from the pods' logs. If the stage waits for a ScalePlan that
failed because its job did, the lines and the reason are those of the job.
"""

import textwrap
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from edl_workflows.core.exceptions import EdlError, JobFailedError
from edl_workflows.core.jobs import kinds, manifests
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.jobs.view import FailedPod, JobPhase, JobView
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.protocol.reported_text import inert_text
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.observed import read_object
from edl_workflows.pipelines.waiting.results import Failed, describe_reason
from edl_workflows.runtime.kube import client, logs
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster, ClusterSource
from edl_workflows.runtime.kube.logs import LogOptions
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, PODS, Object, Scope

MAX_LINES = 30
MAX_CHARACTERS = 4096
"""Limit of the output in an error, because engines store errors in their databases."""
WIDTH = 200
"""Characters; a longer line is wrapped."""
READ_POLICY = CallPolicy(attempts=2, read_seconds=10.0)
"""Short time-outs: the report of a failure must not wait long for a node that does not answer."""
JOB_SECONDS, _POLL_SECONDS = 20.0, 0.5
"""A plan of a failed job fails a moment before the job's phase says so: the longest wait for the phase, and
the interval between reads of it."""


def explain_failure(source: ClusterSource, handle: Handle, failed: Failed) -> Failed:
    """Add the end of the failed pod's output to the error of a job that failed, or of a plan that failed
    with its job.

    Args:
        source: the API server.
        handle: handle of the stage.
        failed: the result of its wait. It is returned unchanged if the job did not fail, or no longer exists.
    """
    if not isinstance(failed.error, JobFailedError):
        return failed
    try:
        lines = _explain(source.connect().with_policy(READ_POLICY), handle)
    except EdlError as error:
        lines = [f"the output of its pods could not be read: {error}"]
    return Failed(JobFailedError("\n".join([str(failed.error), *lines]))) if lines else failed


def _explain(cluster: Cluster, handle: Handle) -> list[str]:
    kind = kinds.kind_of(handle.kind)
    manifest = client.find(cluster, kind.source.api, handle.name, handle.namespace)
    if manifest is None:
        return []
    if kind.view is not None:
        return describe_failed_pod(cluster, handle.kind, manifest)
    job = _wait_for_failure(cluster, ScalePlan.read_stored(manifest)[0].job, handle.namespace)
    seen = read_object(ELASTIC_JOB, job)
    if not isinstance(seen, JobView) or job is None or seen.phase is not JobPhase.FAILED:
        return []
    reason = describe_reason(seen.reason, seen.message)
    return [f"the job failed: {reason}", *describe_failed_pod(cluster, ELASTIC_JOB, job)]


def _wait_for_failure(cluster: Cluster, job: str, namespace: str) -> Object | None:
    """The ElasticJob, once its phase is final or `JOB_SECONDS` are over."""
    deadline = time.monotonic() + JOB_SECONDS
    while True:
        manifest = client.find(cluster, ELASTIC_JOBS, job, namespace)
        seen = read_object(ELASTIC_JOB, manifest)
        if not isinstance(seen, JobView) or seen.phase.final or time.monotonic() > deadline:
            return manifest
        time.sleep(_POLL_SECONDS)


def describe_failed_pod(cluster: Cluster, kind: str, job: Object) -> list[str]:
    """The last lines of output of the pod whose failure ended a job, wrapped; none if the job has not failed.

    Args:
        cluster: the API server.
        kind: kind of the job.
        job: the job.

    Raises:
        EdlError: the pods can't be read.
    """
    seen = read_object(kind, job)
    if not isinstance(seen, JobView) or seen.phase is not JobPhase.FAILED:
        return []
    pod = seen.failed_pod
    if pod is None or not pod.last_lines:
        pod = _read_failed_pod(cluster.with_policy(READ_POLICY), kinds.kind_of(kind), seen) or pod
    return list(_describe(pod)) if pod is not None else []


def _describe(pod: FailedPod) -> Iterator[str]:
    lines = [piece for line in pod.last_lines[-MAX_CHARACTERS:].splitlines() for piece in _wrapped(line)]
    yield f"last lines of pod {pod.name}:" if lines else f"pod {pod.name} wrote nothing"
    yield from (f"  {line}" for line in lines[-MAX_LINES:])


def _wrapped(line: str) -> list[str]:
    wrapper = textwrap.TextWrapper(WIDTH, replace_whitespace=False, drop_whitespace=False)
    return wrapper.wrap(line.rstrip())


def _read_failed_pod(cluster: Cluster, kind: Kind, job: JobView) -> FailedPod | None:
    """The pod that failed first, with its output."""
    scope = Scope(PODS, job.namespace, label_selector=kind.pods_of(job.name))
    failures = sorted(_failures(client.list_objects(cluster, scope).items), key=lambda failure: failure[0])
    if not failures:
        return None
    _time, pod, container, previous = failures[0]
    options = LogOptions(container, tail_lines=MAX_LINES, previous=previous)
    text = logs.read_end(cluster, manifests.name_of(pod), job.namespace, options, 4 * MAX_CHARACTERS)
    return FailedPod(f"{manifests.name_of(pod)} ({kind.node_of(pod)})", inert_text(text))


def _failures(pods: Iterable[Object]) -> Iterator[tuple[str, Object, str, bool]]:
    """For each pod whose own container or init container ended with an error: the time, the pod, the
    container, and whether it was started again."""
    for pod in pods:
        if init := manifests.failed_init_container(pod):
            yield str(init.get("finishedAt") or ""), pod, str(init["name"]), False
        status = pod_state.own_status(pod)
        for state, previous in (("state", False), ("lastState", True)):
            ended: Mapping[str, Any] = (status.get(state) or {}).get("terminated") or {}
            if ended.get("exitCode"):
                yield str(ended.get("finishedAt") or ""), pod, str(status["name"]), previous
