"""Admission to the Brain: a request to the API needs a tenant's token and has a bounded body.

The other paths (the web page, the OpenAPI document) are open and the same for every client.
"""

import contextlib
import ipaddress
from collections.abc import Callable, Collection

from starlette.types import ASGIApp, Scope

from edl_workflows.runtime.process.http_api import BodyLimit, ErrorAnswer, RequestGuard, bearer_token
from edl_workflows.services.brain.auth import ANYBODY, TokenFile

API = "/v1/"
TENANT = "edl.tenant"
"""Key in a request's scope: the `Tenant` that sent it."""
MAX_BODY = 8 * 2**20
"""Largest body in bytes. 500 samples of a job with 100 nodes have about 5 MB."""
BODY_SECONDS = 15.0
"""Seconds in which a body must arrive."""

_OWN_ZONES = (".svc", ".local", ".internal", ".localhost")
"""DNS zones without public names: that of Services, and those for private networks."""
CountAnswer = Callable[[str, str, int, float], None]
"""Called for each response of the API, with the method, the first part of the path, the status and the
duration in seconds."""


class BrainGuard(RequestGuard):
    """Admits requests to the Brain's API.

    Args:
        app: the application behind it.
        tokens: the tenants' tokens; None: every client is admitted.
        count: called for each response.
        hosts: values of ``Host`` that are accepted without tokens, in addition to IP addresses and names of
            Services.
    """

    def __init__(
        self, app: ASGIApp, tokens: TokenFile | None, count: CountAnswer, hosts: Collection[str] = ()
    ) -> None:
        super().__init__(app, BodyLimit(MAX_BODY, BODY_SECONDS))
        self._tokens = tokens
        self._count = count
        self._hosts = frozenset(host.lower() for host in hosts)

    def is_open(self, path: str) -> bool:
        return not path.startswith(API)

    def record(self, scope: Scope, status: int, seconds: float) -> None:
        call = scope["path"].removeprefix(API).partition("/")[0]
        self._count(scope["method"], call, status, seconds)

    def admit(self, scope: Scope) -> ErrorAnswer | None:
        if self._tokens is None:
            scope[TENANT] = ANYBODY
            return _cross_site_refusal(scope, self._hosts)
        token = bearer_token(scope).decode("latin-1")
        tenant = self._tokens.tenant_of(token) if token else None
        if tenant is None:
            message = "a token is required: `Authorization: Bearer …`; `edl brain token` creates one"
            return ErrorAnswer(401, message, headers={"WWW-Authenticate": "Bearer"})
        scope[TENANT] = tenant
        return None


def _cross_site_refusal(scope: Scope, hosts: Collection[str]) -> ErrorAnswer | None:
    """Reject a request without a token that a foreign web page may have caused.

    With DNS rebinding, ``Host`` contains the name of that page. A page of another origin can send forms and
    plain text without a CORS preflight, but not ``application/json``.
    """
    headers = dict(scope["headers"])
    host = headers.get(b"host", b"").decode("latin-1").lower()
    if not _is_own_name(host, hosts):
        names = "IP addresses, localhost, names of Services and the names of --allowed-host"
        return ErrorAnswer(421, f"Host {host!r}: without tokens, the Brain accepts only {names}")
    kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
    if scope["method"] not in ("GET", "HEAD") and kind != b"application/json":
        return ErrorAnswer(415, "without tokens, the Brain accepts only Content-Type: application/json")
    return None


def _is_own_name(host: str, hosts: Collection[str]) -> bool:
    """Whether a ``Host`` is an IP address, one of `hosts`, or a name that public DNS cannot resolve."""
    name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0].removesuffix(".")
    with contextlib.suppress(ValueError):
        ipaddress.ip_address(name)
        return True
    return bool(name) and ("." not in name or name in hosts or name.endswith(_OWN_ZONES))
