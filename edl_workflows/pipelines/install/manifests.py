"""The manifests of an installation, in the order in which they are applied."""

from collections.abc import Iterator
from typing import Any

from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install import admission, flow_control, rbac, workloads
from edl_workflows.pipelines.install.crds import crd_of_kind
from edl_workflows.pipelines.install.monitoring.manifests import monitoring_manifests
from edl_workflows.pipelines.install.options import CrdMode, InstallOptions

Manifest = dict[str, Any]


def installation_manifests(options: InstallOptions) -> list[Manifest]:
    """The objects of an installation. An object comes after those that it needs."""
    shared = () if options.crds is CrdMode.WITHOUT else _shared_manifests(options)
    own = () if options.crds is CrdMode.ONLY else _own_manifests(options)
    objects = [*shared, *own]
    for manifest in objects:
        manifest["metadata"]["labels"] = names.PART_OF | manifest["metadata"].get("labels", {})
    return objects


def _shared_manifests(options: InstallOptions) -> Iterator[Manifest]:
    """What all installations of a cluster share. To delete a definition deletes every team's jobs."""
    yield from map(crd_of_kind, options.job_kinds)
    yield from rbac.shared_roles()
    if options.flow_schemas:
        yield from flow_control.priority_levels()


def _own_manifests(options: InstallOptions) -> Iterator[Manifest]:
    yield _namespace(options.namespace)
    yield from rbac.access_manifests(options)
    if options.admission_policies:
        yield from admission.admission_policies(options)
    if options.flow_schemas:
        yield from flow_control.flow_schemas(options)
    yield from workloads.workload_manifests(options)
    if options.monitoring:
        yield from monitoring_manifests(options)


def _namespace(name: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}
