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


FORBIDDEN = {
    "no right": (
        (
            'elasticjobs.elastic.iml.github.io "a" is forbidden: User "ann" cannot delete resource '
            '"elasticjobs" in API group "elastic.iml.github.io" in the namespace "ml"'
        ),
        "ask for a Role that allows it",
    ),
    "no right on a path": (
        'forbidden: User "ann" cannot get path "/metrics"',
        "ask for a Role that allows it",
    ),
    "no right on an owner": (
        (
            'pods "a" is forbidden: cannot set blockOwnerDeletion if an ownerReference refers to a resource '
            "you can't set finalizers on: , <nil>"
        ),
        "ask for a Role that allows it",
    ),
    "no credentials": (
        (
            'pods is forbidden: User "system:anonymous" cannot list resource "pods" in API group "" at the '
            "cluster scope"
        ),
        "check the kubeconfig's user",
    ),
    "escalation": (
        (
            'roles.rbac.authorization.k8s.io "a" is forbidden: user "ann" (groups=["ml"]) is attempting to '
            "grant RBAC permissions not currently held:"
        ),
        "only rights that it has",
    ),
    "quota": (
        'pods "a" is forbidden: exceeded quota: team, requested: pods=1, used: pods=3, limited: pods=3',
        "larger ResourceQuota",
    ),
    "quota of a class": (
        'pods "a" is forbidden: insufficient quota to match these scopes: [{PriorityClass In [high]}]',
        "larger ResourceQuota",
    ),
    "quota that counts limits": (
        'pods "a" is forbidden: failed quota: team: must specify limits.cpu for: master',
        "resources of the pod template",
    ),
    "PriorityClass": (
        'pods "a" is forbidden: no PriorityClass with name high was found',
        "remove priorityClassName",
    ),
    "ServiceAccount": (
        'pods "a" is forbidden: error looking up service account ml/train: serviceaccount "train" not found',
        "create the ServiceAccount",
    ),
    "RuntimeClass": (
        'pods "a" is forbidden: pod rejected: RuntimeClass "gvisor" not found',
        "runtimeClassName",
    ),
    "Pod Security": (
        'pods "a" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false',
        "securityContext",
    ),
    "LimitRange": (
        (
            'pods "a" is forbidden: [maximum cpu usage per Container is 1, but limit is 2, cpu max limit to '
            "request ratio per Container is 1, but provided ratio is 2.000000]"
        ),
        "LimitRange allows",
    ),
    "namespace": (
        'pods "a" is forbidden: unable to create new content in namespace ml because it is being terminated',
        "the namespace is being deleted",
    ),
    "webhook": (
        'admission webhook "validate.kyverno.svc-fail" denied the request: no latest images',
        "a policy of the cluster refuses it",
    ),
    "policy": (
        (
            "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'edl-masters' with binding 'edl-masters' "
            "denied request: masters only"
        ),
        "a policy of the cluster refuses it",
    ),
    "another": ('pods "a" is forbidden: something new', "change what the server names"),
}


@pytest.mark.parametrize("row", FORBIDDEN)
def test_advice_fits_the_cause_of_a_403(row: str) -> None:
    """The message of a 403 says what the user can do about its cause; only for missing rights that is to ask
    for a Role. The rows are Kubernetes' own messages."""
    message, advice = FORBIDDEN[row]
    (raised, watched) = (
        errors.map_error(_api_exception(403, _status(403, "Forbidden", message)), "create Pod ml/a"),
        errors.of_status(_status(403, "Forbidden", message), "create Pod ml/a"),
    )

    assert str(raised) == str(watched)
    assert f"{message} (403); " in str(raised)
    assert advice in str(raised).partition(" (403); ")[2]
    assert ("ask for a Role" in str(raised)) == (row.startswith("no right") or row == "another")


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
