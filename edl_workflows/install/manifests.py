"""The manifests of an installation, in the order in which they are applied, and their YAML text."""

from typing import Any

import yaml

from edl_workflows.install import admission, rbac, workloads
from edl_workflows.install.options import InstallOptions
from edl_workflows.jobs import schema

Manifest = dict[str, Any]

PART_OF = {"app.kubernetes.io/part-of": "edl-workflows"}
"""Label of every object, by which `kubectl get … -l` finds an installation."""


def installation_manifests(options: InstallOptions) -> list[Manifest]:
    """All objects of an installation. An object comes after those that it needs."""
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
    """The objects as YAML documents. The text depends only on the objects."""
    return yaml.dump_all(objects, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


class _Plain(yaml.SafeDumper):
    """Writes YAML without anchors: equal parts are repeated, which is easier to read and to compare."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return True


def _namespace(name: str) -> Manifest:
    labels = {"pod-security.kubernetes.io/enforce": "restricted"}
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}}


def _definitions(options: InstallOptions) -> list[Manifest]:
    """The definitions, as `edl crds print` prints them."""
    return [
        schema.make_crd(
            kind.source.api.group, kind.source.api.version, kind.source.api.plural, kind.model, kind.crd
        )
        for kind in options.rows
    ]
