"""What the limit client of `make bench-cluster` writes: what is recorded of one job from an audit log."""

import json
from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError
from tests.benchmarks.cluster.limit import Write, count_more, differing_objects, read_recording

JOB_UID = "1f0a7c1e-0000-4000-8000-000000000001"
POD_UID = "1f0a7c1e-0000-4000-8000-000000000002"
JOBS = "/apis/elastic.iml.github.io/v1alpha1/namespaces/default/elasticjobs"


def entry(verb: str, uri: str, body: dict[str, Any] | None, uid: str, second: int) -> dict[str, Any]:
    return {
        "verb": verb,
        "requestURI": uri,
        "requestObject": body,
        "responseObject": {"metadata": {"uid": uid}},
        "requestReceivedTimestamp": f"2026-11-28T00:00:{second:02}.000000Z",
    }


def created_pod(owner: str) -> dict[str, Any]:
    body = {"metadata": {"name": "the-job-0", "ownerReferences": [{"uid": owner}]}}
    return entry("create", "/api/v1/namespaces/default/pods", body, POD_UID, 2)


CREATED_JOB = entry("create", JOBS, {"metadata": {"name": "the-job"}}, JOB_UID, 1)
STATUS = {"metadata": {"uid": JOB_UID, "resourceVersion": "7"}, "status": {"phase": "Running"}}


def test_writes_are_in_order_and_name_no_particular_object() -> None:
    """The job's name, the uids that the server gave, and versions are marks, which the client replaces."""
    watch = entry("watch", f"{JOBS}?watch=true&name=the-job", None, "", 0)
    other = entry("create", JOBS, {"metadata": {"name": "another"}}, POD_UID, 0)
    status = entry("patch", f"{JOBS}/the-job/status", STATUS, JOB_UID, 3)
    pod = {"metadata": {"name": "@JOB@-0", "ownerReferences": [{"uid": "@UID0@"}]}}
    patched = {"metadata": {"uid": "@UID0@", "resourceVersion": "@VERSION@"}, "status": {"phase": "Running"}}
    assert read_recording([status, created_pod(JOB_UID), watch, other, CREATED_JOB], "the-job") == [
        Write("POST", JOBS, "application/json", json.dumps({"metadata": {"name": "@JOB@"}})),
        Write("POST", "/api/v1/namespaces/default/pods", "application/json", json.dumps(pod)),
        Write("PATCH", f"{JOBS}/@JOB@/status", "application/merge-patch+json", json.dumps(patched)),
    ]


def test_a_write_that_names_an_unknown_object_is_refused() -> None:
    """The client could only write another thing than what was recorded."""
    with pytest.raises(EdlError, match=POD_UID):
        read_recording([CREATED_JOB, created_pod(POD_UID)], "the-job")


def test_differences_are_shown() -> None:
    """Of counts, and of stored objects, also where one side has none."""
    assert count_more({"create pods": 5, "patch jobs": 1}, {"create pods": 4, "create jobs": 1}) == {
        "create jobs": -1,
        "create pods": 1,
        "patch jobs": 1,
    }
    assert count_more({"create pods": 4}, {"create pods": 4}) == {}
    assert differing_objects({"/a": "1", "/b": "1"}, {"/a": "2", "/b": "1", "/c": "1"}) == ["/a", "/c"]
