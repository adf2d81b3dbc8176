"""Rules about what remains when a workflow has ended or was stopped."""

from collections.abc import Iterator

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.rules.manifests import resource_object
from edl_workflows.pipelines.argo.lint.rules.plugin import is_ours
from edl_workflows.pipelines.argo.lint.workflow import Spec, Template, as_mapping
from edl_workflows.pipelines.argo.plugin_task import PLUGIN
from edl_workflows.pipelines.stages.submit import SUBMIT

UNOWNED_JOB = Rule(
    "unowned-job",
    Severity.WARNING,
    "A workflow creates a job that keeps running when the workflow is stopped: the workflow has no exit "
    "handler, and the job has no owner.",
    "Add an onExit that deletes the job, or set setOwnerReference: true, so that the job is deleted "
    "with the Workflow object.",
)
RULES = (UNOWNED_JOB,)

_JOBS = frozenset(kind.name for kind in KINDS if kind.view is not None)


def _unowned(spec: Spec) -> Iterator[Finding]:
    if spec.has_exit_handler or not spec.body.get("entrypoint"):
        return  # templates without an entrypoint are called by workflows that may have one
    cared = {
        target.path
        for template in spec.templates
        for call in template.calls
        if "exit" in dict(call.hooks()) and isinstance(target := spec.resolve(call), Template)
    }
    for template in spec.templates:
        if template.path not in cared and (action := _left(template)):
            yield UNOWNED_JOB.at(template.path, f"{template} {action}, and the workflow has no exit handler")


def _left(template: Template) -> str:
    """What a template creates and leaves behind; empty for nothing."""
    body = template.part("resource")
    if body.get("action") in ("create", "apply") and body.get("setOwnerReference") is not True:
        resource = resource_object(template)
        if (
            resource
            and resource.kind in _JOBS
            and not as_mapping(resource.value.get("metadata")).get("ownerReferences")
        ):
            return f"creates the {resource.kind} {resource.name!r}"
    if is_ours(template):
        task = as_mapping(template.part("plugin")[PLUGIN])
        if task.get("stage") == SUBMIT.name and task.get("wait") is False and task.get("onCancel") != "keep":
            return "submits a job without waiting for it"
    return ""


CHECKS = (_unowned,)
