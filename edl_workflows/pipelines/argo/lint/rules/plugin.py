"""Rules about plugin templates and the task bodies of our own agent."""

from collections.abc import Iterator, Mapping
from typing import Any

from pydantic.alias_generators import to_camel

from edl_workflows.core.exceptions import InvalidError, ManifestError, Problem
from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.workflow import Spec, Template, as_mapping, as_text, find_tags, has_tag
from edl_workflows.pipelines.argo.plugin_task import PLUGIN, PluginTask
from edl_workflows.pipelines.argo.templates.outputs import PARAMETERS

PLUGIN_KEYS = Rule(
    "plugin-keys",
    Severity.ERROR,
    "A plugin template does not have exactly one key below `plugin`, the plugin's name. Generators that "
    "don't know plugins write `plugin: {}`.",
    "Write the name of one plugin, and its body below it.",
)
PLUGIN_BODY = Rule(
    "plugin-body",
    Severity.ERROR,
    f"The body of an `{PLUGIN}` step is invalid: the stage does not exist, its request does not have a "
    "field, or a value is wrong.",
    "Correct the field.",
)
PLUGIN_TIMEOUT = Rule(
    "plugin-without-timeout",
    Severity.WARNING,
    f"An `{PLUGIN}` template has no `timeout`. Argo does not enforce a workflow's own deadline while only "
    "plugin steps wait, so without an agent the step waits forever.",
    "Set timeout on the template, for example `timeout: 24h`. Argo ignores templateDefaults for it.",
)
PLUGIN_OUTPUT = Rule(
    "plugin-output",
    Severity.ERROR,
    f"An `{PLUGIN}` template has an output that no stage provides.",
    f"Use one of {', '.join(PARAMETERS)}.",
)
PLUGIN_PARALLELISM = Rule(
    "plugin-parallelism",
    Severity.WARNING,
    "`parallelism` counts only pods, so it does not limit a loop over a plugin template.",
    "Give the plugin template a semaphore (`synchronization.semaphores`).",
)
RULES = (PLUGIN_KEYS, PLUGIN_BODY, PLUGIN_TIMEOUT, PLUGIN_OUTPUT, PLUGIN_PARALLELISM)


def is_ours(template: Template) -> bool:
    """Whether our agent serves a template."""
    return template.type == "plugin" and PLUGIN in template.part("plugin")


def _keys(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        plugin = template.body.get("plugin")
        if isinstance(plugin, Mapping) and len(plugin) != 1:
            has = " and ".join(str(key) for key in plugin) or "no key"
            yield PLUGIN_KEYS.at(
                (*template.path, "plugin"), f"{template} has {has}, but exactly one key is needed"
            )


def _ours(spec: Spec) -> Iterator[Finding]:
    for template in filter(is_ours, spec.templates):
        path: Path = (*template.path, "plugin", PLUGIN)
        body = template.part("plugin")[PLUGIN]
        if not isinstance(body, Mapping):
            yield PLUGIN_BODY.at(path, "the body is not a map")
            continue
        yield from _body(body, path)
        if not template.body.get("timeout"):
            yield PLUGIN_TIMEOUT.at(template.path, f"{template} has no timeout")
        for index, output in template.outputs("parameters"):
            name = as_text(output.get("name"))
            if name and name not in PARAMETERS:
                at = (*template.path, "outputs", "parameters", index, "name")
                yield PLUGIN_OUTPUT.at(at, f"no stage provides {name!r}")


def _body(body: Mapping[str, Any], path: Path) -> Iterator[Finding]:
    """Check what is known before placeholders have values; a field with a placeholder may get any value."""
    fixed_fields = {key: value for key, value in body.items() if not _open(value)}
    request = as_mapping(body.get("request"))
    given = {key: value for key, value in request.items() if not _open(value)}
    if "stage" in body and "stage" not in fixed_fields:
        fixed_fields["stage"] = "wait"  # the actual stage is known only when the workflow runs
    if isinstance(body.get("request"), Mapping):
        fixed_fields["request"] = given
    try:
        task = PluginTask.parse(fixed_fields)
    except ManifestError as error:
        skipped = len(path) - path.index("plugin")
        for problem in error.problems:
            steps = tuple(problem.path.split(".")[skipped:])
            yield PLUGIN_BODY.at((*path, *steps), _problem_text(problem))
        return
    if _open(body.get("stage")):
        return
    try:
        task.stage_and_request()
    except ManifestError as error:
        later = {to_camel(key) for key in request.keys() - given.keys()}
        for problem in error.problems:
            if not _undecided(problem, given, later):
                yield PLUGIN_BODY.at((*path, "request", *_steps(problem)), _problem_text(problem))
    except InvalidError as error:
        yield PLUGIN_BODY.at(path, str(error))


def _open(value: Any) -> bool:
    return isinstance(value, str) and has_tag(value)


def _steps(problem: Problem) -> Path:
    return tuple(int(step) if step.isdigit() else step for step in problem.path.split(".") if step)


def _undecided(problem: Problem, given: Mapping[str, Any], later: set[str]) -> bool:
    """Whether a problem may disappear when placeholders have values."""
    steps = _steps(problem)
    if not steps:
        return bool(later) or any(True for _ in find_tags(dict(given)))
    if to_camel(str(steps[0])) in later:
        return True
    value: Any = given
    for step in steps:
        try:
            value = value[step]
        except (KeyError, IndexError, TypeError):
            break  # the field is missing, or written with its other name
    return value is not given and any(True for _ in find_tags(value))


def _problem_text(problem: Problem) -> str:
    return f"{problem.path.rpartition('.')[2]}: {problem.message}" if problem.path else problem.message


def _parallelism(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        bound = template.body.get("parallelism") or spec.body.get("parallelism")
        for call in template.calls:
            target = spec.resolve(call)
            if not (bound and call.loops and isinstance(target, Template) and target.type == "plugin"):
                continue
            if not as_mapping(target.body.get("synchronization")):
                yield PLUGIN_PARALLELISM.at(call.path, f"{call.role} {call.name!r} loops over {target}")


CHECKS = (_keys, _ours, _parallelism)
