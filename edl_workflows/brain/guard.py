"""Who is let in, and with how much: before a route sees a request. An ASGI middleware.

A request to the API needs a token and has a small body. Everything else that is served is the same for everybody.
"""

import contextlib
import ipaddress
import time
from collections.abc import Callable, Collection

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edl_workflows.brain import answers
from edl_workflows.brain.auth import ANYBODY, Tenant, Tokens
from edl_workflows.process.http import read_body, replay_body

API = "/v1/"
TENANT = "edl.tenant"
"""Key of a request's scope: the `Tenant` that asks."""
MAX_BODY = 8 * 2**20
"""Bytes. 500 samples of a job with 100 nodes have some 5 MB."""
BODY_SECONDS = 15.0
"""For a body to arrive."""

_OWN_ZONES = (".svc", ".local", ".internal", ".localhost")
"""Under which no public name lies: Services', and those of a site's own network."""
Count = Callable[[str, str, int, float], None]
"""Told of each request to the API: method, path's first part, status and seconds."""


class Guard:
    """Lets requests in.

    Args:
        app: what is guarded.
        tokens: who may ask; None: anybody.
        count: see `Count`.
        hosts: names that a request without a token may give as ``Host``, beside addresses and names of Services.
    """

    def __init__(
        self, app: ASGIApp, tokens: Tokens | None, count: Count, hosts: Collection[str] = ()
    ) -> None:
        self._app = app
        self._tokens = tokens
        self._count = count
        self._hosts = frozenset(host.lower() for host in hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or not scope["path"].startswith(API):
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                call = scope["path"].removeprefix(API).partition("/")[0]
                self._count(scope["method"], call, message["status"], time.perf_counter() - began)
            await send(message)

        if self._tokens is None and (wrong := _not_from_here(scope, self._hosts)):
            await answers.refusal(*wrong)(scope, receive, counted)
            return
        tenant = self._tenant(scope)
        if tenant is None:
            refusal = answers.refusal(
                401, "a token is needed: `Authorization: Bearer …`; `edl brain token` makes one"
            )
            refusal.headers["WWW-Authenticate"] = "Bearer"
            await refusal(scope, receive, counted)
            return
        scope[TENANT] = tenant
        try:
            body = await read_body(scope, receive, MAX_BODY, BODY_SECONDS)
        except ClientDisconnect:
            return
        except (OverflowError, TimeoutError) as error:
            status = 413 if isinstance(error, OverflowError) else 408
            await answers.refusal(status, str(error))(scope, receive, counted)
            return
        await self._app(scope, replay_body(body, receive), counted)

    def _tenant(self, scope: Scope) -> Tenant | None:
        if self._tokens is None:
            return ANYBODY
        scheme, _, credentials = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        if scheme.lower() != b"bearer" or not credentials.strip():
            return None
        return self._tokens.tenant_of(credentials.strip().decode("latin-1"))


def _not_from_here(scope: Scope, hosts: Collection[str]) -> tuple[int, str] | None:
    """Status and reason if a request without a token may come from a web page that somebody else wrote.

    A page's own name, made to lead here (DNS rebinding), stands in ``Host``. A page elsewhere can post a form or plain text
    here unasked, but no ``application/json``.
    """
    headers = dict(scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1").lower()
    if not _is_own_name(host, hosts):
        names = "IP addresses, localhost, names of Services and those of --allowed-host"
        return 421, f"Host {host!r}: without tokens Brain answers to {names} only"
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] not in ("GET", "HEAD") and kind != b"application/json":
        return 415, "without tokens Brain takes Content-Type: application/json only"
    return None


def _is_own_name(host: str, hosts: Collection[str]) -> bool:
    """Whether a ``Host`` is an address, one of `hosts`, or a name that no public name server can answer."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].removesuffix(".")
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return bool(name) and ("." not in name or name in hosts or name.endswith(_OWN_ZONES))
