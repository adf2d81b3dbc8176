"""Reading manifests from text as a Kubernetes client reads YAML, with the lines of their fields, within
bounds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import yaml

from edl_workflows.core.schemas.structural import Path, spell_path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.manifests.server_yaml import MAX_DEPTH, PARSE_ERRORS, Loader, too_deep

MAX_CHARACTERS = 16 * 2**20
"""Largest file. An API server accepts objects of up to 3 MiB, and a file may contain several."""
MAX_VALUES = 200_000
"""Most values in a manifest after its YAML aliases are expanded; a few nested aliases can make billions."""
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
        node: the parsed YAML with its line numbers; None if it did not come from text.
        findings: problems of the text itself.
    """

    manifest: Mapping[str, Any]
    source: str = ""
    node: Any = None
    findings: tuple[Finding, ...] = field(default=())

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
        node, line = self.node, 0 if self.node is None else self.node.start_mark.line + 1
        for step in path:
            child = _child(node, step)
            if child is None:
                break
            line, node = child
        return line


def _child(node: Any, step: str | int) -> tuple[int, Any] | None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value == step:
                return key.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
        return node.value[step].start_mark.line + 1, node.value[step]
    return None


def read_documents(text: str, source: str) -> Iterator[Document | Finding]:
    """The manifests in a text, and findings for what is not one. The items of a ``kind: List`` are separate
    documents.

    Args:
        text: YAML or JSON, one or more documents.
        source: the file, for findings.
    """
    if len(text) > MAX_CHARACTERS:
        yield _unreadable(source, f"the file is larger than {MAX_CHARACTERS >> 20} MiB")
        return
    try:
        if line := too_deep(text):
            yield _unreadable(source, f"a document is nested deeper than {MAX_DEPTH} levels", line)
            return
        loader = Loader(text)
        try:
            while loader.check_node():
                yield from _document(loader, loader.get_node(), source)
        finally:
            loader.dispose()
    except PARSE_ERRORS as error:
        mark = getattr(error, "problem_mark", None)
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        yield _unreadable(source, f"this is not valid YAML: {problem}", mark.line + 1 if mark else 0)


def _unreadable(source: str, message: str, line: int = 0) -> Finding:
    return Finding(UNREADABLE, (), message, UNREADABLE.remedy, subject="file", source=source, line=line)


def _document(loader: Any, node: Any, source: str) -> Iterator[Document | Finding]:
    line = node.start_mark.line + 1
    if problem := size_problem(node):
        yield _unreadable(source, problem, line)
        return
    value = with_text_keys(loader.construct_document(node))
    if value is None:
        return  # an empty document, as between two lines of ---
    if not isinstance(value, dict):
        yield _unreadable(source, f"a document is a {type(value).__name__}, but a manifest is a map", line)
    elif value.get("kind") == "List" and isinstance(value.get("items"), list):
        child = _child(node, "items")
        for item, inner in zip(value["items"], child[1].value if child else (), strict=False):
            if isinstance(item, dict):
                yield Document(item, source, inner, tuple(_duplicates(inner)))
    else:
        yield Document(value, source, node, tuple(_duplicates(node)))


def with_text_keys(value: Any) -> Any:
    """The value with string keys in all maps, as in JSON."""
    if isinstance(value, dict):
        return {_key(key): with_text_keys(child) for key, child in value.items()}
    if isinstance(value, list):
        return [with_text_keys(child) for child in value]
    return value


def _key(key: Any) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


def size_problem(root: Any) -> str:
    """Why a parsed YAML document exceeds the linter's bounds; empty if it does not."""
    sizes: dict[int, int] = {}
    depths: dict[int, int] = {}
    open_nodes: set[int] = set()
    waiting: list[tuple[Any, bool]] = [(root, False)]
    while waiting:
        node, done = waiting.pop()
        children = _parts(node)
        if done:
            open_nodes.discard(id(node))
            sizes[id(node)] = 1 + sum(sizes[id(child)] for child in children)
            depths[id(node)] = 1 + max((depths[id(child)] for child in children), default=0)
            if sizes[id(node)] > MAX_VALUES:
                return f"a document has more than {MAX_VALUES} values; use fewer YAML aliases"
            if depths[id(node)] > MAX_DEPTH:
                return f"a document is nested deeper than {MAX_DEPTH} levels"
        elif id(node) in open_nodes:
            return "a document contains itself by a YAML alias"
        elif id(node) not in sizes:
            open_nodes.add(id(node))
            waiting += [(node, True), *((child, False) for child in children)]
    return ""


def _parts(node: Any) -> list[Any]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _duplicates(root: Any) -> Iterator[Finding]:
    waiting: list[tuple[Any, Path]] = [(root, ())]
    seen: set[int] = set()
    while waiting:
        node, path = waiting.pop()
        if id(node) in seen:
            continue
        seen.add(id(node))
        if isinstance(node, yaml.SequenceNode):
            waiting += [(child, (*path, index)) for index, child in enumerate(node.value)]
        elif isinstance(node, yaml.MappingNode):
            keys: set[str] = set()
            for key, value in node.value:
                at = (*path, str(key.value))
                waiting.append((value, at))
                if isinstance(key.value, str) and key.value in keys and key.value != "<<":
                    line = key.start_mark.line + 1
                    yield Finding(
                        DUPLICATE_KEY, at, f"{spell_path(at)} is set twice", DUPLICATE_KEY.remedy, line=line
                    )
                if isinstance(key.value, str):
                    keys.add(key.value)


@dataclass(frozen=True)
class Scalar:
    """A scalar of a YAML text, and whether it was quoted or a block scalar."""

    text: str
    quoted: bool


def parse_styled(text: str) -> Any:
    """The first document of a YAML text with `Scalar` values, for callers to whom quotes matter.

    Raises:
        ValueError: it is not YAML, or exceeds the linter's bounds.
    """
    try:
        if line := too_deep(text):
            raise ValueError(f"it is nested deeper than {MAX_DEPTH} levels in line {line} of it")
        nodes = list(yaml.compose_all(text, Loader))
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        at = f" in line {mark.line + 1} of it" if mark else ""
        raise ValueError(f"{getattr(error, 'problem', None) or error}{at}") from error
    if not nodes or nodes[0] is None:
        raise ValueError("it is empty")
    if problem := size_problem(nodes[0]):
        raise ValueError(problem)
    return _styled(nodes[0])


def _styled(node: Any) -> Any:
    if isinstance(node, yaml.MappingNode):
        return {str(key.value): _styled(value) for key, value in node.value}
    if isinstance(node, yaml.SequenceNode):
        return [_styled(child) for child in node.value]
    return Scalar(node.value, quoted=bool(node.style))


def plain_value(value: Any) -> Any:
    """Convert the result of `parse_styled` to plain values."""
    if isinstance(value, dict):
        return {key: plain_value(child) for key, child in value.items()}
    if isinstance(value, list):
        return [plain_value(child) for child in value]
    return value.text if value.quoted else yaml.load(value.text or "null", Loader)  # noqa: S506 - a safe one
