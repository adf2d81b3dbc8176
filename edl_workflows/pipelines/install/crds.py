"""The kinds' CustomResourceDefinitions, and the command that writes or checks the generated ``crds/*.yaml``:
``python -m edl_workflows.pipelines.install.crds --write|--check``.
"""

import argparse
import sys
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.schemas import definition as schema

HEADER = (
    "# Generated from the models by `python -m edl_workflows.pipelines.install.crds --write`; "
    "`make lint` checks it.\n"
)


class _Plain(yaml.SafeDumper):
    """Writes YAML without anchors: equal parts are repeated, which is easier to read and to compare."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        return True


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
    parser = argparse.ArgumentParser(description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the files")
    mode.add_argument("--check", action="store_true", help="fail if a file is not up to date")
    write = parser.parse_args(arguments).write
    folder = Path(str(resources.files("edl_workflows.core.jobs"))) / "crds"
    stale = []
    for kind in KINDS:
        path = folder / f"{kind.source.api.plural}.yaml"
        text = render_crd(kind)
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if write:
            folder.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        else:
            stale.append(str(path))
    if stale:
        sys.stderr.write(
            f"not up to date: {', '.join(stale)}; run "
            "`python -m edl_workflows.pipelines.install.crds --write`\n"
        )
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
