"""What the steps of stages have in common: inputs and requests, made from the descriptions of the stages, and
the outputs that a resource template reads from its object with jq."""

import json
from collections.abc import Mapping
from typing import Any, Literal

from pydantic.alias_generators import to_camel

from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Model
from edl_workflows.pipelines.argo.templates.manifest_text import Tag
from edl_workflows.pipelines.argo.templates.resource_template import JQ
from edl_workflows.pipelines.argo.templates.step import StepInput
from edl_workflows.pipelines.stages.description import RequestField, StageSpec
from edl_workflows.pipelines.stages.scale import SCALE
from edl_workflows.pipelines.stages.wait import WAIT
from edl_workflows.pipelines.waiting.advised_change import MAX_REASON, AdvisedChange
from edl_workflows.pipelines.waiting.goals import IfFinished
from edl_workflows.pipelines.waiting.outputs import MAX_WARNING, MAX_WARNINGS

NAMESPACE = "{{workflow.namespace}}"
"""Jobs are created in their workflow's namespace: the garbage collector would delete a job whose owner is in
another namespace."""
STEP_PATH = "sprig.regexReplaceAll('[(][0-9]+[)]', node.name, '')"
"""The node's name without retry numbers: the same in each attempt."""
MARK_PATH = f"sprig.regexReplaceAll('[^A-Za-z0-9().:_-]+', {STEP_PATH}, '-')"
"""The step's path in an object's owner annotation. The node name of a step in a loop contains all values of
its item, which may not be valid as plain YAML text."""


def inputs_of(stage: StageSpec[Any]) -> dict[str, StepInput]:
    """The inputs of a stage's template, by the fields of its request."""
    return {field.name: _input(field) for field in stage.fields() if field.argument.argo}


def _input(field: RequestField) -> StepInput:
    kind: Literal["text", "integer", "yaml"] = "text"
    if field.shape == "map" and field.info.annotation is not AdvisedChange:  # expressions read that one
        kind = "yaml"
    elif field.shape == "integer":
        kind = "integer"
    default = field.argument.default
    if default is None and not field.required:
        default = _default_text(field.default)
    name = field.argument.parameter or field.name.replace("_", "-")
    return StepInput(name, field.argument.argo_help or field.argument.help, kind, default)


def _default_text(value: Any) -> str:
    """A field's default as the text of a parameter; None becomes an empty text."""
    if isinstance(value, Model):
        return json.dumps(value.to_dict())
    return "" if value is None else str(value) if isinstance(value, str) else json.dumps(value)


def reason_tag(reasons: str = "") -> Tag:
    """A ScalePlan's reason: who asks for it, in the words of `StageIdentity.requester`, behind the text of an
    expression."""
    requester = f"'step ' + {MARK_PATH} + ' of workflow ' + workflow.namespace + '/' + workflow.name"
    words = f"{reasons} + '; ' + {requester}" if reasons else requester
    return Tag(f"{{{{=toJson(sprig.trunc({MAX_REASON}, {words}))}}}}")


def request_of(
    stage: StageSpec[Any], kind: str = ELASTIC_JOB, if_finished: IfFinished = IfFinished.SKIP, **fixed: Any
) -> dict[str, Any]:
    """The request of a plugin step: its inputs, the job's namespace and kind, and the fields that the
    workflow's author fixed."""
    if if_finished != IfFinished.SKIP:  # the default of every stage
        fixed["if_finished"] = if_finished
    values: dict[str, Any] = {field: given.tag for field, given in inputs_of(stage).items()}
    values |= {"namespace": NAMESPACE, **fixed}
    if kind != ELASTIC_JOB:
        values["kind"] = kind
    return {to_camel(field): values[field] for field in stage.request.model_fields if field in values}


NAME = inputs_of(WAIT)["name"]
JOB, STEP_TIMEOUT = (inputs_of(SCALE)[name] for name in ("job", "step_timeout_seconds"))

MEMO_INPUTS = (
    StepInput("data", "Name of the data that the job trains on."),
    StepInput("data-version", "Version of the data."),
    StepInput("code", "Version of the code, such as a commit or an image's digest."),
)
"""What a job's result depends on besides its spec."""

JOB_OUTPUTS: dict[str, str] = {
    "kind": ELASTIC_JOB,
    "namespace": NAMESPACE,
    "name": NAME.tag,
    "uid": f"{JQ}.metadata.uid",
    "job": NAME.tag,
    "phase": f'{JQ}.status.phase // "Pending" | if . == "Created" then "Pending" else . end',
    "step": f"{JQ}.status.progress.step // 0",
    "records": f"{JQ}.status.progress.records // 0",
    "training-metrics": f"{JQ}.status.progress.metrics // {{}}",
    "warnings": f'{JQ}.status.warnings // [] | .[:{MAX_WARNINGS}] | map(.[:{MAX_WARNING}]) | join("; ")',
    "checkpoint-uri": f'{JQ}.status.checkpoint.uri // ""',
    "checkpoint-step": f'{JQ}.status.checkpoint.step // ""',
    "replicas": f'{JQ}(.status.replicaStatuses // {{}}) | del(.["{names.MASTER_TYPE}"])'
    " | map_values(.ready // 0)",
    "usage": f"{JQ}.status.usage // {{}} | {{cpu, memory, gpu}} | with_entries(select(.value | length > 0)"
    " | .value |= map_values(. / 0.36 | round / 10000))",
}
COMMON_PHASE = (
    f'{JQ}.status.phase // "Pending" | (.[:1] | ascii_upcase) + .[1:]'
    ' | {"Created": "Pending", "Creating": "Pending", "Starting": "Pending",'
    ' "Rescheduling": "Scaling"}[.] // .'
)
"""The phase of a job of any kind, in the terms common to all."""
PLAN_OUTPUTS: Mapping[str, str] = {
    "kind": SCALE_PLAN,
    "namespace": NAMESPACE,
    "training-metrics": "{}",
    "name": f"{JQ}.metadata.name",
    "uid": f"{JQ}.metadata.uid",
    "job": f"{JQ}.spec.ownerJob",
    "phase": f'{JQ}.status.phase // "Pending"',
    "checkpoint-uri": f'{JQ}.status.checkpoint.uri // ""',
    "checkpoint-step": f'{JQ}.status.checkpoint.step // ""',
    "resumed-step": f'{JQ}.status.resumedStep // ""',
    "stall-seconds": f'{JQ}.status.stallSeconds // ""',
    "replicas": "{}",
    "usage": "{}",
}
_AUTOSCALING = ".status.autoscaling // {}"
PLANNED_OUTPUTS: Mapping[str, str] = {
    **JOB_OUTPUTS,
    "name": JOB.tag,
    "job": JOB.tag,
    "plan": f"{JQ}{_AUTOSCALING} | "
    '{optimizer: (.optimizer // "local"), stage: (.stage // ""), replicas: (.replicaResourceSpecs // {}), '
    "migrate: (.migratePods // []), reasons: (.reasons // {}), notes: (.notes // [])} "
    "| .empty = (.replicas == {} and .migrate == [])",
}
GONE_OUTPUTS: Mapping[str, str] = {
    "kind": ELASTIC_JOB, "namespace": NAMESPACE, "name": NAME.tag, "job": NAME.tag, "replicas": "{}",
    "training-metrics": "{}",
}  # fmt: skip


def timeout(default: str) -> StepInput:
    """The input that limits how long a step may take."""
    return StepInput("timeout", "How long the step may take, as 90s, 30m or 24h.", default=default)


def job_outputs(kind: str, outputs: Mapping[str, str] = JOB_OUTPUTS) -> Mapping[str, str]:
    """The outputs of a step about a job of a kind."""
    if kind == ELASTIC_JOB:
        return outputs
    return {**outputs, "kind": kind} | ({"phase": COMMON_PHASE} if "phase" in outputs else {})
