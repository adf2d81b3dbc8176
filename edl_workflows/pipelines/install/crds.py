"""The kinds' CustomResourceDefinitions, and the command that writes or checks the generated ``crds/*.yaml``:
``python -m edl_workflows.pipelines.install.crds --write|--check``.
"""

import sys
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.schemas import definition as schema
from edl_workflows.pipelines.install.generated import write_or_check

COMMAND = "python -m edl_workflows.pipelines.install.crds --write"
HEADER = f"# Generated from the models by `{COMMAND}`; `make lint` checks it.\n"


class _Plain(yaml.SafeDumper):
    """Writes YAML without anchors: equal parts are repeated, which is easier to read and to compare. Strings
    have PyYAML's default style, which Hera changes for the whole process on import."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return True


_Plain.add_representer(str, yaml.representer.SafeRepresenter.represent_str)


def crd_of_kind(kind: Kind) -> dict[str, Any]:
    """A kind's CustomResourceDefinition."""
    api = kind.source.api
    return schema.make_crd(api.group, api.version, api.plural, kind.model, kind.crd)


def render_yaml(documents: Iterable[Mapping[str, Any]]) -> str:
    """Manifests as YAML documents. The text depends only on the manifests."""
    return yaml.dump_all(documents, Dumper=_Plain, sort_keys=False, allow_unicode=True, width=120)


def render_crd(kind: Kind) -> str:
    """The text of a kind's file in ``crds/``."""
    return HEADER + render_yaml([crd_of_kind(kind)])


def main(arguments: list[str] | None = None) -> int:
    """Write the files, or report those that are out of date.

    Returns:
        The exit status.
    """
    folder = Path(str(resources.files("edl_workflows.core.jobs"))) / "crds"
    files = {folder / f"{kind.source.api.plural}.yaml": render_crd(kind) for kind in KINDS}
    return write_or_check(files, COMMAND, arguments)


if __name__ == "__main__":
    sys.exit(main())
