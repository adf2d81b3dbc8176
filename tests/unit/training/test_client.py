"""The typed calls' connection: what closing it means while others talk."""

import threading

import httpx
import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.training.client import MasterClient

NODE = NodeRef(type="worker", id=0)


class SlowTransport(httpx.BaseTransport):
    """Answers when it is let to; notes what happens."""

    def __init__(self) -> None:
        self.began, self.may_answer = threading.Event(), threading.Event()
        self.closed = threading.Event()
        self.closed_too_early = False

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        self.began.set()
        assert self.may_answer.wait(240)
        self.closed_too_early = self.closed.is_set()
        return httpx.Response(200, json={"revision": 7})

    def close(self) -> None:
        self.closed.set()


def test_closing_lets_calls_under_way_end_and_refuses_new_ones() -> None:
    """Closing lets calls in progress end before the connection is closed, and rejects new ones. Otherwise a
    thread could open a connection that nobody closes."""
    transport = SlowTransport()
    client = MasterClient("http://master", "token", transport)
    answers: list[Directive] = []
    thread = threading.Thread(target=lambda: answers.append(client.directive(NODE, 0, 0.0)))
    thread.start()
    assert transport.began.wait(240)

    client.close()

    assert not transport.closed.is_set()
    with pytest.raises(UnavailableError, match="is closed"):
        client.directive(NODE, 0, 0.0)
    transport.may_answer.set()
    thread.join(240)
    assert [answer.revision for answer in answers] == [7]
    assert transport.closed.is_set()
    assert not transport.closed_too_early


def test_an_idle_client_closes_at_once() -> None:
    """Closing a client without a pending request closes its connection at once."""
    transport = SlowTransport()
    with MasterClient("http://master", "token", transport):
        pass
    assert transport.closed.is_set()
