"""The stages as steps. Each function gives the model of one step; `builders` makes Hera templates of them.

Where a function takes a ``kind``, the step is about jobs of that kind, and its template's name says so unless it is ElasticJob.
"""

from collections.abc import Mapping
from typing import Any

from edl_workflows.argo.manifest_text import Tag
from edl_workflows.argo.resource_template import JQ
from edl_workflows.argo.step import (
    ApplyObject,
    CancelJob,
    DeleteObject,
    GetObject,
    PatchObject,
    StepInput,
    WorkflowStep,
)
from edl_workflows.jobs import autoscaling, kinds, names
from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.stages.apply_plan import APPLY_PLAN
from edl_workflows.stages.autoscale import AUTOSCALE
from edl_workflows.stages.cancel import CANCEL
from edl_workflows.stages.checkpoint import CHECKPOINT
from edl_workflows.stages.collect import COLLECT
from edl_workflows.stages.delete import DELETE
from edl_workflows.stages.identity import OWNER_ANNOTATION
from edl_workflows.stages.migrate_ps import MIGRATE_PS
from edl_workflows.stages.ownership import CancelAction
from edl_workflows.stages.plan_scale import PLAN_SCALE
from edl_workflows.stages.planned_change import MAX_REASON
from edl_workflows.stages.scale import SCALE
from edl_workflows.stages.submit import SUBMIT
from edl_workflows.stages.suspend import RESUME, SUSPEND
from edl_workflows.stages.wait import WAIT, WAIT_PLAN

NAMESPACE = "{{workflow.namespace}}"
"""Jobs live where their workflow does: an owner in another namespace would make the garbage collector delete them."""

NAME = StepInput("name", "The job's name.")
JOB = StepInput("job", "The job's name.")
STEP_TIMEOUT = StepInput(
    "step-timeout-seconds", "Limit of each step of the change, in seconds.", "integer", "600"
)

OWNER = "argo/{{workflow.namespace}}/{{workflow.name}}/{{workflow.uid}}"
"""How the marks of all that the workflow makes begin, whichever way it waits."""
_STEP_PATH = "sprig.regexReplaceAll('[(][0-9]+[)]', node.name, '')"
"""The node's name without the numbers of its attempts: the same in each."""

JOB_OUTPUTS: dict[str, str] = {
    "kind": ELASTIC_JOB,
    "namespace": NAMESPACE,
    "name": NAME.tag,
    "uid": f"{JQ}.metadata.uid",
    "job": NAME.tag,
    "phase": f'{JQ}.status.phase // "Pending" | if . == "Created" then "Pending" else . end',
    "step": f"{JQ}.status.progress.step // 0",
    "records": f"{JQ}.status.progress.records // 0",
    "checkpoint-uri": f'{JQ}.status.checkpoint.uri // ""',
    "checkpoint-step": f'{JQ}.status.checkpoint.step // ""',
    "replicas": f'{JQ}(.status.replicaStatuses // {{}}) | del(.["{names.MASTER_TYPE}"]) | map_values(.ready // 0)',
}
_PHASE = (
    f'{JQ}.status.phase // "Pending" | (.[:1] | ascii_upcase) + .[1:]'
    ' | {"Created": "Pending", "Creating": "Pending", "Starting": "Pending", "Rescheduling": "Scaling"}[.] // .'
)
"""Of any kind, in the words of all."""
PLAN_OUTPUTS: Mapping[str, str] = {
    "kind": SCALE_PLAN,
    "namespace": NAMESPACE,
    "name": f"{JQ}.metadata.name",
    "uid": f"{JQ}.metadata.uid",
    "job": f"{JQ}.spec.ownerJob",
    "phase": f'{JQ}.status.phase // "Pending"',
    "checkpoint-uri": f'{JQ}.status.checkpoint.uri // ""',
    "checkpoint-step": f'{JQ}.status.checkpoint.step // ""',
    "resumed-step": f'{JQ}.status.resumedStep // ""',
    "stall-seconds": f'{JQ}.status.stallSeconds // ""',
    "replicas": "{}",
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
}  # fmt: skip

ENDED = "status.phase == Failed"


def timeout(default: str) -> StepInput:
    """How long a step may take at most."""
    return StepInput("timeout", "How long the step may take, as 90s, 30m or 24h.", default=default)


def spelled(kind: str, phase: str) -> str:
    """A phase as the kind's users know it: TrainingJobs write theirs in lower case."""
    return phase.lower() if kinds.kind_of(kind).failed.islower() else phase


def _job_outputs(kind: str, outputs: Mapping[str, str] = JOB_OUTPUTS) -> Mapping[str, str]:
    if kind == ELASTIC_JOB:
        return outputs
    return {**outputs, "kind": kind} | ({"phase": _PHASE} if "phase" in outputs else {})


def _named(verb: str, kind: str) -> str:
    return verb if kind == ELASTIC_JOB else f"{verb}-{kind.lower()}"


def _about(kind: str) -> dict[str, str]:
    """What a request says of its job beside the name; ElasticJob is every stage's default."""
    request = {"name": NAME.tag, "namespace": NAMESPACE}
    return request if kind == ELASTIC_JOB else {**request, "kind": kind}


def _phase(kind: str, *phases: str) -> str:
    """The condition that a job is in one of these phases."""
    first, *more = (spelled(kind, phase) for phase in phases)
    return f"status.phase in ({', '.join((first, *more))})" if more else f"status.phase == {first}"


def submit(
    *,
    kind: str = ELASTIC_JOB,
    wait: bool = True,
    on_cancel: CancelAction = "delete",
    retries: int = 0,
    owned: bool = True,
) -> WorkflowStep:
    """Create a job from its spec.

    Args:
        kind: the job's.
        wait: until it has succeeded.
        on_cancel: what becomes of it if the step is cancelled (plugin only).
        retries: a failed job is replaced by a new one so many times (plugin only).
        owned: whether the job is deleted with its workflow.
    """
    spec = StepInput("spec", f"The {kind}'s spec, as YAML.", "yaml")
    manifest = _object(kind, NAME, owned=owned) | {"spec": spec}
    done = (_phase(kind, "Succeeded"), _phase(kind, "Failed")) if wait else ("", "")
    return WorkflowStep(
        _named("submit", kind),
        SUBMIT.name,
        (NAME, spec, timeout("24h" if wait else "15m")),
        {
            "manifest": _object(kind, NAME, owned=owned, marked=False) | {"spec": spec},
            "namespace": NAMESPACE,
        },
        ApplyObject(manifest, *done),
        _job_outputs(kind),
        wait=wait,
        on_cancel=on_cancel if wait else "keep",
        retries=retries,
    )


def wait_for_job(
    name: str = "", *, kind: str = ELASTIC_JOB, on_cancel: CancelAction = "keep", condition: str = ""
) -> WorkflowStep:
    """Wait for a job's phase, for a training step, or for both at once.

    Args:
        name: the template's; "" for ``wait``, and the kind.
        kind: the job's.
        on_cancel: see `argo.plugin_task.PluginTask`.
        condition: a condition's type, as ``Ready`` (plugin only).
    """
    phases = StepInput("phases", "Phases to wait for, any of them, separated by commas.", default="Succeeded")
    step = StepInput("step", "Global step of the training to wait for besides; empty: none.", "integer", "")
    request = {"phases": f"[{phases.tag}]", "step": step.tag, **_about(kind)}
    return WorkflowStep(
        name or _named("wait", kind),
        WAIT.name,
        (NAME, phases, step, timeout("24h")),
        request | ({"condition": condition} if condition else {}),
        GetObject(_object(kind, NAME), _reached(kind, phases, step), _missed(kind, phases)),
        _job_outputs(kind),
        on_cancel=on_cancel,
    )


def _reached(kind: str, phases: StepInput, step: StepInput) -> str:
    """Running is also met by a job that has succeeded meanwhile: it has run. A later phase than Running is none."""
    text, number = _given(kind, phases), step.variable
    running, succeeded = spelled(kind, "Running"), spelled(kind, "Succeeded")
    named = f"{{{{={text} + ({text} contains '{running}' ? ',{succeeded}' : '')}}}}"
    # Without a step to wait for the second term is one that always holds: an object has had a generation from the first.
    key = f"{{{{={number} == '' ? 'metadata.generation' : 'status.progress.step'}}}}"
    least = f"{{{{={number} == '' ? 0 : int({number}) - 1}}}}"
    return f"status.phase in ({named}), {key} > {least}"


def _missed(kind: str, phases: StepInput) -> str:
    """The final phases that are not waited for."""
    text = _given(kind, phases)
    running, done, bad = (spelled(kind, phase) for phase in ("Running", "Succeeded", "Failed"))
    failed = f"{text} contains '{bad}' ? 'None' : '{bad}'"
    succeeded = f"{text} contains '{done}' || {text} contains '{running}' ? 'None' : '{done}'"
    return f"status.phase in ({{{{={failed}}}}},{{{{={succeeded}}}}})"


def _given(kind: str, phases: StepInput) -> str:
    """The phases that are waited for, as the kind spells them, in an expression."""
    same = spelled(kind, "Failed") == "Failed"
    return phases.variable if same else f"sprig.lower({phases.variable})"


def wait_for_plan() -> WorkflowStep:
    """Wait until a ScalePlan that another step made has succeeded."""
    name = StepInput("name", "The plan's name.")
    return WorkflowStep(
        "wait-plan",
        WAIT_PLAN.name,
        (name, timeout("1h")),
        {"name": name.tag, "namespace": NAMESPACE},
        GetObject(_object(SCALE_PLAN, name), "status.phase == Succeeded", ENDED),
        PLAN_OUTPUTS,
        on_cancel="keep",
    )


def collect(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """What a job has come to, at once."""
    return WorkflowStep(
        _named("collect", kind),
        COLLECT.name,
        (NAME, timeout("5m")),
        _about(kind),
        GetObject(_object(kind, NAME)),
        _job_outputs(kind),
        on_cancel="keep",
    )


def cancel(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """End a job that the workflow made and that still goes on; any other is left alone. For exit handlers."""
    owner = f"{OWNER}/"
    policy = StepInput("policy", "What becomes of it: delete, suspend or keep.", default="delete")
    mark = f'(.metadata.annotations["{OWNER_ANNOTATION}"] // "" | startswith("{owner}"))'
    phase = '.status.phase // "Pending"' if kind == ELASTIC_JOB else f"({_PHASE.removeprefix(JQ)})"
    return WorkflowStep(
        _named("cancel", kind),
        CANCEL.name,
        (NAME, policy, timeout("15m")),
        {**_about(kind), "owner": owner, "action": policy.tag},
        CancelJob(_object(kind, NAME), policy, kinds.kind_of(kind).suspension(suspend=True)),
        {**_job_outputs(kind), "phase": f'{JQ}if {mark} then {phase} else "" end'},
        on_cancel="keep",
    )


def scale(*, retries: int = 0) -> WorkflowStep:
    """Other counts or sizes of a running job's roles."""
    replicas = StepInput("replicas", "Role to count and size, as YAML: {worker: {replicas: 3}}.", "yaml")
    return _plan(
        "scale",
        SCALE.name,
        (JOB, replicas, STEP_TIMEOUT, timeout("1h")),
        {"replicas": replicas.tag},
        {"replicaResourceSpecs": replicas},
        retries=retries,
    )


def plan_scale(*, wait_for_change: bool = False) -> WorkflowStep:
    """What a job's own optimizer would change now. Nothing is changed.

    Args:
        wait_for_change: wait for a plan that changes something (plugin only); else the job's first plan is taken.
    """
    request: dict[str, Any] = {"name": JOB.tag, "namespace": NAMESPACE}
    return WorkflowStep(
        PLAN_SCALE.name,
        PLAN_SCALE.name,
        (JOB, timeout("1h")),
        request | ({"waitForChange": True} if wait_for_change else {}),
        GetObject(
            _object(ELASTIC_JOB, JOB),
            "status.phase in (Created, Pending, Running), status.autoscaling.stage",
            "status.phase in (Succeeded, Failed)",
        ),
        PLANNED_OUTPUTS,
        on_cancel="keep",
    )


def apply_plan(*, retries: int = 0) -> WorkflowStep:
    """Carry out what ``plan-scale`` told: counts, sizes and migrations in one change."""
    plan = StepInput("plan", "Output parameter plan of the step plan-scale: JSON.")
    fields = {"replicaResourceSpecs": "replicas", "migratePods": "migrate"}
    reasons = f"toJson({_part(plan, 'reasons')})"
    return _plan(
        APPLY_PLAN.name,
        APPLY_PLAN.name,
        (JOB, plan, STEP_TIMEOUT, timeout("1h")),
        {"plan": plan.tag},
        {
            **{field: Tag(f"{{{{=toJson({_part(plan, part)})}}}}") for field, part in fields.items()},
            "reason": Tag(f"{{{{=toJson(sprig.trunc({MAX_REASON}, {reasons}))}}}}"),
        },
        retries=retries,
    )


def _part(plan: StepInput, name: str) -> str:
    """A part of a plan, in an expression."""
    return f"jsonpath({plan.variable}, '$.{name}')"


def checkpoint(*, retries: int = 0) -> WorkflowStep:
    """Ask a running job for a checkpoint."""
    inputs = (JOB, STEP_TIMEOUT, timeout("1h"))
    return _plan("checkpoint", CHECKPOINT.name, inputs, {}, {"checkpoint": True}, retries=retries, pins=False)


def migrate_ps(*, until: str = "Succeeded", retries: int = 0) -> WorkflowStep:
    """Move a running job to other parameter servers.

    Args:
        until: how far to wait: ``Succeeded``, or ``Restarting`` when the new servers are ready.
        retries: of a migration that was rolled back (plugin only).
    """
    replicas = StepInput("replicas", "How many servers; empty: as many as now.", "integer", "")
    resource = StepInput("resource", "Size of servers that are added, as YAML: {cpu: '2'}.", "yaml", "{}")
    migrate = StepInput(
        "migrate", "Ranks to replace and their new sizes, as YAML: {0: {cpu: '2'}}.", "yaml", "{}"
    )
    return _plan(
        "migrate-ps",
        MIGRATE_PS.name,
        (JOB, replicas, resource, migrate, STEP_TIMEOUT, timeout("1h")),
        {
            "replicas": replicas.tag,
            "resource": resource.tag,
            "migrate": migrate.tag,
            "until": until,
        },
        {
            "checkpoint": True,
            "replicaResourceSpecs": {names.PS_TYPE: {"replicas": replicas, "resource": resource}},
            "migrateRanks": migrate,
        },
        retries=retries,
        success="status.phase == Succeeded"
        if until == "Succeeded"
        else "status.phase in (Restarting, Verifying, Succeeded)",
    )


def suspend(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """Free a job's pods; its data position and checkpoints stay."""
    goal = (_phase(kind, "Suspended"), _phase(kind, "Succeeded", "Failed"))
    return _switch("suspend", SUSPEND.name, kind, True, goal)


def resume(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """Let a suspended job go on, and wait until it runs."""
    goal = (_phase(kind, "Running", "Succeeded"), _phase(kind, "Failed"))
    return _switch("resume", RESUME.name, kind, False, goal)


def autoscale(*, kind: str = "TrainingJob") -> WorkflowStep:
    """Let the cluster's autoscaler, or an ElasticJob's own master, change a job's replicas, or no longer."""
    bounds = StepInput("bounds", "true, false, or bounds such as 2-8.", default="true")
    wanted = _object(kind, NAME)
    wanted["metadata"]["annotations"] = {autoscaling.ANNOTATION: bounds}
    return WorkflowStep(
        _named("autoscale", kind),
        AUTOSCALE.name,
        (NAME, bounds, timeout("5m")),
        {**_about(kind), "bounds": bounds.tag},
        PatchObject(wanted),
        _job_outputs(kind),
        on_cancel="keep",
    )


def delete(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """Delete a job, and wait until it and its pods are gone. One that is not there is as good as deleted."""
    return WorkflowStep(
        _named("delete", kind),
        DELETE.name,
        (NAME, timeout("15m")),
        _about(kind),
        DeleteObject(_object(kind, NAME)),
        _job_outputs(kind, GONE_OUTPUTS),
        on_cancel="keep",
    )


def _switch(verb: str, stage: str, kind: str, suspended: bool, goal: tuple[str, str]) -> WorkflowStep:
    spec = kinds.kind_of(kind).suspension(suspend=suspended)
    return WorkflowStep(
        _named(verb, kind),
        stage,
        (NAME, timeout("30m")),
        _about(kind),
        PatchObject(_object(kind, NAME) | {"spec": spec}, *goal),
        _job_outputs(kind),
        on_cancel="keep",
    )


def _plan(
    name: str,
    stage: str,
    inputs: tuple[StepInput, ...],
    request: Mapping[str, Any],
    spec: Mapping[str, Any],
    *,
    retries: int,
    success: str = "status.phase == Succeeded",
    pins: bool = True,
) -> WorkflowStep:
    """A step that makes a ScalePlan: an object of its own, so that no status is an earlier change's.

    One that asks for numbers switches autoscaling off before; the stages do that themselves.
    """
    asked = {"job": JOB.tag, "namespace": NAMESPACE, "stepTimeoutSeconds": STEP_TIMEOUT.tag, **request}
    plan = _object(SCALE_PLAN, _plan_name(name), owned=True) | {
        "spec": {"ownerJob": JOB, "stepTimeoutSeconds": STEP_TIMEOUT, **spec}
    }
    pinned = _object(ELASTIC_JOB, JOB)
    pinned["metadata"]["annotations"] = {autoscaling.ANNOTATION: autoscaling.OFF}
    action = ApplyObject(plan, success, ENDED, pinned if pins else {})
    return WorkflowStep(name, stage, inputs, asked, action, PLAN_OUTPUTS, retries=retries)


def _plan_name(verb: str) -> Tag:
    """A name of the step's own: the job's, readable, and a hash of the workflow and the step's path in it."""
    job = f"{{{{=sprig.trimSuffix('-', sprig.trunc(40, {JOB.variable}))}}}}"
    return Tag(f"{job}-{verb}-{{{{=sprig.trunc(10, sprig.sha256sum(workflow.uid + ' ' + {_STEP_PATH}))}}}}")


def _object(
    kind: str, name: StepInput | Tag, *, owned: bool = False, marked: bool | None = None
) -> dict[str, Any]:
    """An object of the workflow's namespace.

    Args:
        kind: its kind.
        name: its name.
        owned: whether it is deleted with the workflow.
        marked: whether it bears the mark of who made it; the stages set that themselves.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": Tag(NAMESPACE)}
    if owned if marked is None else marked:
        metadata["annotations"] = {OWNER_ANNOTATION: Tag(f"{OWNER}/{{{{={_STEP_PATH}}}}}")}
    if owned:
        # Not its controller: the job's own controller is that of its children, and finalizers are nobody's business here.
        metadata["ownerReferences"] = [
            {
                "apiVersion": "argoproj.io/v1alpha1",
                "kind": "Workflow",
                "name": Tag("{{workflow.name}}"),
                "uid": Tag("{{workflow.uid}}"),
            }
        ]
    return {"apiVersion": kinds.kind_of(kind).source.api.api_version, "kind": kind, "metadata": metadata}
