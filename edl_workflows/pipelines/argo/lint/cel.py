"""The CEL rules of Argo's definitions: our rule for each, and their evaluation.

`edl_workflows.core.schemas.cel` evaluates them; a program is compiled on first use. The expressions use only
CEL's standard functions.
"""

import functools
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity

TWO_TYPES = Rule(
    "two-template-types",
    Severity.ERROR,
    "A template has more than one type (container, script, steps, dag, resource, suspend, plugin, …).",
    "Make one template of each type.",
)
COMPOSITE_TIMEOUT = Rule(
    "composite-timeout",
    Severity.ERROR,
    "A steps or dag template has a `timeout`, which only leaf templates support.",
    "Set timeout on the leaf templates, or activeDeadlineSeconds on the workflow.",
)
COMPOSITE_DEADLINE = Rule(
    "composite-deadline",
    Severity.ERROR,
    "A steps or dag template has `activeDeadlineSeconds`, which only leaf templates support.",
    "Set activeDeadlineSeconds on the leaf templates or on the workflow.",
)
ARTIFACT_LOCATIONS = Rule(
    "two-artifact-locations",
    Severity.ERROR,
    "An artifact has more than one location (s3, git, http, raw, …).",
    "Keep one location.",
)
SEQUENCE_BOUNDS = Rule(
    "sequence-bounds",
    Severity.ERROR,
    "A withSequence has both `count` and `end`.",
    "Keep one of the two.",
)
TWO_DEPENDENCIES = Rule(
    "depends-and-dependencies",
    Severity.ERROR,
    "Tasks of one dag use both `depends` and `dependencies`.",
    "Use `depends` for all tasks: `dependencies: [a, b]` becomes `depends: a && b`.",
)
DEPENDS_CONTINUE_ON = Rule(
    "depends-and-continue-on",
    Severity.ERROR,
    "A task has `continueOn` in a dag that uses `depends`.",
    "Express it in the `depends` of the tasks that follow: `a.Succeeded || a.Failed`.",
)
DIGIT_FIRST = Rule(
    "digit-first-task",
    Severity.ERROR,
    "A task's name starts with a digit in a dag that uses `depends` or `dependencies`.",
    "Start the name with a letter.",
)
TWO_MANIFESTS = Rule(
    "two-manifests",
    Severity.ERROR,
    "A resource has both `manifest` and `manifestFrom`.",
    "Keep one of the two.",
)
REALTIME_RESOURCES = Rule(
    "realtime-resources-duration",
    Severity.ERROR,
    "A real-time gauge uses `resourcesDuration`, which is known only at the end.",
    "Remove `realtime`.",
)
CRD_RULE = Rule(
    "crd-rule",
    Severity.ERROR,
    "A CEL rule of Argo's CustomResourceDefinition is violated. This version of the linter has no name "
    "of its own for that rule.",
    "Change the value so that the quoted expression is true.",
)
RULES = (
    TWO_TYPES, COMPOSITE_TIMEOUT, COMPOSITE_DEADLINE, ARTIFACT_LOCATIONS, SEQUENCE_BOUNDS, TWO_DEPENDENCIES,
    DEPENDS_CONTINUE_ON, DIGIT_FIRST, TWO_MANIFESTS, REALTIME_RESOURCES, CRD_RULE,
)  # fmt: skip

_NAMED = (
    ("has(t.container)", TWO_TYPES),
    ("has(t.timeout)", COMPOSITE_TIMEOUT),
    ("has(t.activeDeadlineSeconds)", COMPOSITE_DEADLINE),
    ("has(self.artifactory)", ARTIFACT_LOCATIONS),
    ("has(self.count)", SEQUENCE_BOUNDS),
    ("has(self.dependencies)) || !self.name", DIGIT_FIRST),
    ("!has(self.dependencies)", TWO_DEPENDENCIES),
    ("!has(self.continueOn)", DEPENDS_CONTINUE_ON),
    ("has(self.manifestFrom)", TWO_MANIFESTS),
    ("'resourcesDuration.'", REALTIME_RESOURCES),
)
"""Parts of expressions that identify our rules. An expression's position in the schema does not identify it,
since positions change between versions."""


def rule_of(expression: str) -> Rule:
    """Our rule for an expression."""
    return next((rule for part, rule in _NAMED if part in expression), CRD_RULE)


def broken_rules(value: Any, expressions: list[str]) -> Iterator[tuple[Path, str, Any]]:
    """(position below the value, expression, value at the position) for each expression that does not hold.

    For a rule about all entries of a list, each entry that breaks it is reported.
    """
    for expression in expressions:
        if isinstance(value, list) and expression.startswith("self.all("):
            for index, entry in enumerate(value):
                if not rule_holds(expression, [entry]):
                    yield (index,), expression, entry
        elif not rule_holds(expression, value):
            yield (), expression, value


def rule_finding(expression: str, path: Path, value: Any) -> Finding:
    """What is wrong with a value for which an expression does not hold."""
    rule = rule_of(expression)
    if rule is CRD_RULE:
        return rule.at(path, f"this must be true: {expression}")
    name = value.get("name") if isinstance(value, Mapping) else None
    return rule.at(path, f"{name!r}: {_detail(rule, value)}" if name else _detail(rule, value))


def _detail(rule: Rule, value: Any) -> str:
    if rule is ARTIFACT_LOCATIONS or rule is TWO_TYPES:
        return f"{rule.catches[:-1].split(' (')[0].lower()}: has {', '.join(sorted(value))}"
    return rule.catches.removesuffix(".")


def rule_holds(expression: str, value: Any) -> bool:
    """Whether an expression is true of a value. An evaluation error counts as false: a field has a wrong
    type."""
    return _holds(expression, json.dumps(_seen(expression, value), sort_keys=True, default=str))


def _seen(expression: str, value: Any) -> Any:
    """The parts of a value that an expression depends on, so that values which agree in them are evaluated
    once.

    Argo's rules test whether fields exist, and compare scalars, one level down. Other expressions depend on
    the whole value.
    """
    if _DEEPER.search(expression):
        return value
    if isinstance(value, list):
        return [_seen(expression, entry) for entry in value]
    if not isinstance(value, Mapping):
        return value
    members = set(_MEMBER.findall(expression))
    begun = set(_BEGINNING.findall(expression)) - set(_MEMBER.findall(_BEGINNING.sub("", expression)))
    return {
        name: {}
        if isinstance(child, Mapping | list)
        else child[:1]
        if name in begun and isinstance(child, str)
        else child
        for name, child in value.items()
        if name in members and child is not None
    }


_MEMBER = re.compile(r"\b(?:self|t)\.(\w+)")
# Looks at a text's first character only.
_BEGINNING = re.compile(r"\b(?:self|t)\.(\w+)\.matches\('\^\[[^\]]*\]'\)")
_DEEPER = re.compile(r"\b(?:self|t)(?:\.(?!(?:all|contains|matches)\()\w+){2,}|\[|\bsize\(")


@functools.lru_cache(maxsize=4096)
def _holds(expression: str, value: str) -> bool:
    from edl_workflows.core.schemas import cel  # here, since celpy takes long to load

    try:
        return cel.is_true(
            cel.evaluate_program(_program(expression), {"self": cel.to_cel(json.loads(value))})
        )
    except cel.EvaluationError:
        return False


@functools.cache
def _program(expression: str) -> Any:
    from edl_workflows.core.schemas import cel

    return cel.compile_expression(expression)
