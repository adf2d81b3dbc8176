"""Requests made from each server's own OpenAPI document, right ones and wrong ones, for as long as they are
wanted."""

import itertools
import time
import warnings
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import hypothesis
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.core.result import Ok
from schemathesis.generation import GenerationMode

from edl_workflows.services.brain.app import create_app
from edl_workflows.services.brain.optimizer_process import OptimizerProcess
from edl_workflows.services.brain.service import BrainApi
from edl_workflows.services.brain.store.store import BrainStore
from tests.contract.test_di_server_openapi import DOCUMENT as DI_SERVER_DOCUMENT
from tests.security.servers import ANSWER_SECONDS, Server
from tests.security.tally import Tally

NAMESPACE = "fuzzed"
"""Where the objects go that are made on the embedded cluster."""


def make_namespace(embedded: Server) -> None:
    """Make it, unless it is there."""
    answer = embedded.ask("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    assert answer.status_code in (201, 409), answer.text


def _get(server: Server, path: str) -> Any:
    answer = server.ask("GET", path)
    answer.raise_for_status()
    return answer.json()


def _of_kubernetes(server: Server) -> list[Any]:
    """One document a group."""
    return [
        _get(server, found["serverRelativeURL"]) for found in _get(server, "/openapi/v3")["paths"].values()
    ]


def _of_brain(_server: Server) -> list[Any]:
    return [
        create_app(
            BrainApi(BrainStore.__new__(BrainStore), OptimizerProcess("")), None, lambda *_: None
        ).openapi()
    ]


DOCUMENTS: dict[str, Callable[[Server], list[Any]]] = {
    "master": lambda server: [_get(server, "/openapi.json")],
    "brain": _of_brain,
    "di-server": lambda _server: [DI_SERVER_DOCUMENT],
    "embedded": _of_kubernetes,
}
"""Server → its documents."""
LONG_POLL = 0.1
"""Seconds at most that a request may ask to wait for news: the master would keep each caller for 30."""
# The administrator's requests to delete the node or a definition are obeyed; everything after them would be
# refused.
_KEPT_WHOLE = ("/nodes", "/customresourcedefinitions", "/namespaces/{name}")
_PATHS = {"namespace": NAMESPACE, "job_id": "default.walk.0", "uid": "uid-1"}


def operations(server: Server) -> list[Any]:
    """All operations of a server that leave it able to be asked further."""
    found = [
        result.ok()
        for document in DOCUMENTS[server.name](server)
        for result in schemathesis.openapi.from_dict(document).get_all_operations()
        if isinstance(result, Ok)
    ]
    return [
        one for one in found if one.method != "delete" or not any(part in one.path for part in _KEPT_WHOLE)
    ]


def attack(server: Server, tally: Tally, seed: int, most: int, seconds: float) -> None:
    """Rounds of requests to all operations until the time is over, at least one request.

    Args:
        server: that is attacked.
        tally: takes the answers.
        seed: of the draws.
        most: requests of each kind to an operation in one round.
        seconds: of requests, without the time that it takes to prepare them; rounds end in the middle, too.
    """
    found = operations(server)
    Random(seed).shuffle(found)
    until = time.monotonic() + seconds
    with requests.Session() as session:
        for number in itertools.count():
            for operation, mode in itertools.product(found, list(GenerationMode)):
                if tally.requests and time.monotonic() > until:
                    return
                _send(operation, mode, server, tally, session, (seed * 1_000 + number, most))


def _send(
    operation: Any,
    mode: GenerationMode,
    server: Server,
    tally: Tally,
    session: requests.Session,
    draw: tuple[int, int],
) -> None:
    seed, most = draw
    headers = {"Authorization": f"Bearer {server.token}"}

    @hypothesis.seed(seed)
    @settings(
        max_examples=most, database=None, deadline=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(case=operation.as_strategy(generation_mode=mode))
    def sent(case: Any) -> None:
        for name, value in _PATHS.items():
            if name in (case.path_parameters or {}):
                case.path_parameters[name] = value
        asked = (case.query or {}).get("wait", 30)
        if "wait" in _parameters(operation) and isinstance(asked, (int, float)) and asked > LONG_POLL:
            case.query = {**(case.query or {}), "wait": LONG_POLL}
        status, said = 0, ""
        try:
            answer = case.call(
                base_url=server.url,
                headers=headers,
                verify=server.verify,
                session=session,
                timeout=ANSWER_SECONDS,
            )
            status, said = answer.status_code, answer.text[:300]
        except requests.RequestException as error:
            said = str(error)
            if isinstance(error, requests.Timeout):
                status = 599  # no answer at all in a minute
        tally.answered(status, f"{case.as_curl_command()[:2000]} says {said}" if status >= 500 else "")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            sent()
        except hypothesis.errors.Unsatisfiable:
            return  # an operation that can't be asked wrongly


def _parameters(operation: Any) -> set[str]:
    return {parameter.name for parameter in operation.query}


def each_document(server: Server) -> Iterator[Any]:
    """The server's documents."""
    yield from DOCUMENTS[server.name](server)
