"""Sends a request to the API server: raw JSON, with retries, a record for the observer, and mapped errors.
Base of `client` and `watch`."""

import json
import ssl
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

import stamina

from edl_workflows.core.exceptions import EdlError
from edl_workflows.runtime.kube import errors
from edl_workflows.runtime.kube.connect import Cluster, RequestRecord
from edl_workflows.runtime.kube.resources import JSON

MERGE_PATCH = "application/merge-patch+json"

CONNECT_SECONDS = 5.0
MAX_RETRY_AFTER = 20.0
"""Seconds; a longer Retry-After is cut to this."""


@dataclass(frozen=True)
class ApiRequest:
    """A request.

    Attributes:
        verb: get, list, watch, create, update, patch or delete; for metrics and for the HTTP method.
        plural: resource's path segment; for metrics.
        path: URL path.
        action: the request in words, as ``create ElasticJob default/mnist``; begins each error message.
        query: query parameters.
        body: what to send as JSON, or the text itself.
        content_type: the body's.
        accept: the answer's; see `Scope.accept`.
        idempotent: whether it may be sent again if the connection breaks before the answer.
        read_seconds: how long to wait for bytes of the answer; None for the cluster's policy.
    """

    verb: str
    plural: str
    path: str
    action: str
    query: tuple[tuple[str, str], ...] = ()
    body: Any = None
    content_type: str = JSON
    accept: str = JSON
    idempotent: bool = True
    read_seconds: float | None = None


_METHODS = {
    "get": "GET", "list": "GET", "watch": "GET",
    "create": "POST", "update": "PUT", "patch": "PATCH", "delete": "DELETE",
}  # fmt: skip


def send(cluster: Cluster, request: ApiRequest) -> Any:
    """Send, with retries, and read the JSON answer.

    Raises:
        EdlError: see `errors.map_error`.
    """
    return _retried(cluster, request, lambda: json.loads(_send_once(cluster, request).data or b"null"))


def send_for_text(cluster: Cluster, request: ApiRequest) -> str:
    """Send, with retries, and read a plain-text answer (a pod's log)."""
    return str(
        _retried(cluster, request, lambda: _send_once(cluster, request).data.decode("utf-8", "replace"))
    )


def open_stream(cluster: Cluster, request: ApiRequest) -> Any:
    """Send once, and return the open ``urllib3.HTTPResponse``; the caller reads and closes it."""
    with errors.mapping_errors(request.action, cluster.route):
        return _send_once(cluster, request)


def open_foreign(cluster: Cluster, request: ApiRequest) -> Any:
    """Send a GET once, which the API server passes on to a program, and return the open
    ``urllib3.HTTPResponse`` whatever its code is; the caller reads and closes it.

    The client would read the body of a refusal to its end, which a program need not reach.
    """
    with errors.mapping_errors(request.action, cluster.route):
        return _exchange(cluster, request, foreign=True)


def _retried(cluster: Cluster, request: ApiRequest, once: Callable[[], Any]) -> Any:
    """Call `once`, again and again after failures that may pass.

    The first call is made without stamina, whose preparations cost as much as a call.
    """
    policy, began = cluster.policy, time.monotonic()

    def on(error: Exception) -> bool | float:
        return retry_after(error, idempotent=request.idempotent)

    with errors.mapping_errors(request.action, cluster.route):
        try:
            return once()
        except Exception as error:
            left = policy.retry_seconds - (time.monotonic() - began)
            if policy.attempts == 1 or left <= 0 or not on(error):
                raise
            failures = [error]
        for attempt in stamina.retry_context(on=on, attempts=policy.attempts, timeout=left, wait_jitter=0.3):
            with attempt:
                if failures:
                    raise failures.pop()
                return once()
    raise AssertionError("stamina ends with a result or an exception")


def retry_after(error: Exception, *, idempotent: bool) -> bool | float:
    """Whether to send a failed request again; the seconds to wait before, if the server gave them.

    Args:
        error: what the client raised.
        idempotent: whether the request may be repeated although it may have been carried out.
    """
    import urllib3.exceptions as urllib3_errors
    from kubernetes.client.exceptions import ApiException

    if isinstance(error, ApiException):
        code = error.status or 0
        if code == 429 or (idempotent and code in (500, 502, 503, 504)):
            return _retry_after_header(error)
        return False
    cause = getattr(error, "reason", None) if isinstance(error, urllib3_errors.MaxRetryError) else error
    if isinstance(cause, urllib3_errors.NewConnectionError | urllib3_errors.ConnectTimeoutError):
        return True  # it never reached the server
    return idempotent and isinstance(cause, urllib3_errors.HTTPError | OSError)


def _retry_after_header(error: Any) -> bool | float:
    text = (error.headers or {}).get("Retry-After", "")
    return min(float(text), MAX_RETRY_AFTER) if text.isdecimal() and int(text) > 0 else True


def _send_once(cluster: Cluster, request: ApiRequest) -> Any:
    started = time.monotonic()
    code = 0
    try:
        response = _call(cluster, request)
        code = response.status
    except Exception as error:
        code = getattr(error, "status", None) or 0
        raise
    finally:
        cluster.observer(RequestRecord(request.verb, request.plural, code, time.monotonic() - started))
    return response


def _call(cluster: Cluster, request: ApiRequest) -> Any:
    if request.verb == "watch" and cluster.watches is not None:
        return cluster.watches.open(request)
    response = _exchange(cluster, request)
    if not 200 <= response.status <= 299:
        from kubernetes.client.exceptions import ApiException

        raise ApiException(http_resp=response)
    return response


def _exchange(cluster: Cluster, request: ApiRequest, *, foreign: bool = False) -> Any:
    """Send a request, and return the open answer.

    `ApiClient.call_api` is not used: it copies the body value by value, which costs more than all the rest.

    Args:
        cluster: where to.
        request: what to send.
        foreign: whether a program behind the API server gets the request. It gets no cookie, and redirects
            are not followed.
    """
    import urllib3

    api_client = cluster.api_client
    headers = {**api_client.default_headers, "Accept": request.accept}
    if not foreign:
        headers["Content-Type"] = request.content_type
        if api_client.cookie:
            headers["Cookie"] = api_client.cookie
    query = list(request.query)
    api_client.update_params_for_auth(headers, query, ["BearerToken"])
    try:
        return api_client.rest_client.pool_manager.urlopen(
            _METHODS[request.verb],
            f"{cluster.server}{request.path}{'?' if query else ''}{urlencode(query)}",
            body=_encode(request.body),
            headers=headers,
            redirect=not foreign,
            timeout=urllib3.Timeout(
                connect=CONNECT_SECONDS, read=request.read_seconds or cluster.policy.read_seconds
            ),
            preload_content=False,
        )
    except (urllib3.exceptions.SSLError, urllib3.exceptions.MaxRetryError) as error:
        if not _is_about_certificate(error):
            raise
        from kubernetes.client.exceptions import ApiException

        # As the client does. To try again would not help.
        raise ApiException(status=0, reason=f"{type(error).__name__}: {error}") from error


def _encode(body: Any) -> str | None:
    return body if body is None or isinstance(body, str) else json.dumps(body)


def _is_about_certificate(error: Exception) -> bool:
    """Whether TLS failed because of the server's certificate, and not because the connection broke."""
    from urllib3.util.ssl_match_hostname import CertificateError

    cause: Any = getattr(error, "reason", None) or error
    return bool(cause.args) and isinstance(cause.args[0], ssl.SSLCertVerificationError | CertificateError)


def lines(response: Any, longest: int = sys.maxsize) -> Iterator[bytes]:
    """Yield the lines of an open response as they arrive, without line feeds. A last line without a line feed
    is included.

    Args:
        response: from `open_stream`.
        longest: most bytes of a line; the rest of a longer line is dropped as it arrives.
    """
    rest = bytearray()
    for chunk in response.stream(65536, decode_content=True):
        *ends, begun = chunk.split(b"\n")
        for end in ends:
            rest += end
            yield bytes(rest[:longest])
            rest.clear()
        rest += begun
        del rest[longest:]
    if rest:
        yield bytes(rest)


class LineStream:
    """The lines of a response as they arrive; `close` ends the iteration from any thread.

    Args:
        cluster: the API server.
        request: sent when the iteration begins.
        longest: see `lines`.
    """

    def __init__(self, cluster: Cluster, request: ApiRequest, longest: int = sys.maxsize) -> None:
        self.closed = False
        self._cluster = cluster
        self._request = request
        self._longest = longest
        self._response: Any = None

    def __iter__(self) -> Iterator[bytes]:
        self._response = response = open_stream(self._cluster, self._request)
        try:
            if not self.closed:
                with errors.mapping_errors(self._request.action, self._cluster.route):
                    yield from lines(response, self._longest)
        except EdlError:
            if not self.closed:  # reads of a closed response fail; that is what closing means
                raise
        finally:
            response.close()

    def close(self) -> None:
        """End the iteration at once."""
        self.closed = True
        if self._response is not None:
            # Shutting the socket down wakes a reader that is blocked in it; closing would wait for it.
            with suppress(ValueError, RuntimeError, OSError):
                self._response.shutdown()
