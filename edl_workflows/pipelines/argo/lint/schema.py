"""What a strict API server checks in an Argo object: the schema of its definition, and its CEL rules.

`release.argo_schemas` writes ``schemas.jsonl`` from Argo's full CustomResourceDefinitions.
"""

import functools
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any, Self

from edl_workflows.core.schemas import structural
from edl_workflows.core.schemas.structural import (
    ANYTHING,
    INT_OR_STRING,
    PLACEHOLDER,
    TYPE_META,
    Path,
    Schema,
    SchemaChecker,
    Violation,
)
from edl_workflows.pipelines.argo.lint import cel
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity, did_you_mean

UNKNOWN_FIELD = Rule(
    "unknown-field",
    Severity.ERROR,
    "A field that the kind does not have. An API server drops it silently unless it is asked to be strict.",
    "Correct the field's name or position.",
)
REMOVED_FIELD = Rule(
    "removed-field",
    Severity.ERROR,
    "A field that Argo 4.0 removed (schedule, mutex, semaphore, podPriority).",
    "Use the field that replaced it.",
)
MISSING_FIELD = Rule("missing-field", Severity.ERROR, "A required field is missing.", "Add the field.")
WRONG_TYPE = Rule(
    "wrong-type",
    Severity.ERROR,
    "A value of the wrong type, such as a number where a string is required.",
    "Use a value of the required type. YAML reads unquoted 1, true and yes as numbers and booleans, not "
    "as strings.",
)
WRONG_VALUE = Rule(
    "wrong-value",
    Severity.ERROR,
    "A value that the definition does not allow: it is not in the list of allowed values, is out of "
    "bounds, or does not match the pattern.",
    "Use an allowed value.",
)
BAD_NAME = Rule(
    "bad-name",
    Severity.ERROR,
    "A name that Argo refuses. Names of templates, steps and tasks consist of letters, digits and '-' "
    "and start with a letter or digit; names of parameters and artifacts may also contain '_'.",
    "Rename it.",
)
DUPLICATE_ENTRY = Rule(
    "duplicate-entry",
    Severity.ERROR,
    "Two entries of a list have the same key, although keys must be unique.",
    "Remove one of the entries, or change its key.",
)
QUOTED_NUMBER = Rule(
    "quoted-number",
    Severity.ERROR,
    "A quoted placeholder where a number or boolean is required: the value arrives as a string and is "
    "refused.",
    "Write the placeholder without quotes. `{{=asInt(inputs.parameters.workers)}}` also refuses values "
    "that are not numbers.",
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
_OBJECT_META = frozenset((
    "annotations", "creationTimestamp", "deletionGracePeriodSeconds", "deletionTimestamp", "finalizers",
    "generateName", "generation", "labels", "managedFields", "name", "namespace", "ownerReferences",
    "resourceVersion", "selfLink", "uid",
))  # fmt: skip
_OWNER = frozenset(["apiVersion", "kind", "name", "uid", "controller", "blockOwnerDeletion"])
_ARTICLES = {
    "object": "a map",
    "array": "a list",
    "string": "a string",
    "integer": "an integer",
    "boolean": "true or false",
}


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
    """Definitions of kinds. Equal parts of them are one object.

    Attributes:
        version: of Argo Workflows; empty for other definitions.
        kinds: the schema of each kind.
    """

    version: str
    kinds: Mapping[str, Schema]

    def template(self) -> Schema:
        """A template's schema, for templates that definitions do not describe (``inline``)."""
        spec = self.kinds["Workflow"]["properties"]["spec"]
        template: Schema = spec["properties"]["templates"]["items"]
        return template

    def check_object(self, manifest: Mapping[str, Any]) -> Iterator[Finding]:
        """Check an object of one of the kinds."""
        yield from _metadata(manifest.get("metadata"))
        schema = self.kinds[manifest["kind"]]
        # The server checks these fields with its own rules; `_metadata` does so for metadata.
        properties = {**schema["properties"], **dict.fromkeys(TYPE_META, ANYTHING)}
        yield from self.check_value(dict(manifest), {**schema, "properties": properties}, ())

    def check_value(self, value: Any, schema: Schema, path: Path) -> Iterator[Finding]:
        """Check a value against one of the schemas."""
        for violation in _CHECKER.violations(value, schema, path):
            yield from _findings(violation)


_CHECKER = SchemaChecker(as_written=True, placeholder=Placeholder, further={"rules": cel.broken_rules})


def _metadata(metadata: Any) -> Iterator[Finding]:
    """The server's checks of any kind's metadata, which definitions do not describe."""
    if not isinstance(metadata, Mapping):
        return
    for field, value in metadata.items():
        path: Path = ("metadata", field)
        if field not in _OBJECT_META:
            yield _unknown(path, _OBJECT_META)
        elif field in ("labels", "annotations") and isinstance(value, Mapping):
            wrong = ((k, v) for k, v in value.items() if v is not None and not isinstance(v, str))
            yield from (
                WRONG_TYPE.at((*path, k), f"a string is needed, but this is {_shown(v)}") for k, v in wrong
            )
        elif field == "ownerReferences" and isinstance(value, list):
            owners = enumerate(owner for owner in value if isinstance(owner, Mapping))
            yield from (
                _unknown((*path, i, key), _OWNER) for i, owner in owners for key in owner.keys() - _OWNER
            )


@functools.cache
def load_schemas() -> Schemas:
    """The shipped definitions."""
    text = (resources.files("edl_workflows.pipelines.argo.lint") / "schemas.jsonl").read_text(
        encoding="utf-8"
    )
    header, *nodes = (json.loads(line) for line in text.splitlines())
    for node in nodes:
        if "properties" in node:
            node["properties"] = {name: nodes[number] for name, number in node["properties"].items()}
        for keyword in ("items", "additionalProperties"):
            if keyword in node and not isinstance(node[keyword], bool):
                node[keyword] = nodes[node[keyword]]
    kinds = {kind: nodes[definition["schema"]] for kind, definition in header["kinds"].items()}
    return Schemas(header["version"], kinds)


def _findings(violation: Violation) -> Iterator[Finding]:
    keyword, path, value, limit = violation.keyword, violation.path, violation.value, violation.limit
    if keyword == PLACEHOLDER:
        yield from _placeholder(value, violation.schema, path)
    elif keyword == structural.UNKNOWN_FIELD:
        yield _unknown(path, violation.schema.get("properties") or ())
    elif keyword == "required":
        yield MISSING_FIELD.at(path, f"{path[-1]} is required here")
    elif keyword == "type":
        article = _ARTICLES.get(limit, f"a {limit}")
        yield WRONG_TYPE.at(path, f"{article} is needed, but this is {_shown(value)}")
    elif keyword == INT_OR_STRING:
        yield WRONG_TYPE.at(path, f"{_shown(value)} is neither an integer nor a string")
    elif keyword == structural.LIST_TYPE:
        text = json.dumps(value, sort_keys=True, default=str)
        yield DUPLICATE_ENTRY.at(path, f"there is another entry with {text}")
    elif keyword == "rules":
        yield cel.rule_finding(limit, path, value)
    else:
        rule = BAD_NAME if keyword == "pattern" and path[-1:] == ("name",) else WRONG_VALUE
        yield rule.at(path, _value_problem(keyword, value, limit))


def _unknown(path: Path, valid_names: Iterable[str]) -> Finding:
    field = str(path[-1])
    for parent, name, now in _REPLACED:
        if field == name and parent in ("", *path[-2:-1]):
            return REMOVED_FIELD.at(path, f"{field} was removed in Argo 4.0", f"Write {now} instead.")
    return UNKNOWN_FIELD.at(
        path, f"there is no field {field!r} here", did_you_mean(field, sorted(valid_names), 0.7)
    )


def _placeholder(value: Placeholder, schema: Schema, path: Path) -> Iterator[Finding]:
    required_type = schema.get("type", "string")
    if required_type == "string" or schema.get(INT_OR_STRING):
        return
    article = _ARTICLES.get(required_type, f"a {required_type}")
    if not value.whole:
        yield WRONG_TYPE.at(path, f"{str(value)!r} can't become {article}")
    elif value.quoted:
        yield QUOTED_NUMBER.at(path, f"{str(value)!r} is quoted, but {article} is needed")


def _value_problem(keyword: str, value: Any, limit: Any) -> str:
    if keyword == "enum":
        return (
            f"{_shown(value)} is not one of {', '.join(json.dumps(entry) for entry in limit if entry != '')}"
        )
    if keyword == "pattern":
        return f"{_shown(value)} does not match {limit}"
    if keyword not in _BOUNDS:
        return f"{_shown(value)} does not satisfy {keyword}: {json.dumps(limit)}"
    bound, unit = _BOUNDS[keyword]
    return f"{bound} {limit}{unit} allowed, but this is {len(value) if unit else value}"


_BOUNDS: Mapping[str, tuple[str, str]] = {
    "minimum": ("at least", ""),
    "maximum": ("at most", ""),
    "minLength": ("at least", " characters"),
    "maxLength": ("at most", " characters"),
    "minItems": ("at least", " entries"),
    "maxItems": ("at most", " entries"),
    "minProperties": ("at least", " fields"),
    "maxProperties": ("at most", " fields"),
}


def _shown(value: Any) -> str:
    if isinstance(value, Mapping | list):
        return "a map" if isinstance(value, Mapping) else "a list"
    text = json.dumps(value, default=str, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}…"
