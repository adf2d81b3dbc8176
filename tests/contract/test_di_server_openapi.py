"""The DI server keeps what its OpenAPI document says, whatever requests schemathesis makes from it."""

from collections.abc import Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
import schemathesis
from hypothesis import given
from schemathesis.generation import GenerationMode

from edl_workflows.core.kubernetes.api import DI_JOBS
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process.rate_limit import RateLimit
from edl_workflows.services.di_server.app import create_app
from edl_workflows.services.di_server.guard import Admission
from edl_workflows.services.di_server.server import DiServer, ServerOptions
from edl_workflows.services.di_server.service import DiService
from tests.airflow import support
from tests.contract.openapi import KEPT, SETTINGS
from tests.unit.services.di_server.support import ADMIN, HTTP, create, eventually_ready, task

cluster, server = support.cluster, support.server

UNLIMITED = RateLimit(1e9, 1e9)
DOCUMENT = create_app(DiService.__new__(DiService), Admission(), lambda *_: None).openapi()


def _schema() -> Any:
    schema = schemathesis.openapi.from_dict(DOCUMENT)
    schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    # We draw job and token beside what the document describes; with these phases' fixed cases we can't.
    schema.config.phases.examples.enabled = False
    schema.config.phases.coverage.enabled = False
    return schema


SCHEMA = _schema()


@pytest.fixture
def url(cluster: Cluster) -> Iterator[str]:
    """A server without limits of rate, with jobs in every state."""
    create(cluster, token="t")
    create(cluster, task("collector", 2, maxReplicas=3), name="bounded", preemptible=True)
    create(cluster, name="over")
    client.patch_status(cluster, DI_JOBS, "over", {"phase": "Failed"})
    admission = Admission(admin_token=ADMIN, per_client=UNLIMITED, per_job=UNLIMITED)
    running = DiServer(
        cluster,
        ServerOptions(namespaces=NamespaceSelection.of(cluster.namespace), port=0, admission=admission),
    )
    with running.serving() as found:
        eventually_ready(running)
        yield found


IDS = st.sampled_from(["walk", "walk.0", "walk.7", "bounded", "over", "gone", "walk.x", "walk.0.0", ""])
TOKENS = st.sampled_from([f"Bearer {ADMIN}"] * 4 + ["Bearer t", "Bearer wrong", "Basic x", None])


@pytest.mark.slow
@SCHEMA.given(job=IDS, token=TOKENS)  # type: ignore[untyped-decorator]  # the schema is made at run time
@SCHEMA.parametrize()  # type: ignore[untyped-decorator]  # as above
@SETTINGS
def test_every_answer_is_as_described(
    case: Any, url: str, cluster: Cluster, job: str, token: str | None
) -> None:
    """Right and wrong requests, about jobs that exist or not, of past generations, with right and wrong
    tokens, get no server error; the document has each answer's status and body."""
    if job and "job_id" in (case.path_parameters or {}):
        case.path_parameters["job_id"] = f"{cluster.namespace}.{job}"
    headers = {} if token is None else {"Authorization": token}
    answer = case.call(base_url=url, headers=headers, timeout=90)
    case.validate_response(answer, checks=list(KEPT))


@pytest.mark.slow
@SETTINGS
@given(
    method=st.sampled_from(["GET", "POST", "DELETE"]),
    job=IDS,
    call=st.sampled_from(["replicas", "profilings"]),
    body=st.binary(max_size=300)
    | st.sampled_from([b"[" * 100_000, b"1" * 10_000, b'{"a":' * 5_000, b"x" * 200_000]),
    kind=st.sampled_from(
        ["application/json", "text/plain", "multipart/form-data", "application/json; charset=utf-16"]
    ),
)
def test_bytes_of_any_kind_are_no_server_error(
    url: str, cluster: Cluster, method: str, job: str, call: str, body: bytes, kind: str
) -> None:
    """Requests of random bytes, including large and deep bodies, get no server error."""
    headers = {"Authorization": f"Bearer {ADMIN}", "Content-Type": kind}
    path = f"{url}/v2alpha1/{cluster.namespace}.{job}/{call}"
    answer = HTTP.request(method, path, content=body, headers=headers)
    assert answer.status_code < 500
    assert answer.json().keys() == {"success", "code", "message", "data"}
