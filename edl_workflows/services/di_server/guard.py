"""Admission to the DI server: the client's rate, the path, the token, the job's rate and the size of the
body, in this order, before a route sees the request.
"""

import hmac
import re
from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Scope

from edl_workflows.runtime.process.http_api import (
    BodyLimit,
    ErrorAnswer,
    RequestGuard,
    bearer_token,
    error_answer,
)
from edl_workflows.runtime.process.rate_limit import RateLimit, TokenBuckets
from edl_workflows.services.di_server import messages
from edl_workflows.services.di_server.messages import JobId, JobIdError

OPEN_PATH = "/openapi.json"
CALLER = "edl.di_job"
"""Key in a request's scope: the `JobId` for which it was admitted."""
BODY_SECONDS = 10.0
"""Seconds within which a body must arrive."""

PER_CLIENT = RateLimit(per_second=50.0, burst=200.0)
PER_JOB = RateLimit(per_second=20.0, burst=100.0)
"""A program that reports every second and sometimes looks up its peers uses a twentieth of the rate; the
burst allows a hundred programs to start at once."""

_JOB_PATH = re.compile(r"/v2alpha1/(?:job/)?(?P<id>[^/]+)/(?P<call>replicas|profilings)")
_METHODS = ("GET", "POST", "DELETE")

HasToken = Callable[[JobId, str], bool]
CountAnswer = Callable[[str, str, int], None]
"""Called with the method, the call and the status of each answer."""


@dataclass(frozen=True)
class Admission:
    """Rules for admitting requests.

    Attributes:
        require_token: whether a caller must present its job's token; without it, anybody may change any job.
        admin_token: is valid for every job; "" for none.
        per_client: calls from one address.
        per_job: calls to one job.
        max_body: bytes.
    """

    require_token: bool = True
    admin_token: str = ""
    per_client: RateLimit = PER_CLIENT
    per_job: RateLimit = PER_JOB
    max_body: int = 128 * 1024


class DiGuard(RequestGuard):
    """Admits requests to the DI server.

    Args:
        app: the application behind it.
        admission: the rules.
        has_token: whether a token is the job's.
        count: called for each answer.
    """

    def __init__(self, app: ASGIApp, admission: Admission, has_token: HasToken, count: CountAnswer) -> None:
        super().__init__(app, BodyLimit(admission.max_body, BODY_SECONDS), messages.error_envelope)
        self._admission = admission
        self._has_token = has_token
        self._count = count
        self._clients = TokenBuckets(admission.per_client)
        self._jobs = TokenBuckets(admission.per_job)

    def is_open(self, path: str) -> bool:
        return path == OPEN_PATH

    def record(self, scope: Scope, status: int, seconds: float) -> None:  # noqa: ARG002
        path = _JOB_PATH.fullmatch(scope["path"])
        method = scope["method"] if scope["method"] in _METHODS else "other"
        self._count(method, path["call"] if path else "other", status)

    def admit(self, scope: Scope) -> ErrorAnswer | None:
        address = str((scope.get("client") or ("",))[0])
        if wait := self._clients.take(address):
            return messages.too_many_requests("this address", wait)
        path = _JOB_PATH.fullmatch(scope["path"])
        if path is None:
            known_paths = f"those of {OPEN_PATH}, such as /v2alpha1/{{id}}/replicas"
            return ErrorAnswer(404, f"no such path; the known paths are {known_paths}")
        return self._admit_to_job(scope, path["id"])

    def _admit_to_job(self, scope: Scope, text: str) -> ErrorAnswer | None:
        required, token = self._admission.require_token, bearer_token(scope)
        if required and not token:
            return _unauthorized("a token is required: `Authorization: Bearer $DI_TOKEN`")
        try:
            job_id = JobId.parse(text)
        except JobIdError as error:
            return error_answer(error, messages.STATUSES)
        if required and not self._knows(job_id, token):
            return _unauthorized(
                f"this is not the token of DIJob {job_id.key}; its pods have it in $DI_TOKEN"
            )
        scope[CALLER] = job_id
        wait = self._jobs.take(str(job_id.key))
        return messages.too_many_requests(f"DIJob {job_id.key}", wait) if wait else None

    def _knows(self, job_id: JobId, token: bytes) -> bool:
        admin = self._admission.admin_token.encode()
        if admin and hmac.compare_digest(admin, token):
            return True
        return self._has_token(job_id, token.decode("latin-1"))


def _unauthorized(message: str) -> ErrorAnswer:
    return ErrorAnswer(401, message, headers={"WWW-Authenticate": "Bearer"})
