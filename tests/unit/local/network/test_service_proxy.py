"""What the API server's service proxy does with requests and answers that can't be passed on as they are."""

import asyncio

import pytest
from starlette.responses import Response

from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.subresources import ProxyRequest
from edl_workflows.local.network.service_proxy import ServiceProxy


def _ask(path: str = "/", accept: str = "*/*", content_type: str = "text/plain") -> tuple[Response, bytes]:
    """What the proxy answers, and the head of the request that a program got."""
    heads = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        lines = ("HTTP/1.1 200 OK", f"Content-Type: {content_type}", "Content-Length: 0", "", "")
        writer.write("\r\n".join(lines).encode())
        await writer.drain()
        writer.close()

    async def main() -> Response:
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            request = ProxyRequest("default", "web", 80, path, "", accept)
            return await ServiceProxy(lambda *_: port).get(request)

    return asyncio.run(main()), heads[0]


def test_headers_are_bytes() -> None:
    """What is no ASCII in a header goes on as it came, in both directions."""
    response, head = _ask(accept="text/\xe9", content_type="text/\u2192")
    assert b"accept: text/\xe9\r\n" in head.lower()
    assert response.headers["content-type"].encode("latin-1") == "text/\u2192".encode()


@pytest.mark.parametrize("path", ["/\x01", "/" + "a" * 70_000], ids=["control character", "long"])
def test_a_path_that_cannot_be_forwarded_is_the_callers_mistake(path: str) -> None:
    """The caller gets an error of its own, not one of the server."""
    with pytest.raises(ApiError) as refused:
        _ask(path)
    assert refused.value.code == 400
