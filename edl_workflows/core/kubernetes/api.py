"""Resource types of the Kubernetes API: their names, and their paths on an API server. Pure;
`edl_workflows.runtime.kube` sends.
"""

from dataclasses import dataclass
from urllib.parse import quote

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names


@dataclass(frozen=True)
class ApiResource:
    """One kind as the API serves it (discovery's APIResource).

    Attributes:
        group: "" for the core group.
        version: as ``v1``.
        plural: as ``pods``; the path segment.
        kind: as ``Pod``; what manifests say.
        namespaced: whether objects live in a namespace.
    """

    group: str
    version: str
    plural: str
    kind: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The ``apiVersion`` in manifests."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """URL path of the collection (of all namespaces for ""), an object or a subresource of it.

        Raises:
            InvalidError: namespace or name is ``.`` or ``..``: HTTP clients normalize such a path, so it
                would name another object.
        """
        parts = ["/apis", self.group, self.version] if self.group else ["/api", self.version]
        if self.namespaced and namespace:
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        parts += [_segment(part) for part in (name, subresource) if part]
        return "/".join(parts)


def _segment(text: str) -> str:
    if text in (".", ".."):
        raise InvalidError(f"{text!r} can be neither a name nor a namespace; correct it")
    return quote(text, safe="")


NAMESPACES = ApiResource("", "v1", "namespaces", "Namespace", namespaced=False)
NODES = ApiResource("", "v1", "nodes", "Node", namespaced=False)
PODS = ApiResource("", "v1", "pods", "Pod")
SERVICES = ApiResource("", "v1", "services", "Service")
CONFIG_MAPS = ApiResource("", "v1", "configmaps", "ConfigMap")
SECRETS = ApiResource("", "v1", "secrets", "Secret")
SERVICE_ACCOUNTS = ApiResource("", "v1", "serviceaccounts", "ServiceAccount")
EVENTS = ApiResource("", "v1", "events", "Event")
LEASES = ApiResource("coordination.k8s.io", "v1", "leases", "Lease")
ROLES = ApiResource("rbac.authorization.k8s.io", "v1", "roles", "Role")
ROLE_BINDINGS = ApiResource("rbac.authorization.k8s.io", "v1", "rolebindings", "RoleBinding")
NETWORK_POLICIES = ApiResource("networking.k8s.io", "v1", "networkpolicies", "NetworkPolicy")
CRDS = ApiResource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", "CustomResourceDefinition", namespaced=False
)
ELASTIC_JOBS = ApiResource(names.GROUP, names.VERSION, "elasticjobs", "ElasticJob")
SCALE_PLANS = ApiResource(names.GROUP, names.VERSION, "scaleplans", "ScalePlan")
TF_JOBS = ApiResource("kubeflow.org", "v1", "tfjobs", "TFJob")
TRAINING_JOBS = ApiResource("paddlepaddle.org", "v1", "trainingjobs", "TrainingJob")
DI_JOBS = ApiResource("diengine.opendilab.org", "v2alpha1", "dijobs", "DIJob")
POD_GROUPS = ApiResource("scheduling.volcano.sh", "v1beta1", "podgroups", "PodGroup")
"""Volcano's definition of a gang."""
