"""Who is let in, how often, and with how much: before a route sees a request. An ASGI middleware.

In this order: the client's rate, the path, the body's size, the token, the job's rate. A body is read whole before anything
looks into it; it is small.
"""

import hmac
import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edl_workflows.di_server import answers
from edl_workflows.di_server.ids import JobId, JobIdError
from edl_workflows.di_server.limits import Buckets, Rate
from edl_workflows.process.http import read_body, replay_body

OPEN_PATH = "/openapi.json"
CALLER = "edl.di_job"
"""Key of a request's scope: the `JobId` for which it was let in."""
BODY_SECONDS = 10.0
"""For a body to arrive."""

PER_CLIENT = Rate(per_second=50.0, burst=200.0)
PER_JOB = Rate(per_second=20.0, burst=100.0)
"""A program that reports every second and looks for its peers now and then uses a twentieth; a hundred may start at once."""

_JOB_PATH = re.compile(r"/v2alpha1/(?:job/)?(?P<id>[^/]+)/(?P<call>replicas|profilings)")
_METHODS = ("GET", "POST", "DELETE")

HasToken = Callable[[JobId, str], bool]
Count = Callable[[str, str, int], None]
"""Told of each request: method, call and status."""


@dataclass(frozen=True)
class Admission:
    """Who is let in.

    Attributes:
        require_token: whether a caller must show its job's token; without it anybody may change any job.
        admin_token: lets in to every job; "" for none.
        per_client: calls of one address.
        per_job: calls to one job.
        max_body: bytes.
    """

    require_token: bool = True
    admin_token: str = ""
    per_client: Rate = PER_CLIENT
    per_job: Rate = PER_JOB
    max_body: int = 128 * 1024


class Guard:
    """Lets requests in.

    Args:
        app: what is guarded.
        admission: see there.
        has_token: whether a token is the job's.
        count: see `Count`.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        admission: Admission,
        has_token: HasToken,
        count: Count,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._app = app
        self._admission = admission
        self._has_token = has_token
        self._count = count
        self._clients = Buckets(admission.per_client, clock)
        self._jobs = Buckets(admission.per_job, clock)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http" or scope["path"] == OPEN_PATH:
            await self._app(scope, receive, send)
            return
        path = _JOB_PATH.fullmatch(scope["path"])

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                method = scope["method"] if scope["method"] in _METHODS else "other"
                self._count(method, path["call"] if path else "other", message["status"])
            await send(message)

        refusal = self._too_often(self._clients, str((scope.get("client") or ("",))[0]), "this address")
        if refusal is None and path is None:
            refusal = answers.failure(
                404, f"no such path; known are those of {OPEN_PATH}, as /v2alpha1/{{id}}/replicas"
            )
        try:
            body = b"" if refusal else await read_body(scope, receive, self._admission.max_body, BODY_SECONDS)
        except ClientDisconnect:
            return
        except (OverflowError, TimeoutError) as error:
            body = b""
            refusal = answers.failure(413 if isinstance(error, OverflowError) else 408, str(error))
        if refusal is None and path is not None:
            refusal = self._admit(scope, path["id"])
        if refusal is not None:
            await refusal(scope, receive, counted)
            return
        await self._app(scope, replay_body(body, receive), counted)

    def _admit(self, scope: Scope, text: str) -> Response | None:
        """Let the caller in for its job, or say why not."""
        admission = self._admission
        scheme, _, credentials = dict(scope["headers"]).get(b"authorization", b"").partition(b" ")
        token = credentials.strip() if scheme.lower() == b"bearer" else b""
        if admission.require_token and not token:
            return _unknown("a token is needed: `Authorization: Bearer $DI_TOKEN`")
        try:
            job_id = JobId.parse(text)
        except JobIdError as error:
            return answers.of_error(error)
        if admission.require_token and not self._known(job_id, token):
            return _unknown(f"the token is not that of DIJob {job_id.key}; it stands in the pods' $DI_TOKEN")
        scope[CALLER] = job_id
        return self._too_often(self._jobs, str(job_id.key), f"DIJob {job_id.key}")

    def _known(self, job_id: JobId, token: bytes) -> bool:
        admin = self._admission.admin_token.encode()
        if admin and hmac.compare_digest(admin, token):
            return True
        return self._has_token(job_id, token.decode("latin-1"))

    @staticmethod
    def _too_often(buckets: Buckets, key: str, who: str) -> Response | None:
        wait = buckets.take(key)
        return answers.later(429, f"too many requests of {who}; try again later", wait) if wait else None


def _unknown(message: str) -> Response:
    return answers.failure(401, message, {"WWW-Authenticate": "Bearer"})
