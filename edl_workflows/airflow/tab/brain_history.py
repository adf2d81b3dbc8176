"""Reads what a Brain has stored about a job."""

from urllib.parse import quote

import httpx
from pydantic import ValidationError

from edl_workflows.core.exceptions import ForbiddenError, UnavailableError
from edl_workflows.services.brain.page.messages import JobAnswer

ANSWER_SECONDS = 5.0
MAX_ANSWER = 4 * 1024 * 1024
"""Largest response in bytes."""


def read_history(
    url: str, token: str, uid: str, transport: httpx.BaseTransport | None = None
) -> JobAnswer | None:
    """What a Brain has stored about a job; None if it does not know the job.

    Args:
        url: URL of the Brain.
        token: token of a tenant that may read the job's namespace; "" for a Brain without tokens.
        uid: uid of the job.
        transport: for tests.

    Raises:
        ForbiddenError: the Brain does not accept the token.
        UnavailableError: the Brain can't be reached, or its response is unexpected.
    """
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    address = f"{url.rstrip('/')}/v1/jobs/{quote(uid, safe='')}"
    try:
        with (
            httpx.Client(timeout=ANSWER_SECONDS, transport=transport, trust_env=False) as client,
            client.stream("GET", address, headers=headers) as response,
        ):
            body = bytearray()
            for part in response.iter_bytes():
                body += part
                if len(body) > MAX_ANSWER:
                    raise UnavailableError(f"Brain at {url} answered more than {MAX_ANSWER} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise UnavailableError(f"Brain at {url} does not answer: {error!r}") from error
    if response.status_code == httpx.codes.NOT_FOUND:
        return None
    if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ForbiddenError(f"Brain at {url} does not admit the token; correct edl_brain_token")
    try:
        if response.is_error:
            raise UnavailableError(f"Brain at {url} answered {response.status_code}")
        return JobAnswer.model_validate_json(bytes(body))
    except ValidationError as error:
        raise UnavailableError(f"Brain at {url} answered something else than a job") from error
