"""Answers reviews: objects that are posted with a question, answered in their status, and not stored.

They ask for the sender's identity, a token's owner, or permissions (authentication.k8s.io,
authorization.k8s.io).
"""

from collections.abc import Callable, Mapping

from edl_workflows.local.apiserver import auth, errors
from edl_workflows.local.apiserver.auth import Authenticator, Identity
from edl_workflows.local.apiserver.objects import admission
from edl_workflows.local.apiserver.objects.catalog import Catalog, ServedResource
from edl_workflows.local.apiserver.storage.revisions import Object

_ALL = ["*"]
_REASON = (
    "in the embedded cluster a service account may do everything in its own namespace, and read nodes, "
    "priority classes and definitions; Roles are not evaluated"
)


class Reviewer:
    def __init__(self, catalog: Catalog, authenticator: Authenticator) -> None:
        self._catalog = catalog
        self._authenticator = authenticator
        self._answers: Mapping[str, Callable[[Identity, Object], Object]] = {
            "SelfSubjectReview": lambda asking, _spec: {"userInfo": _user(asking)},
            "TokenReview": lambda _asking, spec: self._token(str(spec["token"])),
            "SelfSubjectAccessReview": self._access,
            "SubjectAccessReview": lambda _asking, spec: self._access(_subject(spec), spec),
            "SelfSubjectRulesReview": lambda asking, spec: _rules(asking, str(spec.get("namespace") or "")),
        }

    def answer(self, resource: ServedResource, asking: Identity, body: Object) -> Object:
        """The review with its status.

        Raises:
            ApiError: 400 or 422, the review is not valid.
        """
        review = admission.without_nulls({name: value for name, value in body.items() if name != "status"})
        causes = admission.check_schema(resource, review, None)
        spec = review.get("spec") or {}
        if "AccessReview" in resource.kind and ("resourceAttributes" in spec) == (
            "nonResourceAttributes" in spec
        ):
            message = "exactly one of nonResourceAttributes or resourceAttributes must be specified"
            causes.append(
                errors.Cause("FieldValueInvalid", f"Invalid value: {message}", "spec.resourceAttributes")
            )
        if causes:
            raise errors.invalid_error(resource.group, resource.kind, "", causes)
        status = self._answers[resource.kind](asking, spec)
        head = {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": {"creationTimestamp": None},
        }
        return {**head, **({"spec": spec} if spec else {}), "status": status}

    def _token(self, token: str) -> Object:
        try:
            return {"authenticated": True, "user": _user(self._authenticator.identify(f"Bearer {token}"))}
        except errors.ApiError:
            return {"authenticated": False, "error": "the token is unknown or has expired"}

    def _access(self, subject: Identity | None, spec: Object) -> Object:
        if subject is not None and self._allows(subject, spec):
            return {"allowed": True}
        return {"allowed": False, "reason": _REASON}

    def _allows(self, subject: Identity, spec: Object) -> bool:
        if "nonResourceAttributes" in spec:
            return not subject.namespace or spec["nonResourceAttributes"].get("verb") == "get"
        asked = spec["resourceAttributes"]
        group, plural = asked.get("group") or "", asked.get("resource") or ""
        resource = self._catalog.by_id(f"{plural}.{group}" if group else plural)
        namespace = "" if resource and not resource.namespaced else asked.get("namespace") or ""
        return auth.may_access(
            subject, asked.get("verb") or "", f"{plural}.{group}" if group else plural, namespace
        )


def _subject(spec: Object) -> Identity | None:
    """The subject of a SubjectAccessReview; None if it does not exist in this cluster."""
    user = str(spec.get("user") or "")
    if auth.ADMINISTRATORS in (spec.get("groups") or ()):
        return Identity(user)
    prefix, _, rest = user.partition("system:serviceaccount:")
    namespace, _, name = rest.partition(":")
    return Identity(user, namespace) if not prefix and namespace and name else None


def _user(identity: Identity) -> Object:
    return {"username": identity.name, "groups": list(identity.groups)}


def _rules(asking: Identity, namespace: str) -> Object:
    everything: Object = {"verbs": _ALL, "apiGroups": _ALL, "resources": _ALL}
    shared = [name.partition(".") for name in sorted(auth.SHARED)]
    reads: list[Object] = [
        {"verbs": sorted(auth.READS), "apiGroups": [group], "resources": [plural]}
        for plural, _, group in shared
    ]
    owns = not asking.namespace or namespace == asking.namespace
    return {
        "resourceRules": [everything] if owns else reads,
        "nonResourceRules": [{"verbs": _ALL if not asking.namespace else ["get"], "nonResourceURLs": _ALL}],
        "incomplete": False,
    }
