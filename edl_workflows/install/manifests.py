"""An installation's manifests, in the order of applying, and as text."""

from typing import Any

import yaml

from edl_workflows.install import admission, rbac, workloads
from edl_workflows.install.options import InstallOptions
from edl_workflows.jobs import schema

Manifest = dict[str, Any]

PART_OF = {"app.kubernetes.io/part-of": "edl-workflows"}
"""On every object: `kubectl get … -l` finds an installation by it."""


def installation_manifests(options: InstallOptions) -> list[Manifest]:
    """Every object of an installation: those that others need stand before them."""
    objects = [
        _namespace(options.namespace),
        *_definitions(options),
        *rbac.access_manifests(options),
        *(admission.admission_policies(options) if options.admission_policies else ()),
        *workloads.workload_manifests(options),
    ]
    for one in objects:
        one["metadata"]["labels"] = PART_OF | one["metadata"].get("labels", {})
    return objects


def render_manifests(objects: list[Manifest]) -> str:
    """The objects as YAML documents; the same objects give the same text."""
    return yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    """No anchors: equal parts are written out, as people and diffs want them."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return True


def _namespace(name: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _definitions(options: InstallOptions) -> list[Manifest]:
    """As `edl crds print` has them."""
    return [
        schema.make_crd(
            kind.source.api.group, kind.source.api.version, kind.source.api.plural, kind.model, kind.crd
        )
        for kind in options.rows
    ]
