"""The API server's way to pods behind Services: a GET whose answer is bounded in time and size.

The pod gets the path, the query and what the caller accepts, and none of the caller's credentials.
"""

import asyncio
from collections.abc import Callable

import httpx
from starlette.responses import Response

from edl_workflows.local.apiserver.errors import ApiError, bad_request
from edl_workflows.local.apiserver.subresources import ProxyRequest
from edl_workflows.local.network.ports import LOOPBACK

ANSWER_SECONDS = 10.0
MAX_ANSWER_BYTES = 2**20
PortLookup = Callable[[str, str, int], int | None]
"""Namespace, name and port of a Service → the host port on which the pod behind it listens; None if there is
no such pod."""


class ServiceProxy:
    """Answers the API server's ``services/proxy``.

    Args:
        find_port: where pods listen.
    """

    def __init__(self, find_port: PortLookup) -> None:
        self._find_port = find_port

    async def get(self, request: ProxyRequest) -> Response:
        """What the pod answers.

        Raises:
            ApiError: 400, the path can't be forwarded; 502, it answers at too great length; 503, there is
                none, or it does not answer.
        """
        host_port = self._find_port(request.namespace, request.service, request.port)
        if host_port is None:
            raise _unavailable(f'no endpoints available for service "{request.service}"')
        try:
            url = httpx.URL(f"http://{LOOPBACK}:{host_port}").copy_with(
                path=request.path, query=request.query.encode() or None
            )
        except httpx.InvalidURL as error:
            raise bad_request(f"the path or the query can't be forwarded: {error}") from error
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await _get(url, request.accept)
        except (httpx.HTTPError, TimeoutError) as error:
            raise _unavailable(
                f"error trying to reach service: {str(error) or type(error).__name__}"
            ) from error


def _unavailable(message: str) -> ApiError:
    return ApiError(503, "ServiceUnavailable", message)


async def _get(url: httpx.URL, accept: str) -> Response:
    body = bytearray()
    headers = {b"accept": accept.encode("latin-1"), b"accept-encoding": b"identity"}
    async with (
        # The scheme is always http. Otherwise each client would load the machine's certificates.
        httpx.AsyncClient(verify=False, trust_env=False, timeout=ANSWER_SECONDS) as client,  # noqa: S501
        client.stream("GET", url, headers=headers) as answer,
    ):
        async for chunk in answer.aiter_raw():
            body += chunk
            if len(body) > MAX_ANSWER_BYTES:
                raise ApiError(502, "BadGateway", f"the answer has more than {MAX_ANSWER_BYTES} bytes")
    answer.headers.encoding = "latin-1"  # as Starlette encodes them again
    kept = ("content-type", "content-encoding")
    forwarded = {name: answer.headers[name] for name in kept if name in answer.headers}
    return Response(bytes(body), answer.status_code, forwarded)
