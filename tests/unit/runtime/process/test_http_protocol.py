"""How a server writes its responses; `tests/security` has what a client may send."""

import asyncio
from typing import Any, cast

from edl_workflows.runtime.process.http_protocol import JoiningTransport

HEAD, BODY = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n", b"{}"


class Recorder:
    """A transport that records what is written."""

    def __init__(self) -> None:
        self.written: list[bytes] = []

    def write(self, content: bytes) -> None:
        """Record a write."""
        self.written.append(content)

    def close(self) -> None:
        """Record the end."""
        self.written.append(b"closed")

    def get_write_buffer_size(self) -> int:
        """As a transport's."""
        return 7


def write_in_turns(*turns: list[bytes | None]) -> list[bytes]:
    """What is written to the connection in turns of the event loop; None closes it."""
    recorder = Recorder()

    async def run() -> None:
        joining = JoiningTransport(cast("asyncio.Transport", recorder), asyncio.get_running_loop())
        for turn in turns:
            for content in turn:
                joining.close() if content is None else joining.write(content)
            await asyncio.sleep(0)
            await asyncio.sleep(0)

    asyncio.run(run())
    return recorder.written


def test_a_response_is_one_write() -> None:
    """Head and body are sent together, and pipelined responses each so."""
    assert write_in_turns([HEAD, BODY, HEAD, BODY]) == [HEAD + BODY, HEAD + BODY]


def test_a_head_does_not_wait_for_its_body() -> None:
    """The head of a stream, such as a watch, is sent although there is nothing to send yet; so is a response
    without a body, and the last one of a connection."""
    assert write_in_turns([HEAD], [BODY, BODY]) == [HEAD, BODY, BODY]
    assert write_in_turns([HEAD, HEAD]) == [HEAD + HEAD]
    assert write_in_turns([HEAD, None]) == [HEAD, b"closed"]


def test_a_body_that_looks_like_a_head_is_sent() -> None:
    """Content decides nothing: what a body begins with is sent in its place."""
    assert b"".join(write_in_turns([HEAD, b"HTTP/1.1 "], [b"HTTP/1.1 "], [BODY])) == (
        HEAD + b"HTTP/1.1 " * 2 + BODY
    )


def test_everything_else_is_the_transports() -> None:
    """Uvicorn asks the connection's own transport."""
    recorder: Any = Recorder()

    async def ask() -> int:
        return int(JoiningTransport(recorder, asyncio.get_running_loop()).get_write_buffer_size())

    assert asyncio.run(ask()) == 7
