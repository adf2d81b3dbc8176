"""Rules about ``{{…}}``: whether what it names exists where it stands.

As Argo's own validation, and no stricter: tags whose first word is none of Argo's are a program's own and left alone.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.argo.lint.findings import Finding, Path, Rule, Severity
from edl_workflows.argo.lint.workflow import (
    Call,
    Spec,
    Template,
    has_tag,
    mapping,
    maps,
    names,
    tags,
    text,
)

UNRESOLVED = Rule(
    "unresolved-placeholder",
    Severity.ERROR,
    "A placeholder names a parameter, artifact, step, task or variable that there is not where it stands.",
    "Correct the name, or declare it.",
)
UNCLOSED = Rule(
    "unclosed-placeholder", Severity.ERROR, "A placeholder is opened and not closed.", "Close it with }}."
)
RETRIES = Rule(
    "retries-without-strategy",
    Severity.ERROR,
    "`{{retries}}` in a template without retryStrategy stays as it stands, braces included.",
    "Add a retryStrategy, or leave the placeholder out.",
)
HYPHEN = Rule(
    "hyphen-in-expression",
    Severity.ERROR,
    "In an expression a hyphen is a minus: `{{=inputs.parameters.a-b}}` subtracts.",
    "Write inputs.parameters['a-b'].",
)
RULES = (UNRESOLVED, UNCLOSED, RETRIES, HYPHEN)

_ROOTS = ("item.", "steps.", "inputs.", "outputs.", "pod.", "workflow.", "tasks.")
_OPENED = re.compile(r"\{\{=?\s*(?:item|steps|inputs|outputs|pod|workflow|tasks)\.(?:(?!\}\}).)*$", re.DOTALL)
_WORKFLOW = (
    "name", "namespace", "uid", "mainEntrypoint", "serviceAccountName", "status", "failures", "priority", "duration",
    "creationTimestamp", "scheduledTime", "parameters", "labels", "annotations", "outputs",
)  # fmt: skip
_DOTTED_HYPHEN = re.compile(
    r"\b(inputs\.parameters|workflow\.parameters|outputs\.parameters|steps|tasks)\.([a-zA-Z_]\w*(?:-\w+)+)"
)
_MEMBER = re.compile(
    r"(?<![\w.])(inputs\.parameters|steps|tasks)(?:\.([a-zA-Z_]\w*)|\[\s*['\"]([^'\"]+)['\"]\s*\])"
)
_EXPRESSIONS = ("expression", "fromExpression")
"""Fields that are expressions without braces; a retryStrategy's knows nothing but lastRetry."""


def _all(spec: Spec) -> Iterator[Finding]:
    yield from _hooks(spec)
    for template in spec.templates:
        scope = _Scope(spec, template)
        own = {key: value for key, value in template.body.items() if key not in ("steps", "dag")}
        if target := template.part("dag").get("target"):
            own["dag"] = {"target": target}
        for tag, path in tags(own, template.path):
            yield from scope.check(tag, path, None)
        for value, path in _fields(mapping(template.body.get("outputs")), (*template.path, "outputs")):
            yield from scope.expression(value, path, None)
        for call in template.calls:
            for value, path in _fields({"hooks": call.body.get("hooks")}, call.path):
                yield from scope.expression(value, path, call)
            body = {key: value for key, value in call.body.items() if key != "inline"}
            for tag, path in tags(body, call.path):
                yield from scope.check(tag, path, call)
        yield from _unclosed(template.body, template.path)


def _hooks(spec: Spec) -> Iterator[Finding]:
    """The workflow's own hooks stand in no template: they know what is known of the whole workflow."""
    scope = _Scope(spec, Template({"name": "hooks"}, spec.path))
    for tag, path in tags({"hooks": spec.body.get("hooks")}, spec.path):
        yield from scope.check(tag, path, None)


def _fields(value: Any, path: Path) -> Iterator[tuple[str, Path]]:
    """The expressions in a value that stand in fields of their own, without braces."""
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
        if _OPENED.search(value):
            yield UNCLOSED.at(path, f"{value[value.rindex('{{') :][:40]!r} has no end")
    elif isinstance(value, Mapping):
        for key, child in value.items():
            if key != "inline":
                yield from _unclosed(child, (*path, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from _unclosed(child, (*path, index))


class _Scope:
    """What placeholders in one template may name."""

    def __init__(self, spec: Spec, template: Template) -> None:
        self._spec, self._template = spec, template
        self._calls = {call.name: call for call in template.calls}

    def check(self, tag: str, path: Path, call: Call | None) -> Iterator[Finding]:
        """What is wrong with a tag, in a call or elsewhere in the template."""
        if tag.startswith("="):
            yield from self.expression(tag[1:], path, call)
            return
        name = tag.strip()
        if name == "retries" and not self._template.setting("retryStrategy"):
            yield RETRIES.at(path, f"{self._template} has no retryStrategy")
        if not name.startswith(_ROOTS):
            return
        root, _, rest = name.partition(".")
        problem = {
            "inputs": self._inputs, "steps": self._nodes, "tasks": self._nodes, "workflow": self._workflow,
            "item": self._item, "pod": self._pod, "outputs": _nothing,
        }[root](root, rest, call)  # fmt: skip
        if problem:
            message, close = problem
            remedy = f"Did you mean {close}?" if close else ""
            yield UNRESOLVED.at(path, f"{{{{{name}}}}}: {message}", remedy)

    def _inputs(self, _root: str, rest: str, call: Call | None) -> tuple[str, str] | None:
        kind, _, name = rest.partition(".")
        if kind not in ("parameters", "artifacts"):
            return f"inputs have no {kind!r}", "inputs.parameters"
        if not name:
            return None
        known = names([entry for _, entry in self._template.inputs(kind)])
        inline = mapping(mapping(call.body.get("inline")).get("inputs")) if call else {}
        known += names(inline.get(kind))
        if kind == "artifacts":
            name = name.removesuffix(".path")
        return None if name in known else _unknown(f"the template has no input {kind[:-1]}", name, known)

    def _nodes(self, root: str, rest: str, call: Call | None) -> tuple[str, str] | None:
        if rest.startswith("name"):
            return None
        wanted = {"steps": "steps", "tasks": "dag"}[root]
        if self._template.type != wanted:
            return f"{self._template} is no {wanted} template", ""
        name, _, field = rest.partition(".")
        target = self._calls.get(name)
        if target is None:
            return _unknown(f"there is no {root[:-1]}", name, list(self._calls))
        if call and target.group > call.group:
            return f"step {name!r} comes later", ""
        return self._output(target, field)

    def _output(self, target: Call, field: str) -> tuple[str, str] | None:
        template = self._spec.resolve(target)
        parts = field.split(".", 2)
        if parts[0] != "outputs" or len(parts) < 3 or not isinstance(template, Template):
            return None
        kind, name = parts[1], parts[2]
        if kind not in ("parameters", "artifacts"):
            return None
        known = names([entry for _, entry in template.outputs(kind)])
        return None if name in known else _unknown(f"{template} has no output {kind[:-1]}", name, known)

    def _workflow(self, _root: str, rest: str, _call: Call | None) -> tuple[str, str] | None:
        word, _, name = rest.partition(".")
        if word not in _WORKFLOW:
            return _unknown("a workflow has no", word, list(_WORKFLOW))
        if word == "outputs":
            return self._global(name)
        if word != "parameters" or not name or name == "json" or self._spec.is_library:
            return None
        known = _workflow_parameters(self._spec)
        return None if name in known else _unknown("the workflow has no parameter", name, known)

    def _global(self, rest: str) -> tuple[str, str] | None:
        kind, _, name = rest.partition(".")
        known = [
            text(output.get("globalName"))
            for template in self._spec.templates
            for _, output in (*template.outputs("parameters"), *template.outputs("artifacts"))
        ]
        foreign = any(
            call.body.get("templateRef") for template in self._spec.templates for call in template.calls
        )
        if name in known or foreign or self._spec.is_library or any(map(has_tag, known)):
            return None
        return _unknown(f"no template has an output {kind[:-1]} with the globalName", name, known)

    def _item(self, _root: str, rest: str, call: Call | None) -> tuple[str, str] | None:
        if call is None or not call.loops:
            return "nothing is repeated here", ""
        items = call.body.get("withItems")
        if not isinstance(items, list) or any(has_tag(item) for item in items if isinstance(item, str)):
            return None
        known = sorted({key for _, item in maps(items) for key in item})
        lists = any(isinstance(item, list) for item in items)
        return None if rest in known or lists else _unknown("the items have no", rest, known)

    def _pod(self, _root: str, rest: str, _call: Call | None) -> tuple[str, str] | None:
        return None if rest == "name" else _unknown("a pod has no", rest, ["name"])

    def expression(self, expression: str, path: Path, call: Call | None) -> Iterator[Finding]:
        """What is wrong with an expression, of a ``{{=…}}`` or a field of its own."""
        inputs = names([entry for _, entry in self._template.inputs("parameters")])
        inputs += (
            names(mapping(mapping(call.body.get("inline")).get("inputs")).get("parameters")) if call else []
        )
        everything = {*inputs, *self._calls, *_workflow_parameters(self._spec), *self._outputs()}
        for match in _DOTTED_HYPHEN.finditer(expression):
            before, name = match[1], match[2]
            if name in everything:
                remedy = f"Write {before}['{name}']."
                yield HYPHEN.at(path, f"{match[0]} is read as a subtraction", remedy)
        for match in _MEMBER.finditer(expression):
            root, name = match[1], match[3] or match[2]
            if match[2] and expression[match.end() : match.end() + 1] == "-":
                continue  # told above, or a subtraction that is meant
            known = inputs if root == "inputs.parameters" else list(self._calls)
            what = (
                "the template has no input parameter"
                if root == "inputs.parameters"
                else f"there is no {root[:-1]}"
            )
            if name not in known and (root == "inputs.parameters" or self._calls):
                message, close = _unknown(what, name, known)
                remedy = f"Did you mean {close}?" if close else ""
                yield UNRESOLVED.at(path, f"{expression.strip()[:60]!r}: {message}", remedy)

    def _outputs(self) -> list[str]:
        return [
            text(entry.get("name")) for one in self._spec.templates for _, entry in one.outputs("parameters")
        ]


def _workflow_parameters(spec: Spec) -> list[str]:
    return names(mapping(spec.body.get("arguments")).get("parameters"))


def _nothing(_root: str, _rest: str, _call: Call | None) -> tuple[str, str] | None:
    return None  # a template's own outputs, in metrics: known only when it has run


def _unknown(message: str, name: str, known: list[str]) -> tuple[str, str]:
    return f"{message} {name!r}", next(iter(difflib.get_close_matches(name, known, n=1)), "")


CHECKS = (_all,)
