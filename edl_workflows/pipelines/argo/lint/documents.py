"""The documents of the files that are checked, with the findings of reading them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_workflows.core.schemas.structural import Path, spell_path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.manifests.manifest import YamlDocument, YamlError, read_yaml

MAX_CHARACTERS = 16 * 2**20
"""Largest file. An API server accepts objects of up to 3 MiB, and a file may contain several."""
UNREADABLE = Rule(
    "unreadable",
    Severity.ERROR,
    "The file is not valid YAML, it is too large, or one of its documents is not a manifest.",
    "Correct the YAML. A file holds manifests with apiVersion, kind and metadata, separated by lines of ---.",
)
DUPLICATE_KEY = Rule(
    "duplicate-key",
    Severity.ERROR,
    "A map has the same key twice. Most YAML readers silently keep the last value; a strict API server "
    "refuses the manifest.",
    "Remove one of the two.",
)
RULES = (UNREADABLE, DUPLICATE_KEY)


@dataclass(frozen=True)
class Document:
    """One manifest.

    Attributes:
        manifest: plain values; keys are strings.
        source: the file; empty if it came from none.
        yaml: its text's lines; None if it did not come from text.
        findings: problems of the text itself.
    """

    manifest: Mapping[str, Any]
    source: str = ""
    yaml: YamlDocument | None = None
    findings: tuple[Finding, ...] = field(default=())

    @classmethod
    def of_yaml(cls, yaml: YamlDocument, source: str) -> "Document":
        """The manifest in a text."""
        findings = [
            Finding(DUPLICATE_KEY, path, f"{spell_path(path)} is set twice", DUPLICATE_KEY.remedy, line=line)
            for path, line in yaml.duplicate_keys()
        ]
        return cls(yaml.value, source, yaml, tuple(findings))

    @property
    def subject(self) -> str:
        """Its name in findings: ``Workflow default/train``."""
        metadata = self.manifest.get("metadata")
        metadata = metadata if isinstance(metadata, Mapping) else {}
        name = metadata.get("name") or metadata.get("generateName") or "(no name)"
        namespace = f"{metadata['namespace']}/" if metadata.get("namespace") else ""
        return f"{self.manifest.get('kind', '(no kind)')} {namespace}{name}"

    def line(self, path: Path) -> int:
        """The line in the file, from 1, of the field or of its closest existing parent; 0 if unknown."""
        return 0 if self.yaml is None else self.yaml.line(path)


def read_documents(text: str, source: str) -> Iterator[Document | Finding]:
    """The manifests in a text, and findings for what is not one. The items of a ``kind: List`` are separate
    documents.

    Args:
        text: YAML or JSON, one or more documents.
        source: the file, for findings.
    """
    try:
        for document in read_yaml(text, MAX_CHARACTERS):
            yield from _manifests(document, source)
    except YamlError as error:
        yield _unreadable(source, str(error), error.line)


def _unreadable(source: str, message: str, line: int) -> Finding:
    return Finding(UNREADABLE, (), message, UNREADABLE.remedy, subject="file", source=source, line=line)


def _manifests(document: YamlDocument, source: str) -> Iterator[Document | Finding]:
    value = document.value
    if value is None:
        return  # an empty document, as between two lines of ---
    if not isinstance(value, dict):
        message = f"a document is a {type(value).__name__}, but a manifest is a map"
        yield _unreadable(source, message, document.line())
    elif value.get("kind") == "List" and isinstance(value.get("items"), list):
        items = document.child("items")
        for index, item in enumerate(items.value):
            if isinstance(item, dict):
                yield Document.of_yaml(items.child(index), source)
    else:
        yield Document.of_yaml(document, source)
