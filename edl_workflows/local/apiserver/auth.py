"""Bearer tokens: authentication and authorization.

There are two kinds of identity. Administrators, whose tokens are given at the start, may do everything.
Service accounts, whose signed tokens the ``serviceaccounts/token`` subresource issues, may do everything in
their own namespace and read nodes, priority classes and definitions; nothing else. That is not RBAC, but it
keeps one namespace's jobs out of another's.
"""

import base64
import hashlib
import hmac
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.requests import RequestTarget
from edl_workflows.local.apiserver.storage.revisions import StoreKey
from edl_workflows.local.apiserver.storage.store import ObjectStore

READS = frozenset({"get", "list", "watch"})
SHARED = frozenset(
    {"nodes", "priorityclasses.scheduling.k8s.io", "customresourcedefinitions.apiextensions.k8s.io"}
)
"""Cluster-scoped resources that every service account may read."""
SELF_REVIEWS = frozenset(
    {
        "selfsubjectreviews.authentication.k8s.io",
        "selfsubjectaccessreviews.authorization.k8s.io",
        "selfsubjectrulesreviews.authorization.k8s.io",
    }
)
"""Reviews about the sender itself; every identity may create them."""
ADMINISTRATORS = "system:masters"
_PREFIX = "edl-sa"
DEFAULT_TOKEN_SECONDS = 3600
MIN_TOKEN_SECONDS = 600
MAX_TOKEN_SECONDS = 2**32
"""Shortest and longest lifetime that may be requested for a token, in seconds, as in Kubernetes."""


@dataclass(frozen=True)
class Identity:
    """The sender of a request.

    Attributes:
        name: user name, ``admin`` or ``system:serviceaccount:NAMESPACE:NAME``.
        namespace: the only namespace that it may access; empty for administrators.
    """

    name: str
    namespace: str = ""

    @property
    def groups(self) -> tuple[str, ...]:
        if not self.namespace:
            return ADMINISTRATORS, "system:authenticated"
        return "system:serviceaccounts", f"system:serviceaccounts:{self.namespace}", "system:authenticated"


class Authenticator:
    """Maps tokens to identities.

    Args:
        admins: names of the administrators by token.
        key: signs service-account tokens.
        objects: the store, to check that a service account still exists.
        now: the clock, in seconds since the epoch.
    """

    def __init__(
        self, admins: Mapping[str, str], key: str, objects: ObjectStore, now: Callable[[], float] = time.time
    ) -> None:
        self._admins = {hashlib.sha256(token.encode()).digest(): name for token, name in admins.items()}
        self._key = key.encode()
        self._store = objects
        self._now = now

    def identify(self, authorization: str) -> Identity:
        """The identity behind an ``Authorization`` header.

        Raises:
            ApiError: 401.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer":
            raise errors.unauthorized_error()
        # Tokens are looked up by digest, so that the duration of a lookup reveals nothing about them.
        admin = self._admins.get(hashlib.sha256(token.strip().encode()).digest())
        return Identity(admin) if admin else self._account(token.strip())

    def _sign(self, payload: str) -> str:
        return (
            base64.urlsafe_b64encode(hmac.digest(self._key, payload.encode(), "sha256")).decode().rstrip("=")
        )

    def _account(self, token: str) -> Identity:
        prefix, _, rest = token.partition(".")
        payload, _, signature = rest.partition(".")
        if prefix != _PREFIX or not hmac.compare_digest(signature.encode(), self._sign(payload).encode()):
            raise errors.unauthorized_error()
        claims = json.loads(base64.urlsafe_b64decode(payload))
        account = self._store.get(StoreKey("serviceaccounts", claims["namespace"], claims["name"]))
        if claims["expires"] < self._now() or account is None or account.uid != claims["uid"]:
            raise errors.unauthorized_error()
        return Identity(f"system:serviceaccount:{claims['namespace']}:{claims['name']}", claims["namespace"])

    def issue(self, namespace: str, name: str, seconds: int) -> tuple[str, float]:
        """Issue a token for a service account. Returns the token and its expiry (seconds since the epoch).

        Raises:
            ApiError: 404, no such account.
        """
        account = self._store.require(StoreKey("serviceaccounts", namespace, name))
        expires = self._now() + seconds
        claims = {"namespace": namespace, "name": name, "uid": account.uid, "expires": expires}
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode()
        return f"{_PREFIX}.{payload}.{self._sign(payload)}", expires


def may_access(identity: Identity, verb: str, resource_id: str, namespace: str) -> bool:
    """Whether an identity may do something.

    Args:
        identity: the sender of the request.
        verb: the Kubernetes verb.
        resource_id: the resource, such as ``leases.coordination.k8s.io``.
        namespace: empty for cluster-scoped resources and for all namespaces.
    """
    if not identity.namespace or namespace == identity.namespace:
        return True
    return (verb in READS and resource_id in SHARED) or (verb == "create" and resource_id in SELF_REVIEWS)


def require_access(identity: Identity, verb: str, target: RequestTarget) -> None:
    """Reject a request that the identity may not make.

    Raises:
        ApiError: 403.
    """
    resource, namespace = target.resource, target.namespace
    if may_access(identity, verb, resource.id, namespace):
        return
    where = f' in the namespace "{namespace}"' if namespace else " at the cluster scope"
    group = f'API group "{resource.group}"'
    right = "/".join(filter(None, (resource.plural, target.subresource)))
    raise errors.forbidden_error(
        resource.id, target.name, f'User "{identity.name}" cannot {verb} resource "{right}" in {group}{where}'
    )
