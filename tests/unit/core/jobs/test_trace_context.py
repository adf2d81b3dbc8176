"""Which trace a job belongs to, and how its pods are told."""

import pytest

from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.elastic_job.pods import NodeToMake, master_pod, node_pod
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.trace_context import checked_traceparent, trace_id_of, traceparent_of

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
TRACEPARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


def variables(traceparent: str) -> list[dict[str, str]]:
    """``TRACEPARENT`` of a job's worker and of its master."""
    template = {"spec": {"containers": [{"name": "main", "image": "train:1"}]}}
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": "digits", "annotations": {names.TRACE_ANNOTATION: traceparent}},
        "spec": {"replicaSpecs": {"worker": {"replicas": 1, "template": template}}},
    }
    job = ElasticJob.parse(manifest)
    pods = [node_pod(job, NodeToMake("worker", 0, 0, 1)), master_pod(job, 0, 0, InstallationSettings())]
    every = [variable for pod in pods for variable in pod["spec"]["containers"][0]["env"]]
    return [one for one in every if one["name"] == "TRACEPARENT"]


def test_the_pods_of_a_job_belong_to_its_trace() -> None:
    """The trace context is in the environment of the master and of the training programs, where OpenTelemetry
    looks for it."""
    assert variables(TRACEPARENT) == 2 * [{"name": "TRACEPARENT", "value": TRACEPARENT}]


@pytest.mark.parametrize(
    "text",
    ["", "00-abc-def-01", f"00-{32 * '0'}-00f067aa0ba902b7-01", f"{TRACEPARENT}\n", "$(EDL_JOB_TOKEN)"],
)
def test_what_is_no_trace_is_left_out(text: str) -> None:
    """An annotation that is not a valid trace context is ignored."""
    assert checked_traceparent(text) == trace_id_of(text) == ""
    assert variables(text) == []


def test_a_trace_is_named_by_its_id() -> None:
    """The trace id is that of the workflow. The id of the parent differs between steps, and is the same for
    one step."""
    first, second = traceparent_of(TRACE_ID, "step"), traceparent_of(TRACE_ID, "other")
    assert [trace_id_of(first), trace_id_of(second)] == [TRACE_ID, TRACE_ID]
    assert first != second
    assert first == traceparent_of(TRACE_ID, "step")
    assert traceparent_of("none", "step") == ""
