"""Every exception of the Kubernetes client becomes one of ours."""

import email.errors
import inspect
import json
from types import ModuleType
from typing import Any

import kubernetes.client.exceptions
import kubernetes.config
import kubernetes.config.config_exception
import pytest
import urllib3
import urllib3.exceptions

from edl_workflows.core import exceptions
from edl_workflows.runtime.kube import errors


def _status(code: int, reason: str, message: str = "no", **details: Any) -> dict[str, Any]:
    return {"kind": "Status", "code": code, "reason": reason, "message": message, "details": details}


def _api_exception(code: int, body: object) -> Exception:
    error = kubernetes.client.exceptions.ApiException(status=code, reason="Reason")
    error.body = body if isinstance(body, str) else json.dumps(body)
    return error  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("code", "body", "kind", "says"),
    [
        pytest.param(400, _status(400, "BadRequest"), exceptions.InvalidError, "correct", id="bad request"),
        pytest.param(401, _status(401, "Unauthorized"), exceptions.ForbiddenError, "renew",
            id="no credentials"),
        pytest.param(403, _status(403, "Forbidden"), exceptions.ForbiddenError, "Role", id="no rights"),
        pytest.param(404, _status(404, "NotFound", name="x"), exceptions.NotFoundError, "name",
            id="no object"),
        pytest.param(404, "404 page not found", exceptions.NotFoundError, "edl crds install", id="no kind"),
        pytest.param(
            404, _status(404, "NotFound", name="n", kind="namespaces"), exceptions.NotFoundError,
            "create the namespace", id="no namespace",
        ),
        pytest.param(409, _status(409, "AlreadyExists"), exceptions.AlreadyExistsError, "name", id="exists"),
        pytest.param(409, _status(409, "Conflict"), exceptions.ConflictError, "read", id="changed meanwhile"),
        pytest.param(410, _status(410, "Expired"), errors.ExpiredError, "list anew", id="expired"),
        pytest.param(422, _status(422, "Invalid"), exceptions.InvalidError, "correct",
            id="invalid, no causes"),
        pytest.param(429, _status(429, "TooManyRequests"), exceptions.UnavailableError, "later", id="busy"),
        pytest.param(500, "<html>oops</html>", exceptions.UnavailableError, "oops", id="no JSON"),
        pytest.param(503, "", exceptions.UnavailableError, "Reason", id="empty body"),
        pytest.param(0, "", exceptions.UnavailableError, "certificate", id="TLS failure"),
    ],
)  # fmt: skip
def test_status_codes(code: int, body: object, kind: type[Exception], says: str) -> None:
    """Each status code raises the error class that tells the caller what to do."""
    ours = errors.map_error(_api_exception(code, body), "get Pod ns/x")

    assert kind is type(ours)
    assert "get Pod ns/x" in str(ours)
    assert says in str(ours)


def test_invalid_names_each_field() -> None:
    """A 422 becomes a ManifestError with the path of each field that the server names."""
    causes = [{"field": "spec.a", "message": "Required value"}, {"field": "spec.b", "reason": "TooLong"}]
    ours = errors.map_error(_api_exception(422, _status(422, "Invalid", causes=causes)), "create Pod ns/x")

    assert isinstance(ours, exceptions.ManifestError)
    assert [(p.path, p.message) for p in ours.problems] == [
        ("spec.a", "Required value"),
        ("spec.b", "TooLong"),
    ]


def _exceptions_of(*modules: ModuleType) -> list[type[Exception]]:
    members = [cls for module in modules for _, cls in inspect.getmembers(module, inspect.isclass)]
    raised = {c for c in members if issubclass(c, Exception) and c.__module__ != "builtins"}
    return sorted(raised - {email.errors.MessageDefect}, key=lambda c: c.__qualname__)


@pytest.mark.parametrize(
    "kind",
    _exceptions_of(kubernetes.client.exceptions, kubernetes.config.config_exception, urllib3.exceptions),
)
def test_nothing_is_unmapped(kind: type[Exception]) -> None:
    """No exception class of the client or of its HTTP library crosses the layer."""
    error = kind.__new__(kind)
    error.args = ("it broke",)
    # What urllib3 formats of its classes, and http.client of its own.
    partial: object = b"" if kind.__module__ == "http.client" else 0
    vars(error).update(partial=partial, expected=1, length=b"z", response=urllib3.HTTPResponse())
    if isinstance(error, kubernetes.client.exceptions.ApiException):
        error.status, error.reason, error.body = 500, "it broke", None

    assert isinstance(errors.map_error(error, "do it"), exceptions.EdlError)


def test_defects_pass() -> None:
    """An unexpected error, which is a defect of our own, is raised unchanged."""
    with pytest.raises(KeyError), errors.mapping_errors("do it"):
        raise KeyError("x")


def test_connection_errors_name_the_server() -> None:
    """An error of the connection names the server, and contains no addresses of Python objects."""
    refused = urllib3.exceptions.NewConnectionError(object(), "[Errno 111] Connection refused")  # type: ignore[arg-type]
    ours = errors.map_error(refused, "list pods", "https://10.0.0.1:6443")

    assert "https://10.0.0.1:6443" in str(ours)
    assert "0x" not in str(ours)
    assert "Connection refused" in str(ours)
    assert "edl local up" not in str(ours)
    assert "edl local up" in str(errors.map_error(refused, "list pods", "https://127.0.0.1:45767"))
