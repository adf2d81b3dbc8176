"""The manifests of an installation, in the order in which they are applied."""

from typing import Any

from edl_workflows.pipelines.install import admission, rbac, workloads
from edl_workflows.pipelines.install.crds import crd_of_kind
from edl_workflows.pipelines.install.options import InstallOptions

Manifest = dict[str, Any]

PART_OF = {"app.kubernetes.io/part-of": "edl-workflows"}
"""Label of every object, by which `kubectl get … -l` finds an installation."""


def installation_manifests(options: InstallOptions) -> list[Manifest]:
    """All objects of an installation. An object comes after those that it needs."""
    objects = [
        _namespace(options.namespace),
        *map(crd_of_kind, options.job_kinds),
        *rbac.access_manifests(options),
        *(admission.admission_policies(options) if options.admission_policies else ()),
        *workloads.workload_manifests(options),
    ]
    for manifest in objects:
        manifest["metadata"]["labels"] = PART_OF | manifest["metadata"].get("labels", {})
    return objects


def _namespace(name: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
