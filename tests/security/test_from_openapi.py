"""Every server that describes itself by OpenAPI, asked as its description allows and forbids."""

import pytest
import schemathesis

from tests.security import from_openapi
from tests.security.from_openapi import DOCUMENTS
from tests.security.servers import Server
from tests.security.tally import Tally

pytestmark = pytest.mark.slow
SEED = 1


@pytest.fixture(scope="module")
def namespace(attacked: dict[str, Server]) -> None:
    """Where the objects go."""
    from_openapi.make_namespace(attacked["embedded"])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_is_valid(name: str, attacked: dict[str, Server]) -> None:
    """The OpenAPI document is valid, so that tools can generate clients and requests from it."""
    for document in from_openapi.each_document(attacked[name]):
        schemathesis.openapi.from_dict(document).validate()


SECONDS = 10.0
"""Of requests to each; `make fuzz` goes on for longer."""


@pytest.mark.parametrize("name", DOCUMENTS)
def test_no_request_is_a_server_error(name: str, namespace: None, attacked: dict[str, Server]) -> None:
    """Right and wrong requests to the operations, in an order drawn from a fixed seed, get no server error.
    Brain and the DI server have more such tests of their own."""
    server, tally = attacked[name], Tally(name)

    from_openapi.attack(server, tally, SEED, most=2, seconds=SECONDS)

    assert tally.requests
    assert not tally.errors, "\n".join(tally.errors)
    assert server.lives, server.log.read_text()[-2000:]
