"""The rule about the order of stages: a job that has ended can't be changed."""

import re
from collections.abc import Iterator, Mapping

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.rules.dag import ancestors_of, needs_of
from edl_workflows.pipelines.argo.lint.rules.manifests import resource_object
from edl_workflows.pipelines.argo.lint.rules.plugin import is_ours
from edl_workflows.pipelines.argo.lint.workflow import (
    Call,
    Spec,
    Template,
    as_mapping,
    as_mappings,
    as_text,
    has_tag,
)
from edl_workflows.pipelines.argo.plugin_task import PLUGIN
from edl_workflows.pipelines.stages.apply_plan import APPLY_PLAN
from edl_workflows.pipelines.stages.checkpoint import CHECKPOINT
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS
from edl_workflows.pipelines.stages.scale import SCALE
from edl_workflows.pipelines.stages.submit import SUBMIT
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND
from edl_workflows.pipelines.stages.wait import WAIT

CHANGE_AFTER_SUCCESS = Rule(
    "change-after-success",
    Severity.WARNING,
    "A step changes a job (scale, checkpoint, migrate-ps, suspend, …) after a step that waits until the same "
    "job has succeeded, so there is nothing left to change.",
    "Submit the job without waiting (`start` of edl-stages, `submit(wait=False)`), wait for its phase "
    "Running or a step, change it, and wait for its success at the end.",
)
RULES = (CHANGE_AFTER_SUCCESS,)

LIBRARY = "edl-stages"
"""The WorkflowTemplate with all stages. Its templates are known even if its file was not given."""
_CHANGES = frozenset(stage.name for stage in (SCALE, CHECKPOINT, MIGRATE_PS, APPLY_PLAN, SUSPEND, RESUME))
_JOBS = frozenset(kind.name for kind in KINDS if kind.view is not None)
_SUCCEEDED = re.compile(r"\s*status\.phase\s*=?=\s*Succeeded\s*", re.IGNORECASE)
_OUTPUT = re.compile(r"\{\{\s*(?:tasks|steps)\.([-a-zA-Z0-9]+)\.outputs\.parameters\.(?:name|job)\s*\}\}")
_AFTER_SUCCESS = ("", "Succeeded", "AnySucceeded")
"""Results of a task after which the next one may rely on its success."""


def _changes_after_success(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        calls = {call.name: call for call in template.calls}
        needs = {
            call.name: {name for name, result in needs_of(call) if result in _AFTER_SUCCESS}
            for call in template.calls
        }
        waits = [call for call in template.calls if _awaits_success(spec, call)]
        for call in template.calls if waits else ():
            if not _changes_job(spec, call):
                continue
            before = ancestors_of(call.name, needs)
            for wait in waits:
                is_before = wait.group < call.group if wait.role == "step" else wait.name in before
                job = _job(spec, call, calls)
                if is_before and job and job == _job(spec, wait, calls):
                    message = f"{call.role} {call.name!r} changes the job after {wait.name!r}, its success"
                    yield CHANGE_AFTER_SUCCESS.at(call.path, message)


def _stage(spec: Spec, call: Call) -> str:
    """The stage that a call runs, by the agent or in a template of `LIBRARY` that was not given; otherwise
    empty."""
    template = spec.resolve(call)
    if isinstance(template, Template):
        return (
            as_text(as_mapping(template.part("plugin").get(PLUGIN)).get("stage")) if is_ours(template) else ""
        )
    reference = as_mapping(call.body.get("templateRef"))
    return as_text(reference.get("template")) if reference.get("name") == LIBRARY else ""


def _awaits_success(spec: Spec, call: Call) -> bool:
    template = spec.resolve(call)
    body = template.body if isinstance(template, Template) else {}
    stage = _stage(spec, call)
    if stage == SUBMIT.name:
        task = as_mapping(as_mapping(body.get("plugin")).get(PLUGIN))
        return task.get("wait", True) is True
    if stage == WAIT.name:
        return _given(template, call, "phases", default="Succeeded") == "Succeeded"
    resource = resource_object(template) if isinstance(template, Template) else None
    if resource is None or resource.kind not in _JOBS:
        return False
    condition = as_text(as_mapping(body.get("resource")).get("successCondition"))
    if "inputs.parameters['phases']" in condition:
        return _given(template, call, "phases") == "Succeeded"
    return _SUCCEEDED.fullmatch(condition) is not None


def _changes_job(spec: Spec, call: Call, callers: frozenset[Path] = frozenset()) -> bool:
    if stage := _stage(spec, call):
        return stage in _CHANGES
    template = spec.resolve(call)
    if not isinstance(template, Template) or template.path in callers:
        return False
    if template.calls:  # a stage in several steps
        home = spec.library.find(as_mapping(call.body.get("templateRef")), spec.namespace) or spec
        return any(_changes_job(home, inner, callers | {template.path}) for inner in template.calls)
    action, resource = template.part("resource").get("action"), resource_object(template)
    if resource is None:
        return False
    is_plan = resource.kind == SCALE_PLAN and action in ("create", "apply")
    return is_plan or (resource.kind in _JOBS and action == "patch")


def _job(spec: Spec, call: Call, siblings: Mapping[str, Call]) -> str:
    """The text of the name of the job that a call is about; empty if it is unknown."""
    template, seen = spec.resolve(call), {call.name}
    job = _given(template, call, "job") or _given(template, call, "name") or _written(template)
    while (match := _OUTPUT.fullmatch(job)) and match[1] in siblings and match[1] not in seen:
        call = siblings[match[1]]
        seen.add(call.name)
        template = spec.resolve(call)
        job = _given(template, call, "job") or _given(template, call, "name") or _written(template)
    return job


def _written(template: object) -> str:
    resource = resource_object(template) if isinstance(template, Template) else None
    if resource is None:
        return ""
    job = as_mapping(resource.value.get("spec")).get("ownerJob")
    name = as_text(job) if resource.kind == SCALE_PLAN else resource.name
    return "" if has_tag(name) else name


def _given(template: object, call: Call, name: str, default: str = "") -> str:
    """The value of an input: the call's argument, or the input's default."""
    inputs = template.inputs("parameters") if isinstance(template, Template) else []
    values = {as_text(given.get("name")): as_text(given.get("default")) for _, given in inputs}
    values |= {
        as_text(given.get("name")): as_text(given.get("value"))
        for _, given in as_mappings(call.arguments.get("parameters"))
    }
    return values.get(name) or default


CHECKS = (_changes_after_success,)
