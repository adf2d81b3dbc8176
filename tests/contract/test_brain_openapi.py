"""Brain keeps what its OpenAPI document says, whatever requests schemathesis makes from that document."""

import json
import time
from typing import Any

import hypothesis.strategies as st
import pytest
import schemathesis
from hypothesis import given
from schemathesis.generation import GenerationMode

from edl_workflows.services.brain.app import create_app
from edl_workflows.services.brain.optimizer_process import OptimizerProcess
from edl_workflows.services.brain.service import BrainApi
from edl_workflows.services.brain.store.store import BrainStore
from tests.contract.openapi import KEPT, SETTINGS
from tests.unit.services.brain import support
from tests.unit.services.brain.support import OPERATOR, OTHER, TEAM, Api, facts_json, sample_json

shared = support.shared


def _schema() -> Any:
    service = BrainApi(BrainStore.__new__(BrainStore), OptimizerProcess(""))
    schema = schemathesis.openapi.from_dict(create_app(service, None, lambda *_: None).openapi())
    schema.config.generation.update(modes=[GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
    # We draw job and token beside what the document describes; with these phases' fixed cases we can't.
    schema.config.phases.examples.enabled = False
    schema.config.phases.coverage.enabled = False
    return schema


SCHEMA = _schema()


@pytest.fixture(scope="module")
def url(shared: Api) -> str:
    """A Brain with a job of each of two tenants."""
    now = time.time()
    shared.report(sample_json(now), sample_json(now - 15))
    shared.report(job=facts_json("over"), end={"time": now, "completed": True})
    shared.as_(OTHER).report(sample_json(now), job=facts_json("theirs", namespace="other"))
    return shared.url


UIDS = st.sampled_from(["uid-1", "over", "theirs", "gone", "\u00fc", "a%00b"])
TOKENS = st.sampled_from([f"Bearer {TEAM}"] * 3 + [f"Bearer {OPERATOR}", "Bearer wrong", "Basic x", None])


@pytest.mark.slow
@SCHEMA.given(uid=UIDS, token=TOKENS)  # type: ignore[untyped-decorator]  # the schema is made at run time
@SCHEMA.parametrize()  # type: ignore[untyped-decorator]  # as above
@SETTINGS
def test_every_answer_is_as_described(case: Any, url: str, uid: str, token: str | None) -> None:
    """Right and wrong requests, about jobs that exist or not, with right and wrong tokens, get no server
    error; the document has each answer's status and body."""
    if "uid" in (case.path_parameters or {}):
        case.path_parameters["uid"] = uid
    headers = {} if token is None else {"Authorization": token}
    answer = case.call(base_url=url, headers=headers, timeout=90)
    case.validate_response(answer, checks=list(KEPT))


DEEP = [b"[" * 100_000, b"1" * 10_000, b'{"a":' * 5_000, b'{"job":' + b" " * 200_000]


@pytest.mark.slow
@SETTINGS
@given(
    method=st.sampled_from(["GET", "POST", "DELETE", "PUT"]),
    call=st.sampled_from(
        [
            "metrics",
            "optimize",
            "states/claim",
            "states/write",
            "jobs",
            "jobs/uid-1",
            "jobs//metrics",
            "plans",
            "cluster",
            "",
        ]
    ),
    query=st.text(max_size=20),
    body=st.binary(max_size=300)
    | st.sampled_from(DEEP)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner, max_size=4),
    ).map(lambda drawn: json.dumps(facts_json(roles=drawn)).encode()),
)
def test_bytes_of_any_kind_are_no_server_error(
    url: str, shared: Api, method: str, call: str, query: str, body: bytes
) -> None:
    """Requests of random bytes, including large and deep bodies, get no server error."""
    headers = {"Authorization": f"Bearer {OPERATOR}"}
    params = {"search": query, "limit": query, "seconds": query}
    answer = shared.http.request(method, f"{url}/v1/{call}", content=body, headers=headers, params=params)
    assert answer.status_code < 500
    if answer.status_code >= 400:
        assert answer.json().keys() == {"error"}
