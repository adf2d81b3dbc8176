"""Rules about ``{{…}}``: whether the named value exists at this position.

They are as strict as Argo's own validation: a placeholder whose first word is not one of Argo's belongs to a
program.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.rules.scope import ROOTS, HyphenUsed, PlaceholderScope
from edl_workflows.pipelines.argo.lint.workflow import Call, Spec, Template, as_mapping, find_tags, has_tag

UNRESOLVED = Rule(
    "unresolved-placeholder",
    Severity.ERROR,
    "A placeholder names a parameter, artifact, step, task or variable that does not exist at its position.",
    "Correct the name, or declare it.",
)
UNCLOSED = Rule(
    "unclosed-placeholder",
    Severity.ERROR,
    "A placeholder is opened but not closed.",
    "Close it with }}.",
)
RETRIES = Rule(
    "retries-without-strategy",
    Severity.ERROR,
    "In a template without retryStrategy, `{{retries}}` is not replaced.",
    "Add a retryStrategy, or remove the placeholder.",
)
HYPHEN = Rule(
    "hyphen-in-expression",
    Severity.ERROR,
    "In an expression, a hyphen is a minus sign: `{{=inputs.parameters.a-b}}` subtracts.",
    "Write inputs.parameters['a-b'].",
)
RULES = (UNRESOLVED, UNCLOSED, RETRIES, HYPHEN)

_EXPRESSIONS = ("expression", "fromExpression")
"""Fields that are expressions without braces; a retryStrategy's expression only has lastRetry."""


def _all(spec: Spec) -> Iterator[Finding]:
    yield from _hooks(spec)
    for template in spec.templates:
        scope = PlaceholderScope(spec, template)
        own = {key: value for key, value in template.body.items() if key not in ("steps", "dag")}
        if target := template.part("dag").get("target"):
            own["dag"] = {"target": target}
        for tag, path in find_tags(own, template.path):
            yield from _placeholder_findings(scope, tag, path, None)
        for value, path in _fields(as_mapping(template.body.get("outputs")), (*template.path, "outputs")):
            yield from _expression(scope, value, path, None)
        for call in template.calls:
            for value, path in _fields({"hooks": call.body.get("hooks")}, call.path):
                yield from _expression(scope, value, path, call)
            body = {key: value for key, value in call.body.items() if key != "inline"}
            for tag, path in find_tags(body, call.path):
                yield from _placeholder_findings(scope, tag, path, call)
        yield from _unclosed(template.body, template.path)


def _placeholder_findings(
    scope: PlaceholderScope, tag: str, path: Path, call: Call | None
) -> Iterator[Finding]:
    if tag.startswith("="):
        yield from _expression(scope, tag[1:], path, call)
        return
    name = tag.strip()
    if name == "retries" and not scope.template.setting("retryStrategy"):
        yield RETRIES.at(path, f"{scope.template} has no retryStrategy")
    if problem := scope.problem(name, call):
        yield UNRESOLVED.at(path, f"{{{{{name}}}}}: {problem.message}", problem.remedy)


def _expression(scope: PlaceholderScope, expression: str, path: Path, call: Call | None) -> Iterator[Finding]:
    for problem in scope.problems_of_expression(expression, call):
        if isinstance(problem, HyphenUsed):
            yield HYPHEN.at(path, problem.message, problem.remedy)
        else:
            yield UNRESOLVED.at(path, f"{expression.strip()[:60]!r}: {problem.message}", problem.remedy)


def _hooks(spec: Spec) -> Iterator[Finding]:
    """The workflow's own hooks are in no template: only values of the whole workflow are known there."""
    scope = PlaceholderScope(spec, Template({"name": "hooks"}, spec.path))
    for tag, path in find_tags({"hooks": spec.body.get("hooks")}, spec.path):
        yield from _placeholder_findings(scope, tag, path, None)


def _fields(value: Any, path: Path) -> Iterator[tuple[str, Path]]:
    """Expressions in fields of their own, without braces."""
    if isinstance(value, Mapping):
        for key, child in value.items():
            if key in _EXPRESSIONS and isinstance(child, str) and not has_tag(child):
                yield child, (*path, key)
            else:
                yield from _fields(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _fields(child, (*path, index))


def _unclosed(value: Any, path: Path) -> Iterator[Finding]:
    if isinstance(value, str):
        last = value[value.rfind("{{") :] if "{{" in value else ""
        if last and "}}" not in last and last[2:].lstrip("= ").startswith(ROOTS):
            yield UNCLOSED.at(path, f"{last[:40]!r} is not closed")
    elif isinstance(value, Mapping):
        for key, child in value.items():
            if key != "inline":
                yield from _unclosed(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _unclosed(child, (*path, index))


CHECKS = (_all,)
