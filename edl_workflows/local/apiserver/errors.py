"""API errors, shaped as a Kubernetes API server shapes them (``Status`` objects).

Every request that the API server rejects raises an `ApiError`. Over HTTP it becomes a ``Status`` object.
In-process callers catch the error and read `ApiError.reason`, as remote clients read the ``reason`` of the
``Status``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import EdlError


@dataclass(frozen=True)
class Cause:
    """One invalid field, as in ``status.details.causes``.

    Attributes:
        reason: ``FieldValueRequired``, ``FieldValueInvalid``, ``FieldValueTypeInvalid``, ...
        message: what is wrong, without the path.
        field: the path, such as ``spec.containers[0].name``.
    """

    reason: str
    message: str
    field: str

    def to_dict(self) -> dict[str, str]:
        return {"reason": self.reason, "message": self.message, "field": self.field}

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ApiError(EdlError):
    """A request that the API server rejects.

    Attributes:
        code: HTTP status.
        reason: the machine-readable reason, such as ``NotFound``, ``AlreadyExists``, ``Conflict``,
            ``Invalid``, ``Expired``.
        details: ``status.details``.
    """

    def __init__(self, code: int, reason: str, message: str, details: dict[str, Any] | None = None) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details or {}
        super().__init__(message)

    def __reduce__(self) -> tuple[type["ApiError"], tuple[int, str, str, dict[str, Any]]]:
        return type(self), (self.code, self.reason, self.message, self.details)

    def to_status(self) -> dict[str, Any]:
        status: dict[str, Any] = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            "code": self.code,
        }
        if self.details:
            status["details"] = self.details
        return status


def _details(resource: str, name: str) -> dict[str, Any]:
    plural, _, group = resource.partition(".")
    details = {"name": name, "group": group, "kind": plural}
    return {key: value for key, value in details.items() if value}


def not_found(resource: str, name: str) -> ApiError:
    """404: there is no such object. `resource` is ``plural`` or ``plural.group``."""
    return ApiError(404, "NotFound", f'{resource} "{name}" not found', _details(resource, name))


def already_exists(resource: str, name: str) -> ApiError:
    """409 on create: the name is taken."""
    return ApiError(409, "AlreadyExists", f'{resource} "{name}" already exists', _details(resource, name))


def conflict_error(resource: str, name: str, explanation: str) -> ApiError:
    """409 on change: the object has changed since it was read, or a precondition does not hold."""
    message = f'Operation cannot be fulfilled on {resource} "{name}": {explanation}'
    return ApiError(409, "Conflict", message, _details(resource, name))


MODIFIED = "the object has been modified; please apply your changes to the latest version and try again"


def invalid_error(group: str, kind: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: fields of the object are invalid; each problem is a `Cause`."""
    qualified = f"{kind}.{group}" if group else kind
    text = ", ".join(str(cause) for cause in causes)
    body = f"[{text}]" if len(causes) > 1 else text
    details: dict[str, Any] = {"name": name, "group": group, "kind": kind}
    details = {key: value for key, value in details.items() if value}
    details["causes"] = [cause.to_dict() for cause in causes]
    return ApiError(422, "Invalid", f'{qualified} "{name}" is invalid: {body}', details)


def too_large(resource: str, name: str, size: int, most: int) -> ApiError:
    """413: the object is larger than the store accepts."""
    message = f"etcdserver: request is too large: {resource} {name!r} has {size} bytes, of at most {most}"
    return ApiError(413, "RequestEntityTooLarge", message)


def bad_request(message: str) -> ApiError:
    """400: the request cannot be parsed."""
    return ApiError(400, "BadRequest", message)


def forbidden_error(resource: str, name: str, explanation: str) -> ApiError:
    """403: authenticated, but not allowed."""
    return ApiError(
        403, "Forbidden", f'{resource} "{name}" is forbidden: {explanation}', _details(resource, name)
    )


def unauthorized_error() -> ApiError:
    """401: the request has no bearer token, or an unknown one."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def expired_error(message: str = "The resourceVersion for the provided watch is too old.") -> ApiError:
    """410: the history no longer reaches back that far; the client must list again."""
    return ApiError(410, "Expired", message)


def method_not_allowed(
    message: str = "the server does not allow this method on the requested resource",
) -> ApiError:
    """405: the resource does not support the verb."""
    return ApiError(405, "MethodNotAllowed", message)


def unsupported_media_type(message: str) -> ApiError:
    """415: the verb does not accept the body's content type."""
    return ApiError(415, "UnsupportedMediaType", message)


def no_such_path() -> ApiError:
    """404: no resource is served at the path."""
    return ApiError(404, "NotFound", "the server could not find the requested resource")
