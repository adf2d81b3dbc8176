"""What no HTTP library would send: broken heads, chunks and lengths, slow bodies, connections that end
halfway.

A conversation is a list of steps, drawn from a seed or named in `ROWS`, where what was found once stays.
"""

import contextlib
import re
import socket
import ssl
import struct
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tests.security.servers import Server

QUIET = 0.25
"""Seconds of silence after which nothing more is expected of a request that may be incomplete."""
PATIENCE = 15.0
"""Seconds within which a server ends a connection whose other side has ended."""
_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")


class End(StrEnum):
    """How the attacker leaves."""

    HALF = "says that it is done, and reads on"
    RESET = "resets the connection"
    CLOSE = "goes without reading"


@dataclass(frozen=True)
class Conversation:
    """What is sent on one connection.

    Attributes:
        parts: bytes, and the seconds to pause after them.
        end: how it ends.
    """

    parts: tuple[tuple[bytes, float], ...]
    end: End = End.HALF

    def __str__(self) -> str:
        sent = b"".join(data for data, _ in self.parts)
        more = f"… ({len(sent)} bytes)" if len(sent) > 400 else ""
        return f"{sent[:400]!r}{more}, then {self.end.name}"


def hold(server: Server, conversation: Conversation) -> list[int]:
    """Have a conversation; the statuses of the answers.

    Raises:
        ConnectionRefusedError: nobody listens.
        AssertionError: the server keeps a connection open whose other side has ended.
    """
    received = bytearray()
    with contextlib.closing(server.connect(PATIENCE)) as connection:
        with contextlib.suppress(OSError):  # a server may refuse before it has heard everything
            for data, pause in conversation.parts:
                connection.sendall(data)
                if pause:
                    time.sleep(pause)
        if conversation.end is End.RESET:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        elif conversation.end is End.HALF:
            connection.settimeout(QUIET)
            _read(connection, received)
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            connection.settimeout(PATIENCE)
            ended = _read(connection, received)
            assert ended, f"{server.name} keeps a connection that its client has ended: {conversation}"
    return [int(status) for status in _STATUS.findall(received)]


def _read(connection: socket.socket, received: bytearray) -> bool:
    """Read until the end; whether it came before the time-out."""
    deadline = time.monotonic() + PATIENCE
    try:
        while data := connection.recv(65536):
            received += data[: max(0, 2**20 - len(received))]
            if time.monotonic() > deadline:
                return False  # an answer without an end, as of a watch
    except TimeoutError:
        return False
    except (OSError, ssl.SSLError):
        return True
    return True


def _head(
    server: Server, *lines: bytes, method: bytes = b"POST", path: str = "", version: bytes = b"1.1"
) -> bytes:
    token = f"Authorization: Bearer {server.token}".encode()
    first = b"%s %s HTTP/%s" % (method, (path or server.paths[0]).encode(), version)
    return b"\r\n".join(
        [first, b"Host: 127.0.0.1", token, b"Content-Type: application/json", *lines, b"", b""]
    )


def _whole(server: Server, body: bytes, **options: str) -> bytes:
    return _head(server, b"Content-Length: %d" % len(body), path=options.get("path", "")) + body


def _chunked(server: Server, chunks: bytes) -> bytes:
    return _head(server, b"Transfer-Encoding: chunked") + chunks


def _once(make: Callable[[Server], bytes]) -> Callable[[Server], Conversation]:
    return lambda server: Conversation(((make(server), 0.0),))


ROWS: dict[str, Callable[[Server], Conversation]] = {
    "nothing": _once(lambda server: b""),
    "line ends only": _once(lambda server: b"\r\n" * 2_000),
    "a TLS handshake": _once(lambda server: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 507),
    "the preface of HTTP/2": _once(lambda server: b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "HTTP/0.9": _once(lambda server: b"GET /\r\n"),
    "an unknown version": _once(lambda server: _head(server, version=b"9.9")),
    "an upgrade to h2c": _once(
        lambda server: _head(
            server, b"Connection: "
                b"Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABk", method=b"GET"
        )
    ),
    "an upgrade to WebSocket": _once(
        lambda server: _head(
            server, b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13",
            b"Sec-WebSocket-Key: AAAA", method=b"GET",
        )
    ),
    "CONNECT": _once(lambda server: b"CONNECT 127.0.0.1:1 HTTP/1.1\r\nHost: 127.0.0.1:1\r\n\r\n"),
    "a target of another server": _once(lambda server: b"GET http://169.254.169.254/ HTTP/1.1\r\nHost: "
        b"x\r\n\r\n"),
    "a target of 60 KiB": _once(lambda server: _head(server, method=b"GET", path="/" + "a" * 60_000)),
    "a target "
    "above the root": _once(lambda server: _head(server, method=b"GET", path="/../../../../etc/passwd")),
    "a target "
    "with encoded bytes": _once(lambda server: _head(server, method=b"GET", path="/v1/%00%ff%0d%0a/%2e%2e")),
    "targets with control characters": _once(
        lambda server: b"".join(
            _head(server, method=method, path=f"{path.rstrip('/')}/{control}{more}")
            for path in server.paths
            for method in (b"GET", b"POST", b"DELETE")
            for control in ("%00", "x%00", "%0a", "%7f", "%ed%a0%80")
            for more in ("", "/log", "?a=%00")
        )
    ),
    "a target of raw bytes": _once(lambda server: b"GET /\xff\xfe\x80 HTTP/1.1\r\nHost: x\r\n\r\n"),
    "no host": _once(lambda server: b"GET / HTTP/1.1\r\n\r\n"),
    "a header without a colon": _once(lambda server: _head(server, b"nothing")),
    "a header with a zero byte": _once(lambda server: _head(server, b"X: a\0b")),
    "a header outside of latin-1": _once(lambda server: _head(server, "X: \u4e2d\ud7ff".encode())),
    "a folded header": _once(lambda server: _head(server, b"X: a", b" b")),
    "a header of 1 MiB": _once(lambda server: _head(server, b"X: " + b"a" * 2**20, method=b"GET")),
    "a hundred thousand headers": _once(lambda server: _head(server, *[b"X: y"] * 100_000, method=b"GET")),
    "a token of raw bytes": _once(lambda server: b"GET / HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer "
        b"\xff\xfe\r\n\r\n"),
    "two lengths": _once(lambda server: _head(server, b"Content-Length: 2", b"Content-Length: 3") + b"{}"),
    "a length and chunks": _once(
        lambda server: _head(server, b"Content-Length: 2", b"Transfer-Encoding: chunked") + b"0\r\n\r\n"
    ),
    "a negative length": _once(lambda server: _head(server, b"Content-Length: -1")),
    "a length of 5,000 digits": _once(lambda server: _head(server, b"Content-Length: " + b"9" * 5_000)),
    "a length that "
    "is no ASCII number": _once(lambda server: _head(server, "Content-Length: \u0663".encode())),
    "less than its length": _once(lambda server: _head(server, b"Content-Length: 100") + b"{}"),
    "more than its length": _once(lambda server: _head(server, b"Content-Length: 2") + b"{}{}{}"),
    "a chunk of a negative size": _once(lambda server: _chunked(server, b"-1\r\nx\r\n0\r\n\r\n")),
    "a chunk of a size beyond 64 bits": _once(lambda server: _chunked(server, b"f" * 17 + b"\r\nx\r\n")),
    "a chunk without its end": _once(lambda server: _chunked(server, b"2\r\n{}")),
    "a chunk with an endless extension": _once(lambda server: _chunked(server, b"2;" + b"x" * 200_000)),
    "trailers "
    "without end": _once(lambda server: _chunked(server, b"2\r\n{}\r\n0\r\n" + b"X: y\r\n" * 50_000)),
    "chunks of one byte": _once(lambda server: _chunked(server,
    b"1\r\n \r\n" * 20_000 + b"2\r\n{}\r\n0\r\n\r\n")),
    "compressed twice": _once(
        lambda server: _head(server, b"Content-Encoding: gzip, gzip", b"Content-Length: 2") + b"\x1f\x8b"
    ),
    "waits for 100": _once(lambda server: _head(server, b"Expect: 100-continue", b"Content-Length: 2")),
    "expects "
    "another thing": _once(lambda server: _head(server, b"Expect: miracles", b"Content-Length: 2") + b"{}"),
    "a hundred requests at once": _once(lambda server: _head(server, method=b"GET") * 100),
    "a number of 5,000 digits": _once(lambda server: _whole(server, b'{"a": %s}' % (b"9" * 5_000))),
    "a number of 5,000 digits in the query": _once(
        lambda server: _head(server, method=b"GET",
        path=f"{server.paths[0]}?limit={'9' * 5_000}&timeoutSeconds={'9' * 5_000}")
    ),
    "a body nested 100,000 deep": _once(lambda server: _whole(server, b"[" * 100_000)),
    "a body in UTF-16": _once(lambda server: _whole(server, '{"a": 1}'.encode("utf-16"))),
    "half a surrogate pair": _once(lambda server: _whole(server, b'{"kind": "\\ud800", "name": "\\udfff"}')),
    "a slow head": lambda server: Conversation(
        tuple((bytes([byte]), 0.01) for byte in _head(server, method=b"GET")[:60]), End.HALF
    ),
    "a slow body": lambda server: Conversation(
        ((_head(server, b"Content-Length: 40"), 0.0), *((b" ", 0.01) for _ in range(30))), End.RESET
    ),
    "gone before the answer": lambda server: Conversation(((_whole(server, b"{}"), 0.0),), End.CLOSE),
    "reset before the answer": lambda server: Conversation(((_whole(server, b"{}"), 0.0),), End.RESET),
}  # fmt: skip
"""Each a conversation that was thought of or found; every server has all of them."""

_METHODS = (
    b"GET",
    b"POST",
    b"PUT",
    b"DELETE",
    b"PATCH",
    b"HEAD",
    b"OPTIONS",
    b"TRACE",
    b"get",
    b"\xff",
    b"A" * 300,
)
_VERSIONS = (b"1.1", b"1.1", b"1.1", b"1.0", b"2", b"1.10", b"")
_TARGETS = (
    "/", "*", "//", "/%", "/%00", "/..;/", "/a" * 3_000, "/?" + "a=b&" * 5_000, "/#x", "/\t", "http://[::1",
    "/v1/%2f%2e%2e",
)  # fmt: skip
_LINES = (
    b"Content-Length: 0", b"Content-Length: 1", (b"Content-Length: "
        b"99999999999999999999"), b"Content-Length: +5",
    b"Content-Length: 5, 5", b"Content-Length:", b"Transfer-Encoding: chunked",
    b"Transfer-Encoding: identity",
    b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding:\x0bchunked", b"Connection: close",
    b"Connection: keep-alive",
    (b"Connection: "
    b"content-length"), b"Host: ", b"Host: a\nb", b": empty", b" X: y", b"X :y", b"X:\x00",
    b"X: " + b"z" * 9_000,
    b"Content-Type: multipart/form-data; boundary=x", b"Content-Type: application/x-www-form-urlencoded",
    (b"Content-Type: "
    b"application/json; charset=x"), b"Content-Type: \xff", b"Range: bytes=0-0,-1,5-", b"Accept: */*;q=\x01",
    b"Accept: " + b"a/b," * 900, b"If-Match: *", b"Cookie: " + b"a=b;" * 900, b"Expect: 100-continue",
    b"Authorization: Basic \xff", b"Origin: null", b"Sec-WebSocket-Key: x", b"Upgrade: websocket",
)  # fmt: skip
_BODIES = (
    b"", b"{}", b"[]", b"null", b"1e999", b"-0", b'"\\ud800"', b"\xff\xfe\x00", b"{" * 3_000, b'{"a":' * 900,
    b"9" * 5_000,
    b'{"metadata":{"name":"a","labels":5}}', b"2\r\n{}\r\n0\r\n\r\n", b"0\r\n\r\n", b"1;x\r\n{\r\n",
    b"GET / HTTP/1.1\r\n\r\n",
    b"x" * 70_000,
)  # fmt: skip


def draw(random: Random, server: Server) -> Conversation:
    """A conversation as the random numbers have it: half of them are a row, mutated."""
    if random.random() < 0.4:
        made = ROWS[random.choice(sorted(ROWS))](server)
        return Conversation(tuple((_mutated(random, data), pause) for data, pause in made.parts), made.end)
    sent = b"".join(_request(random, server) for _ in range(random.choice((1, 1, 1, 3))))
    if random.random() < 0.3:
        sent = _mutated(random, sent)
    return Conversation(
        tuple(_pieces(random, sent)), random.choice((End.HALF, End.HALF, End.RESET, End.CLOSE))
    )


def _request(random: Random, server: Server) -> bytes:
    path = random.choice(server.paths if random.random() < 0.7 else _TARGETS)
    body = random.choice(_BODIES)
    lines = [b"Host: 127.0.0.1", *random.sample(_LINES, random.randrange(4))]
    if random.random() < 0.8:
        lines.append(f"Authorization: Bearer {server.token}".encode())
    if random.random() < 0.6:
        lines.append(b"Content-Length: %d" % max(0, len(body) + random.choice((0, 0, 0, -1, 1))))
    first = b"%s %s HTTP/%s" % (random.choice(_METHODS), path.encode(), random.choice(_VERSIONS))
    end = b"\r\n" if random.random() < 0.9 else b"\n"
    return end.join([first, *lines, b"", body])


def _mutated(random: Random, data: bytes) -> bytes:
    """Some bytes changed, left out or repeated."""
    made = bytearray(data)
    for _ in range(random.randrange(4)):
        place, length = random.randrange(len(made) + 1), random.randrange(1, 9)
        match random.randrange(3):
            case 0:
                made[place : place + length] = random.randbytes(length)
            case 1:
                del made[place : place + length]
            case _:
                made[place:place] = made[place : place + length] * random.randrange(1, 50)
    return bytes(made)


def _pieces(random: Random, data: bytes) -> Iterator[tuple[bytes, float]]:
    """In one piece, or in a few with pauses between them; sometimes without its end."""
    if random.random() < 0.15:
        data = data[: random.randrange(len(data) + 1)]
    if random.random() < 0.7:
        yield data, 0.0
        return
    places = sorted(random.randrange(len(data) + 1) for _ in range(random.randrange(1, 5)))
    for start, end in zip([0, *places], [*places, len(data)], strict=True):
        yield data[start:end], random.choice((0.0, 0.005, 0.02))
