"""Converts all exceptions of the Kubernetes client and its libraries into those of
`edl_workflows.core.exceptions`.

`map_error` is the table; `mapping_errors` applies it around a block. A message says what was requested, why
it failed (in the server's words), and what to do.
"""

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException
from typing import Any

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    ManifestError,
    NotFoundError,
    Problem,
    UnavailableError,
)
from edl_workflows.runtime.kube.forbidden import advise_forbidden

_LOOPBACK = "https://127.0.0.1:"
_PROXY_ADVICE = "; HTTPS_PROXY, HTTP_PROXY, NO_PROXY or the kubeconfig's proxy-url chose the proxy"
_LOCAL_ADVICE = "; if it is the embedded cluster, start it with `edl local up`"


class ExpiredError(UnavailableError):
    """A resourceVersion or a LIST's continue token is too old (410). Informers handle it by a new LIST."""


@contextmanager
def mapping_errors(action: str, server: str = "") -> Iterator[None]:
    """Map the exceptions that a block raises.

    Args:
        action: what the block does, such as ``create ElasticJob default/mnist``.
        server: its address and the way to it (`connect.Cluster.route`), for errors of the connection.

    Raises:
        EdlError: instead of an exception of the client. Other exceptions pass.
    """
    try:
        yield
    except EdlError:
        raise
    except Exception as error:
        ours = map_error(error, action, server)
        if ours is None:
            raise
        raise ours from error


def map_error(error: Exception, action: str, server: str = "") -> EdlError | None:
    """Our error for an exception of the client; None if the exception is not one of the client's.

    Args:
        error: what the client raised.
        action: what was requested, as ``create ElasticJob default/mnist``.
        server: its address and the way to it (`connect.Cluster.route`), for errors of the connection.
    """
    import urllib3.exceptions
    from kubernetes.client.exceptions import ApiException, OpenApiException
    from kubernetes.config import ConfigException

    where = f" {server}" if server else ""
    match error:
        case ApiException():
            return _of_api_exception(error, action)
        case OpenApiException():
            return InvalidError(f"cannot {action}: {error}; correct the call")
        case ConfigException():
            return InvalidError(
                f"cannot {action}: {_first_line(error)}; check the file, or name another with --kubeconfig "
                "and --context"
            )
        case urllib3.exceptions.LocationValueError() | urllib3.exceptions.ProxySchemeUnsupported():
            return InvalidError(
                f"cannot {action}: the server's or the proxy's address is malformed ({error}); correct the "
                "kubeconfig"
            )
        case urllib3.exceptions.HTTPError() | urllib3.exceptions.HTTPWarning() | HTTPException():
            return UnavailableError(
                f"cannot {action}: {_connection_cause(error)}; check that the API server{where} runs and can "
                f"be reached{_connection_advice(server)}"
            )
        case json.JSONDecodeError() | UnicodeDecodeError():
            return UnavailableError(
                f"cannot {action}: the answer is not JSON ({error}); is there a proxy before the API server?"
            )
        case OSError():
            return UnavailableError(
                f"cannot {action}: {error}; check the connection to the API server{where}"
            )
    return None


def _connection_advice(server: str) -> str:
    if " through the proxy " in server:
        return _PROXY_ADVICE
    return _LOCAL_ADVICE if server.startswith(_LOOPBACK) else ""


def of_status(status: Mapping[str, Any], action: str) -> EdlError:
    """Our error for a ``metav1.Status`` that says Failure, as a watch delivers it."""
    return _of_code(int(status.get("code") or 500), status, action)


def parse_status(body: Any) -> dict[str, Any]:
    """The ``metav1.Status`` in an error's body; for any other body, a status with its text as the message."""
    text = body.decode("utf-8", "replace") if isinstance(body, bytes) else str(body or "")
    try:
        status = json.loads(text)
    except json.JSONDecodeError:
        status = None
    if isinstance(status, dict) and (status.get("kind") == "Status" or "message" in status):
        return status
    return {"message": text[:500].strip()}


def _of_api_exception(error: Any, action: str) -> EdlError:
    if not error.status:  # the client wraps a failed TLS handshake in an ApiException with status 0
        return UnavailableError(
            f"cannot {action}: {str(error.reason).strip()}; check the server's certificate and the "
            "kubeconfig's CA"
        )
    status = parse_status(error.body)
    status["message"] = status.get("message") or str(error.reason or "")
    return _of_code(int(error.status), status, action)


def _of_code(code: int, status: Mapping[str, Any], action: str) -> EdlError:
    message = str(status.get("message") or "").strip().rstrip(".") or "no reason given"
    prefix = f"cannot {action}: {message} ({code})"
    match code:
        case 401:
            return ForbiddenError(f"{prefix}; the credentials are missing or expired: renew them")
        case 403:
            return ForbiddenError(f"{prefix}; {advise_forbidden(message)}")
        case 404:
            return NotFoundError(f"{prefix}; {_missing_advice(status)}")
        case 409:
            return _conflict(status, prefix)
        case 410:
            return ExpiredError(f"{prefix}; list anew")
        case 422 if problems := _problems(status):
            return ManifestError(f"cannot {action}", problems)
        case 408 | 429:
            return UnavailableError(f"{prefix}; the server is busy: try again later")
        case _ if code >= 500:
            return UnavailableError(f"{prefix}; the server has trouble: try again later")
    return InvalidError(f"{prefix}; correct the request")


def _conflict(status: Mapping[str, Any], prefix: str) -> ConflictError:
    if status.get("reason") == "AlreadyExists":
        return AlreadyExistsError(f"{prefix}; choose another name or delete the object")
    return ConflictError(f"{prefix}; read the object and try again")


def _missing_advice(status: Mapping[str, Any]) -> str:
    details = status.get("details") or {}
    if details.get("kind") == "namespaces":
        return "create the namespace first"
    if details.get("name"):
        return "check the name and the namespace"
    return "does the server have this kind? CRDs are installed with `edl crds install [NAME]...`"


def _problems(status: Mapping[str, Any]) -> list[Problem]:
    causes = (status.get("details") or {}).get("causes") or []
    return [Problem(str(c.get("field") or ""), str(c.get("message") or c.get("reason"))) for c in causes]


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__


def _connection_cause(error: Any) -> str:
    """The innermost reason, without urllib3's object addresses."""
    reason = getattr(error, "reason", None)
    inner = reason if isinstance(reason, Exception) else error
    return _first_line(inner).split(">: ", 1)[-1].split("object at 0x", 1)[-1].split(": ", 1)[-1]
