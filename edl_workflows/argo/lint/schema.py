"""What a strict API server checks in an Argo object: the schema of its definition, and its CEL rules.

`edl_workflows.argo.lint.crds` writes ``schemas.jsonl`` from Argo's full CustomResourceDefinitions.
"""

import functools
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self

from edl_workflows.argo.lint import cel
from edl_workflows.argo.lint.findings import Finding, Path, Rule, Severity, did_you_mean

UNKNOWN_FIELD = Rule(
    "unknown-field",
    Severity.ERROR,
    "A field that the kind does not have. An API server that isn't asked to be strict drops it without a "
    "word.",
    "Correct the name, or the place.",
)
REMOVED_FIELD = Rule(
    "removed-field",
    Severity.ERROR,
    "A field that Argo 4.0 removed (schedule, mutex, semaphore, podPriority).",
    "Use the field that has replaced it.",
)
MISSING_FIELD = Rule("missing-field", Severity.ERROR, "A required field is missing.", "Add the field.")
WRONG_TYPE = Rule(
    "wrong-type",
    Severity.ERROR,
    "A value of the wrong type, as a number where a text belongs.",
    "Give it the type; YAML reads 1, true and yes as no texts unless they are quoted.",
)
WRONG_VALUE = Rule(
    "wrong-value",
    Severity.ERROR,
    "A value that the definition does not allow: not one of a list, out of bounds, not of a pattern.",
    "Use one that is allowed.",
)
BAD_NAME = Rule(
    "bad-name",
    Severity.ERROR,
    "A name that Argo refuses: templates, steps and tasks have letters, digits and '-' and begin with a "
    "letter or digit; parameters and artifacts may also have '_'.",
    "Rename it.",
)
DUPLICATE_ENTRY = Rule(
    "duplicate-entry",
    Severity.ERROR,
    "Two entries of a list have the same key where keys are unique.",
    "Remove one, or give it another key.",
)
QUOTED_NUMBER = Rule(
    "quoted-number",
    Severity.ERROR,
    "A placeholder between quotes where a number or boolean belongs: the value arrives as a text and is "
    "refused.",
    "Write it without quotes; `{{=asInt(inputs.parameters.workers)}}` also refuses what is no number.",
)
RULES = (
    UNKNOWN_FIELD, REMOVED_FIELD, MISSING_FIELD, WRONG_TYPE, WRONG_VALUE, BAD_NAME, DUPLICATE_ENTRY,
    QUOTED_NUMBER,
)  # fmt: skip

_REPLACED = (
    ("spec", "schedule", 'schedules: ["…"]'),
    ("synchronization", "mutex", "mutexes: [{name: …}]"),
    ("synchronization", "semaphore", "semaphores: [{configMapKeyRef: …}]"),
    ("", "podPriority", "podPriorityClassName"),
)
"""The field's parent (empty for any), the field, and its replacement since Argo 4.0."""
_ANYTHING: Mapping[str, Any] = {"x-kubernetes-preserve-unknown-fields": True}
_OBJECT_META = frozenset(
    [
        "annotations",
        "creationTimestamp",
        "deletionGracePeriodSeconds",
        "deletionTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
        "selfLink",
        "uid",
    ]
)
_OWNER = frozenset(["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"])
_TYPES: Mapping[str, Callable[[Any], bool]] = {
    "object": lambda value: isinstance(value, Mapping),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: _is_integer(value) or (isinstance(value, float) and value.is_integer()),
    "number": lambda value: _is_integer(value) or isinstance(value, float),
}
_ARTICLES = {
    "object": "a map",
    "array": "a list",
    "string": "a text",
    "integer": "an integer",
    "boolean": "true or false",
}


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**63


class Placeholder(str):
    """A string with a placeholder, whose value is known only when the workflow runs.

    Attributes:
        quoted: it is quoted, so it remains a string.
        whole: it consists of the placeholder alone.
    """

    quoted: bool
    whole: bool

    def __new__(cls, text: str, *, quoted: bool, whole: bool) -> Self:
        made = super().__new__(cls, text)
        made.quoted, made.whole = quoted, whole
        return made


@dataclass(frozen=True)
class Schemas:
    """Definitions in which equal parts are stored once.

    Attributes:
        version: of Argo Workflows.
        kinds: the number of each kind's schema.
        nodes: all schemas; those in ``properties``, ``items`` and ``additionalProperties`` are numbers.
    """

    version: str
    kinds: Mapping[str, int]
    nodes: tuple[dict[str, Any], ...]

    def template(self) -> int:
        """The number of a template's schema, for templates that definitions do not describe (``inline``)."""
        spec = self.nodes[self.nodes[self.kinds["Workflow"]]["properties"]["spec"]]
        templates = self.nodes[spec["properties"]["templates"]]
        return int(templates["items"])

    def check_object(self, manifest: Mapping[str, Any]) -> Iterator[Finding]:
        """Check an object of one of the kinds."""
        yield from _metadata(manifest.get("metadata"))
        number = self.kinds[manifest["kind"]]
        # These the server checks by rules of its own; metadata above.
        known = {**self.nodes[number]["properties"], **dict.fromkeys(("apiVersion", "kind", "metadata"), -1)}
        yield from _Walk(self).fields(manifest, {**self.nodes[number], "properties": known}, ())

    def check_value(self, value: Any, number: int, path: Path) -> Iterator[Finding]:
        """Check a value against one of the schemas."""
        yield from _Walk(self).check(value, number, path)


def _metadata(metadata: Any) -> Iterator[Finding]:
    """The server's checks of any kind's metadata, which definitions do not describe."""
    if not isinstance(metadata, Mapping):
        return
    for field, value in metadata.items():
        path: Path = ("metadata", field)
        if field not in _OBJECT_META:
            yield _unknown(path, field, _OBJECT_META)
        elif field in ("labels", "annotations") and isinstance(value, Mapping):
            wrong = ((k, v) for k, v in value.items() if v is not None and not isinstance(v, str))
            yield from (WRONG_TYPE.at((*path, k), f"a text is needed, this is {_shown(v)}") for k, v in wrong)
        elif field == "ownerReferences" and isinstance(value, list):
            owners = enumerate(one for one in value if isinstance(one, Mapping))
            yield from (
                _unknown((*path, i, key), key, _OWNER) for i, one in owners for key in one.keys() - _OWNER
            )


@functools.cache
def load() -> Schemas:
    """The shipped definitions."""
    text = (resources.files("edl_workflows.argo.lint") / "schemas.jsonl").read_text(encoding="utf-8")
    header, *nodes = (json.loads(line) for line in text.splitlines())
    kinds = {kind: row["schema"] for kind, row in header["kinds"].items()}
    return Schemas(header["version"], kinds, tuple(nodes))


def from_definition(schema: Mapping[str, Any], kind: str) -> Schemas:
    """Convert a CustomResourceDefinition's schema to this form."""
    nodes: list[dict[str, Any]] = []

    def add(plain: Mapping[str, Any]) -> int:
        node = dict(plain)
        if "properties" in node:
            node["properties"] = {name: add(child) for name, child in node["properties"].items()}
        for keyword in ("items", "additionalProperties"):
            if isinstance(node.get(keyword), Mapping):
                node[keyword] = add(node[keyword])
        nodes.append(node)
        return len(nodes) - 1

    number = add(schema)
    return Schemas("", {kind: number}, tuple(nodes))


def _unknown(path: Path, field: str, known: Any) -> Finding:
    for parent, name, now in _REPLACED:
        if field == name and parent in ("", *path[-2:-1]):
            return REMOVED_FIELD.at(path, f"{field} was removed in Argo 4.0", f"Write {now} instead.")
    return UNKNOWN_FIELD.at(
        path, f"there is no field {field!r} here", did_you_mean(field, sorted(known), 0.7)
    )


@dataclass(frozen=True)
class _Walk:
    """Walks over a value together with its schema."""

    schemas: Schemas

    def check(self, value: Any, number: int, path: Path) -> Iterator[Finding]:
        schema = self.schemas.nodes[number] if number >= 0 else _ANYTHING
        if isinstance(value, Placeholder):
            yield from _placeholder(value, schema, path)
            return
        problem = _type_problem(value, schema)
        if problem:
            yield WRONG_TYPE.at(path, problem)
            return
        yield from _bounds(value, schema, path)
        if isinstance(value, list):
            value = value[: schema.get("maxItems")]  # that there are too many has been told
        if isinstance(value, Mapping):
            yield from self.fields(value, schema, path)
        elif isinstance(value, list):
            yield from self.entries(value, schema, path)
        if schema.get("rules"):
            yield from cel.broken_rules(value, schema["rules"], path)

    def fields(self, value: Mapping[str, Any], schema: Mapping[str, Any], path: Path) -> Iterator[Finding]:
        properties, extra = schema.get("properties", {}), schema.get("additionalProperties")
        for field in schema.get("required", ()):
            defaulted = "default" in self.schemas.nodes[properties[field]] if field in properties else False
            if value.get(field) is None and not defaulted:
                yield MISSING_FIELD.at((*path, field), f"{field} is required here")
        for field, child in value.items():
            at = (*path, field)
            if field in properties:
                if child is not None:  # a null is taken away before the server validates
                    yield from self.check(child, properties[field], at)
            elif isinstance(extra, int) and not isinstance(extra, bool):
                yield from self.check(child, extra, at)
            elif not (extra or schema.get("x-kubernetes-preserve-unknown-fields")):
                yield _unknown(at, field, properties)

    def entries(self, value: list[Any], schema: Mapping[str, Any], path: Path) -> Iterator[Finding]:
        if isinstance(schema.get("items"), int):
            for index, child in enumerate(value):
                yield from self.check(child, schema["items"], (*path, index))
        yield from self._unique(value, schema, path)

    def _unique(self, value: list[Any], schema: Mapping[str, Any], path: Path) -> Iterator[Finding]:
        kind = schema.get("x-kubernetes-list-type")
        if kind not in ("map", "set"):
            return
        fields = self.schemas.nodes[schema["items"]].get("properties", {})
        defaults = {key: self.schemas.nodes[number].get("default") for key, number in fields.items()}
        keys = schema.get("x-kubernetes-list-map-keys", ())
        seen: set[str] = set()
        for index, entry in enumerate(value):
            if kind == "map" and not isinstance(entry, Mapping):
                continue
            found = {key: entry.get(key, defaults.get(key)) for key in keys} if kind == "map" else entry
            text = json.dumps(found, sort_keys=True, default=str)
            if text in seen:
                yield DUPLICATE_ENTRY.at((*path, index), f"there is another entry with {text}")
            seen.add(text)


def _placeholder(value: Placeholder, schema: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    wanted = schema.get("type", "string")
    if wanted == "string" or schema.get("x-kubernetes-int-or-string"):
        return
    article = _ARTICLES.get(wanted, f"a {wanted}")
    if not value.whole:
        yield WRONG_TYPE.at(path, f"{str(value)!r} can never be {article}")
    elif value.quoted:
        yield QUOTED_NUMBER.at(path, f"{str(value)!r} stands between quotes, {article} is needed")


def _type_problem(value: Any, schema: Mapping[str, Any]) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return (
            ""
            if isinstance(value, str) or _is_integer(value)
            else f"{_shown(value)} is neither integer nor text"
        )
    wanted = schema.get("type")
    if wanted is None or (value is None and schema.get("nullable")) or _TYPES[wanted](value):
        return ""
    return f"{_ARTICLES.get(wanted, f'a {wanted}')} is needed, this is {_shown(value)}"


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "a map" if isinstance(value, Mapping) else "a list"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _bounds(value: Any, schema: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    if "enum" in schema and value not in schema["enum"]:
        allowed = ", ".join(json.dumps(entry) for entry in schema["enum"] if entry != "")
        yield WRONG_VALUE.at(path, f"{_shown(value)} is none of {allowed}")
    for keyword, size, unit in _LIMITS:
        if keyword in schema and size(value) is not None:
            limit, found = schema[keyword], size(value)
            if found < limit if keyword.startswith("min") else found > limit:
                bound = "at least" if keyword.startswith("min") else "at most"
                yield WRONG_VALUE.at(path, f"{bound} {limit}{unit} allowed, this is {found}")
    if "pattern" in schema and isinstance(value, str) and not re.search(schema["pattern"], value):
        rule = BAD_NAME if path[-1:] == ("name",) else WRONG_VALUE
        yield rule.at(path, f"{_shown(value)} does not match {schema['pattern']}")


def _number(value: Any) -> Any:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def _length(value: Any) -> Any:
    return len(value) if isinstance(value, str) else None


def _count(value: Any) -> Any:
    return len(value) if isinstance(value, list) else None


_LIMITS: tuple[tuple[str, Callable[[Any], Any], str], ...] = (
    ("minimum", _number, ""), ("maximum", _number, ""),
    ("minLength", _length, " characters"), ("maxLength", _length, " characters"),
    ("minItems", _count, " entries"), ("maxItems", _count, " entries"),
)  # fmt: skip
