"""Rules about calls of templates and their arguments: entrypoint, steps, tasks, hooks."""

from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.schemas.structural import Path, spell_path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity, did_you_mean
from edl_workflows.pipelines.argo.lint.workflow import (
    AGENT_TYPES,
    UNKNOWN,
    Call,
    Spec,
    Template,
    as_mapping,
    as_mappings,
    as_text,
    entry_names,
)

NO_ENTRYPOINT = Rule(
    "no-entrypoint",
    Severity.ERROR,
    "A workflow does not say which template it starts with.",
    "Set entrypoint.",
)
UNDEFINED_TEMPLATE = Rule(
    "undefined-template",
    Severity.ERROR,
    "A template that does not exist is called: by name, or by a templateRef to a workflow template in "
    "the given files.",
    "Correct the name, or add the template.",
)
ONE_TARGET = Rule(
    "one-target",
    Severity.ERROR,
    "A step, task or hook has none, or more than one, of `template`, `templateRef` and `inline`.",
    "Keep exactly one of them.",
)
HALF_REFERENCE = Rule(
    "half-reference",
    Severity.ERROR,
    "A templateRef lacks the name of the workflow template or the name of the template in it.",
    "Set both `name` and `template`.",
)
MISSING_ARGUMENT = Rule(
    "missing-argument",
    Severity.ERROR,
    "A call does not pass a parameter or artifact that the template needs and that has no default.",
    "Pass it, or give the input a default.",
)
MISSPELT_ARGUMENT = Rule(
    "misspelt-argument",
    Severity.WARNING,
    "An argument's name is similar to that of an input that is not passed. Argo drops the argument, and "
    "the input gets its default.",
    "Correct the argument's name.",
)
NO_VALUE = Rule(
    "no-value",
    Severity.ERROR,
    "An argument of a step, task or CronWorkflow has no value: a parameter has neither value nor "
    "valueFrom, or an artifact has neither from nor a location.",
    "Give it a value or a location.",
)
NOT_IN_ENUM = Rule(
    "not-in-enum",
    Severity.ERROR,
    "A parameter's value is not in its `enum`.",
    "Use a value of the enum.",
)
LOOPS = Rule(
    "one-loop",
    Severity.ERROR,
    "A step or task has more than one of withItems, withParam and withSequence.",
    "Keep one of them.",
)
HOOK_EXPRESSION = Rule(
    "hook-expression",
    Severity.ERROR,
    "A hook that is not named `exit` has no `expression`, so nothing determines when it runs.",
    "Add an expression, or name the hook exit.",
)
STEP_EXIT_HOOK = Rule(
    "step-exit-hook",
    Severity.ERROR,
    "An exit hook of a step or task calls a plugin or http template. When the workflow is stopped, the "
    "node of the hook is created but never served, and the workflow runs forever.",
    "Use the workflow's onExit, or a template that creates a pod.",
)
REFERENCE_AND_TEMPLATES = Rule(
    "reference-and-templates",
    Severity.ERROR,
    "A spec has both `workflowTemplateRef` and `templates`.",
    "Keep the reference and move the templates there, or call them with templateRef.",
)
RULES = (
    NO_ENTRYPOINT, UNDEFINED_TEMPLATE, ONE_TARGET, HALF_REFERENCE, MISSING_ARGUMENT, MISSPELT_ARGUMENT,
    NO_VALUE, NOT_IN_ENUM, LOOPS,
    HOOK_EXPRESSION, STEP_EXIT_HOOK, REFERENCE_AND_TEMPLATES,
)  # fmt: skip


def _entry(spec: Spec) -> Iterator[Finding]:
    if spec.reference and spec.body.get("templates"):
        yield REFERENCE_AND_TEMPLATES.at((*spec.path, "templates"), "the spec has a workflowTemplateRef")
    if not spec.is_library and not spec.reference and not spec.body.get("entrypoint"):
        yield NO_ENTRYPOINT.at((*spec.path, "entrypoint"), "the workflow has no entrypoint")
    if spec.reference and spec.referenced is not UNKNOWN and not spec.body.get("entrypoint"):
        referenced = spec.referenced
        if isinstance(referenced, Spec) and not referenced.body.get("entrypoint"):
            path = (*spec.path, "workflowTemplateRef")
            yield NO_ENTRYPOINT.at(
                path, "neither this workflow nor the referenced template has an entrypoint"
            )


def _calls(spec: Spec) -> Iterator[Call]:
    """All calls except the entrypoint, whose arguments a submitter may pass."""
    yield from (call for name, call in spec.entries() if name != "entrypoint")
    for template in spec.templates:
        for call in template.calls:
            yield call
            yield from (hook for _, hook in call.hooks())


def _targets(spec: Spec) -> Iterator[Finding]:
    every = [*(call for name, call in spec.entries() if name == "entrypoint"), *_calls(spec)]
    for call in every:
        ways = [way for way in ("template", "templateRef", "inline") if call.body.get(way)]
        if len(ways) != 1:
            yield ONE_TARGET.at(call.path, f"this {call.role} has {' and '.join(ways) or 'no template'}")
            continue
        reference = as_mapping(call.body.get("templateRef"))
        if reference and (lacking := [key for key in ("name", "template") if not reference.get(key)]):
            yield HALF_REFERENCE.at(
                (*call.path, "templateRef"), f"the templateRef has no {' and no '.join(lacking)}"
            )
            continue
        resolved = spec.resolve(call)
        if resolved is None:
            yield _undefined(spec, call)
        elif isinstance(resolved, Template):
            # The caller of a workflow template may pass arguments that the template does not declare.
            foreign = call.role in ("entrypoint", "exit") and bool(spec.is_library or spec.reference)
            yield from _arguments(call, resolved, complete=not foreign)


def _undefined(spec: Spec, call: Call) -> Finding:
    reference = as_mapping(call.body.get("templateRef"))
    if reference:
        home = spec.library.find(reference, spec.namespace)
        templates, template_name = (home.by_name if home else {}), as_text(reference.get("template"))
        path, owner = (*call.path, "templateRef", "template"), f"{as_text(reference.get('name'))} has"
    else:
        home = spec.referenced if isinstance(spec.referenced, Spec) else spec
        templates, template_name = home.by_name, as_text(call.body.get("template"))
        direct = call.role in ("entrypoint", "exit")
        path, owner = call.path if direct else (*call.path, "template"), "there is"
    return UNDEFINED_TEMPLATE.at(
        path, f"{owner} no template {template_name!r}", did_you_mean(template_name, templates)
    )


def _arguments(call: Call, template: Template, *, complete: bool) -> Iterator[Finding]:
    for kind in ("parameters", "artifacts"):
        given = set(entry_names(call.arguments.get(kind)))
        for _, entry in template.inputs(kind):
            name = as_text(entry.get("name"))
            if name and name not in given and _needed(entry, kind) and complete:
                message = f"{template} needs the {kind[:-1]} {name!r}"
                direct = call.role in ("entrypoint", "exit")
                yield MISSING_ARGUMENT.at(call.path if direct else (*call.path, "arguments", kind), message)
        if call.given is None:
            yield from _misspelt(call, kind, template)


_PLACES: Mapping[str, tuple[str, ...]] = {
    "s3": ("key",), "gcs": ("key",), "oss": ("key",), "azure": ("blob",), "plugin": ("key",),
    "git": ("repo",),
    "http": ("url",), "artifactory": ("url",), "hdfs": ("path", "addresses"),
}  # fmt: skip
"""By storage of an artifact, its possible location fields, of which one must be set. `raw` contains its
data."""


def _is_placed(artifact: Mapping[str, Any]) -> bool:
    """Whether an artifact has a location."""
    if artifact.get("raw") is not None:
        return True
    return any(
        as_mapping(artifact.get(place)).get(field) for place, fields in _PLACES.items() for field in fields
    )


def _needed(entry: Mapping[str, Any], kind: str) -> bool:
    if kind == "artifacts":
        # An input artifact may have a location of its own (s3, raw, …) instead of being passed.
        return entry.get("optional") is not True and not _is_placed(entry)
    return entry.get("value") is None and entry.get("valueFrom") is None and entry.get("default") is None


def _misspelt(call: Call, kind: str, template: Template) -> Iterator[Finding]:
    given = set(entry_names(call.arguments.get(kind)))
    input_names = template.names("inputs", kind)
    left = sorted(input_names - given)
    for index, entry in as_mappings(call.arguments.get(kind)):
        name = as_text(entry.get("name"))
        if name and name not in input_names and (close := did_you_mean(name, left, 0.75)):
            path = (*call.path, "arguments", kind, index, "name")
            yield MISSPELT_ARGUMENT.at(path, f"{template} has no input {kind[:-1]} {name!r}", close)


def _values(spec: Spec) -> Iterator[Finding]:
    own, given = (*spec.path, "arguments"), as_mapping(spec.body.get("arguments"))
    for index, entry in as_mappings(given.get("parameters")):
        needed = spec.kind == "CronWorkflow" and not spec.reference
        yield from _value((*own, "parameters", index), entry, needed=needed)
    for index, entry in as_mappings(given.get("artifacts")):
        yield from _origin((*own, "artifacts", index), entry)
    for template in spec.templates:
        for call in template.calls:
            for index, entry in as_mappings(call.arguments.get("parameters")):
                yield from _value((*call.path, "arguments", "parameters", index), entry, needed=True)
            for index, entry in as_mappings(call.arguments.get("artifacts")):
                yield from _origin((*call.path, "arguments", "artifacts", index), entry)


def _origin(path: Path, artifact: Mapping[str, Any]) -> Iterator[Finding]:
    if not (artifact.get("from") or artifact.get("fromExpression") or _is_placed(artifact)):
        yield NO_VALUE.at(path, f"the artifact {as_text(artifact.get('name'))!r} has no source")


def _value(path: Path, entry: Mapping[str, Any], *, needed: bool) -> Iterator[Finding]:
    if needed and entry.get("value") is None and entry.get("valueFrom") is None:
        yield NO_VALUE.at((*path, "value"), f"the parameter {as_text(entry.get('name'))!r} has no value")
    allowed = entry.get("enum")
    if isinstance(allowed, list) and entry.get("value") is not None:
        value = str(entry["value"])
        if "{{" not in value and value not in [str(choice) for choice in allowed]:
            yield NOT_IN_ENUM.at((*path, "value"), f"{value!r} is not one of {', '.join(map(str, allowed))}")


def _loops(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        for call in template.calls:
            ways = [way for way in ("withItems", "withParam", "withSequence") if call.body.get(way)]
            if len(ways) > 1:
                yield LOOPS.at(call.path, f"{call.role} {call.name!r} has {' and '.join(ways)}")


def _hooks(spec: Spec) -> Iterator[Finding]:
    hooks = [(name, call) for name, call in spec.entries() if name not in ("entrypoint", "onExit")]
    inner = [pair for t in spec.templates for call in t.calls for pair in call.hooks()]
    for name, hook in (*hooks, *inner):
        if name != "exit" and not as_text(hook.body.get("expression")):
            yield HOOK_EXPRESSION.at(hook.path, f"the hook {name!r} has no expression")
    for name, hook in inner:
        target = spec.resolve(hook)
        if name != "exit" or not isinstance(target, Template):
            continue
        own = not hook.body.get("templateRef")
        if target.type in AGENT_TYPES or (own and target.path in spec.served_by_agent):
            yield STEP_EXIT_HOOK.at(hook.path, f"{spell_path(hook.path)} calls {target}, which no pod serves")


CHECKS = (_entry, _targets, _values, _loops, _hooks)
