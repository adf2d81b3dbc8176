"""Writes or checks the linter's ``schemas.jsonl``: ``python -m release.argo_schemas FOLDER --version V4.X.Y
--write|--check``.

FOLDER is ``manifests/base/crds/full`` of Argo Workflows' Go module. The file keeps what decides whether an
object is accepted: types, fields, bounds, CEL rules. It leaves out descriptions. A part that occurs several
times, as a template's schema does in four kinds, is stored once, on a line of its own, and other parts refer
to it by the number of its line.
"""

import argparse
import json
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

SOURCE = "github.com/argoproj/argo-workflows/v4"
FILE = "schemas.jsonl"
KEPT = (
    "type", "required", "enum", "pattern", "format", "default", "nullable", "minimum", "maximum", "minLength",
    "maxLength",
    "minItems", "maxItems", "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-list-type",
    "x-kubernetes-list-map-keys",
)  # fmt: skip
DROPPED = ("description", "x-kubernetes-map-type", "anyOf")
"""Keywords that don't affect whether an object is accepted. ``anyOf`` occurs only next to
x-kubernetes-int-or-string and means the same."""


class SchemaNodes:
    """Schema nodes, each stored once, in the order in which they were added: a node's parts precede it."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    @property
    def lines(self) -> list[str]:
        """Their JSON texts, by number."""
        return list(self._numbers)

    def add(self, schema: Mapping[str, Any]) -> int:
        """The number of a schema.

        Raises:
            SystemExit: the schema has a keyword that this program does not know.
        """
        node: dict[str, Any] = {}
        for keyword, value in sorted(schema.items()):
            if keyword == "properties":
                node[keyword] = {name: self.add(child) for name, child in sorted(value.items())}
            elif keyword in ("items", "additionalProperties") and isinstance(value, Mapping):
                node[keyword] = self.add(value)
            elif keyword == "x-kubernetes-validations":
                node["rules"] = [" ".join(rule["rule"].split()) for rule in value]
            elif keyword in KEPT:
                node[keyword] = value
            elif keyword not in DROPPED:
                sys.exit(f"the schema keyword {keyword!r} is not known here: decide whether it is kept")
        text = json.dumps(node, separators=(",", ":"), ensure_ascii=False)
        return self._numbers.setdefault(text, len(self._numbers))


def render(folder: Path, version: str) -> str:
    """The whole file: a header line, then one line per node."""
    nodes, kinds = SchemaNodes(), {}
    for path in sorted(folder.glob("argoproj.io_*.yaml")):
        definition = yaml.load(path.read_text(encoding="utf-8"), yaml.CSafeLoader)["spec"]
        (served,) = definition["versions"]
        kinds[definition["names"]["kind"]] = {
            "version": served["name"],
            "schema": nodes.add(served["schema"]["openAPIV3Schema"]),
        }
    header = json.dumps({"source": SOURCE, "version": version, "group": "argoproj.io", "kinds": kinds})
    return "\n".join([header, *nodes.lines]) + "\n"


def main(arguments: list[str] | None = None) -> int:
    """Write the file, or check that it agrees with the definitions.

    Returns:
        The exit status.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="manifests/base/crds/full of Argo Workflows")
    parser.add_argument("--version", required=True, help="of Argo Workflows, as v4.1.4")
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument("--write", action="store_true", help="write the file")
    mode.add_argument("--check", action="store_true", help="fail if the file is not up to date")
    chosen = parser.parse_args(arguments)
    path = Path(str(resources.files("edl_workflows.pipelines.argo.lint"))) / FILE
    text = render(chosen.folder, chosen.version)
    if chosen.write:
        path.write_text(text, encoding="utf-8")
    elif not path.exists() or path.read_text(encoding="utf-8") != text:
        sys.stderr.write(f"{path} is not up to date: run this with --write\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
