"""The stages as steps. Each function returns the model of one step; `builders` makes Hera templates of them.

Inputs and requests come from the descriptions of the stages; a function adds what a resource template does,
and options for the author of a workflow. A function with a ``kind`` makes steps about jobs of that kind, with
the kind in the name of the template unless it is ElasticJob.
"""

from collections.abc import Callable, Mapping
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs import autoscaling, kinds
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.argo.templates.manifest_text import Tag
from edl_workflows.pipelines.argo.templates.resource_template import JQ
from edl_workflows.pipelines.argo.templates.step import (
    ApplyObject,
    CancelJob,
    DeleteObject,
    GetObject,
    PatchObject,
    StepInput,
    StepMemo,
    WorkflowStep,
)
from edl_workflows.pipelines.argo.templates.step_fields import (
    COMMON_PHASE,
    GONE_OUTPUTS,
    JOB,
    MARK_PATH,
    MEMO_INPUTS,
    NAME,
    NAMESPACE,
    PLAN_OUTPUTS,
    PLANNED_OUTPUTS,
    STEP_PATH,
    STEP_TIMEOUT,
    inputs_of,
    job_outputs,
    reason_tag,
    request_of,
    timeout,
)
from edl_workflows.pipelines.stages.apply_plan import APPLY_PLAN
from edl_workflows.pipelines.stages.autoscale import AUTOSCALE
from edl_workflows.pipelines.stages.cancel import CANCEL
from edl_workflows.pipelines.stages.catalog import stage_of
from edl_workflows.pipelines.stages.checkpoint import CHECKPOINT
from edl_workflows.pipelines.stages.collect import COLLECT
from edl_workflows.pipelines.stages.delete import DELETE
from edl_workflows.pipelines.stages.description import StageSpec
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS
from edl_workflows.pipelines.stages.plan_scale import PLAN_SCALE
from edl_workflows.pipelines.stages.scale import SCALE
from edl_workflows.pipelines.stages.submit import SUBMIT
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND
from edl_workflows.pipelines.stages.wait import WAIT, WAIT_PLAN
from edl_workflows.pipelines.waiting.goals import IfFinished
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION
from edl_workflows.pipelines.waiting.ownership import CancelAction

OWNER = "argo/{{workflow.namespace}}/{{workflow.name}}/{{workflow.uid}}"
"""Prefix of the owner annotations of all objects that the workflow creates, for both ways to wait."""

ENDED = "status.phase == Failed"


def spelled(kind: str, phase: str) -> str:
    """A phase as the kind's users know it: TrainingJobs write theirs in lower case."""
    return phase.lower() if kinds.kind_of(kind).failed.islower() else phase


def _named(verb: str, kind: str) -> str:
    return verb if kind == ELASTIC_JOB else f"{verb}-{kind.lower()}"


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
    memoize: str = "",
    queue: str = "",
) -> WorkflowStep:
    """Create a job from its spec.

    Args:
        kind: the job's.
        wait: whether to wait until it has succeeded.
        on_cancel: what becomes of it if the step is cancelled (plugin only).
        retries: how often a failed job is replaced by a new one (plugin only).
        owned: whether the job is deleted with its workflow.
        memoize: a ConfigMap in which Argo keeps the outputs of jobs that succeeded. The step gets the inputs
            ``data``, ``data-version`` and ``code``; if these three and the spec are those of an earlier run,
            it creates no job and has the outputs of that run. Only with `wait`.
        queue: a ConfigMap whose key ``jobs`` says how many jobs of all steps with this queue, in all
            workflows of the namespace, run at a time. The others wait without a job. Only with `wait`.

    Raises:
        InvalidError: `memoize` or `queue` is set without `wait`.
    """
    if (memoize or queue) and not wait:
        raise InvalidError(
            "memoize and queue need wait=True: only the outputs of a job that succeeded may be used again, "
            "and a step that does not wait leaves its queue at once"
        )
    spec = StepInput("spec", f"The {kind}'s spec, as YAML.", "yaml")
    manifest = _object(kind, NAME, owned=owned) | {"spec": spec}
    done = (_phase(kind, "Succeeded"), _phase(kind, "Failed")) if wait else ("", "")
    return WorkflowStep(
        _named("submit", kind),
        SUBMIT.name,
        (NAME, spec, timeout("24h" if wait else "15m"), *(MEMO_INPUTS if memoize else ())),
        {
            "manifest": _object(kind, NAME, owned=owned, marked=False) | {"spec": spec},
            "namespace": NAMESPACE,
        },
        ApplyObject(manifest, *done),
        job_outputs(kind),
        wait=wait,
        on_cancel=on_cancel if wait else "keep",
        retries=retries,
        memo=StepMemo(memoize, (*MEMO_INPUTS, spec)) if memoize else None,
        queue=queue,
    )


def wait_for_job(
    name: str = "",
    *,
    kind: str = ELASTIC_JOB,
    on_cancel: CancelAction = "keep",
    condition: str = "",
    if_finished: IfFinished = IfFinished.SKIP,
) -> WorkflowStep:
    """Wait for a job's phase, for a training step, or for both at once.

    Args:
        name: name of the template; "": ``wait``, with the kind unless it is ElasticJob.
        kind: the job's.
        on_cancel: see `argo.plugin_task.PluginTask`.
        condition: the type of a condition to wait for, such as ``Ready`` (plugin only).
        if_finished: what to do if the job succeeds without reaching what is waited for: skip (the step
            succeeds and its message says why), fail or succeed (plugin only).
    """
    inputs = inputs_of(WAIT)
    phases, step = inputs["phases"], inputs["step"]
    fixed = {"phases": f"[{phases.tag}]"} | ({"condition": condition} if condition else {})
    return WorkflowStep(
        name or _named("wait", kind),
        WAIT.name,
        (*inputs.values(), timeout("24h")),
        {"phases": fixed["phases"], "step": step.tag, **request_of(WAIT, kind, if_finished, **fixed)},
        GetObject(_object(kind, NAME), _reached(kind, phases, step), _missed(kind, phases)),
        job_outputs(kind),
        on_cancel=on_cancel,
    )


def _reached(kind: str, phases: StepInput, step: StepInput) -> str:
    """The success condition. A job that has succeeded meanwhile also counts as Running, because it has run.
    No other later phase counts."""
    text, number = _given(kind, phases), step.variable
    running, succeeded = spelled(kind, "Running"), spelled(kind, "Succeeded")
    named = f"{{{{={text} + ({text} contains '{running}' ? ',{succeeded}' : '')}}}}"
    # Without a step to wait for, the second term is metadata.generation > 0, which always holds.
    key = f"{{{{={number} == '' ? 'metadata.generation' : 'status.progress.step'}}}}"
    least = f"{{{{={number} == '' ? 0 : int({number}) - 1}}}}"
    return f"status.phase in ({named}), {key} > {least}"


def _missed(kind: str, phases: StepInput) -> str:
    """The failure condition: the final phases that are not waited for."""
    text = _given(kind, phases)
    running, done, bad = (spelled(kind, phase) for phase in ("Running", "Succeeded", "Failed"))
    failed = f"{text} contains '{bad}' ? 'None' : '{bad}'"
    succeeded = f"{text} contains '{done}' || {text} contains '{running}' ? 'None' : '{done}'"
    return f"status.phase in ({{{{={failed}}}}},{{{{={succeeded}}}}})"


def _given(kind: str, phases: StepInput) -> str:
    """The phases that are waited for, as the kind spells them, in an expression."""
    same = spelled(kind, "Failed") == "Failed"
    return phases.variable if same else f"sprig.lower({phases.variable})"


def wait_for_plan(*, if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Wait until a ScalePlan that another step made has succeeded.

    Args:
        if_finished: as for `scale`.
    """
    name = inputs_of(WAIT_PLAN)["name"]
    return WorkflowStep(
        "wait-plan",
        WAIT_PLAN.name,
        (name, timeout("1h")),
        request_of(WAIT_PLAN, if_finished=if_finished),
        GetObject(_object(SCALE_PLAN, name), "status.phase == Succeeded", ENDED),
        PLAN_OUTPUTS,
        on_cancel="keep",
    )


def collect(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """Read a job's current outputs without waiting."""
    return WorkflowStep(
        _named("collect", kind),
        COLLECT.name,
        (NAME, timeout("5m")),
        request_of(COLLECT, kind),
        GetObject(_object(kind, NAME)),
        job_outputs(kind),
        on_cancel="keep",
    )


def cancel(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """End a job that the workflow created and that has not ended. Any other job is left alone. For exit
    handlers."""
    owner = f"{OWNER}/"
    policy = inputs_of(CANCEL)["action"]
    mark = f'(.metadata.annotations["{OWNER_ANNOTATION}"] // "" | startswith("{owner}"))'
    phase = '.status.phase // "Pending"' if kind == ELASTIC_JOB else f"({COMMON_PHASE.removeprefix(JQ)})"
    return WorkflowStep(
        _named("cancel", kind),
        CANCEL.name,
        (NAME, policy, timeout("15m")),
        request_of(CANCEL, kind, owner=owner),
        CancelJob(_object(kind, NAME), policy, kinds.kind_of(kind).suspension(suspend=True)),
        {**job_outputs(kind), "phase": f'{JQ}if {mark} then {phase} else "" end'},
        on_cancel="keep",
    )


def scale(*, retries: int = 0, if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Change counts or sizes of a running job's roles.

    Args:
        retries: how often a failed change is tried again (plugin only).
        if_finished: what to do if the job succeeds first: skip (the step succeeds and its message says why),
            fail or succeed (plugin only).
    """
    spec = {"replicaResourceSpecs": inputs_of(SCALE)["replicas"]}
    return _plan(SCALE, spec, retries=retries, if_finished=if_finished)


def plan_scale(*, wait_for_change: bool = False, if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Read what a job's own optimizer would change now, without changing anything.

    Args:
        wait_for_change: wait for a plan that changes something (plugin only); otherwise the job's first plan
            is taken.
        if_finished: as for `scale`.
    """
    fixed: dict[str, Any] = {"wait_for_change": True} if wait_for_change else {}
    return WorkflowStep(
        PLAN_SCALE.name,
        PLAN_SCALE.name,
        (JOB, timeout("1h")),
        request_of(PLAN_SCALE, if_finished=if_finished, **fixed),
        GetObject(
            _object(ELASTIC_JOB, JOB),
            "status.phase in (Created, Pending, Running), status.autoscaling.stage",
            "status.phase in (Succeeded, Failed)",
        ),
        PLANNED_OUTPUTS,
        on_cancel="keep",
    )


def apply_plan(*, retries: int = 0, if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Apply the plan that ``plan-scale`` read: counts, sizes and migrations in one change. Arguments are
    those of `scale`."""
    plan = inputs_of(APPLY_PLAN)["plan"]
    fields = {"replicaResourceSpecs": "replicas", "migratePods": "migrate"}
    reasons = f"toJson({_part(plan, 'reasons')})"
    spec = {
        **{field: Tag(f"{{{{=toJson({_part(plan, part)})}}}}") for field, part in fields.items()},
        "reason": reason_tag(reasons),
    }
    return _plan(APPLY_PLAN, spec, retries=retries, if_finished=if_finished)


def _part(plan: StepInput, name: str) -> str:
    """A part of a plan, in an expression."""
    return f"jsonpath({plan.variable}, '$.{name}')"


def checkpoint(*, retries: int = 0, if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Ask a running job for a checkpoint. Arguments are those of `scale`."""
    return _plan(CHECKPOINT, {"checkpoint": True}, retries=retries, pins=False, if_finished=if_finished)


def migrate_ps(
    *, until: str = "Succeeded", retries: int = 0, if_finished: IfFinished = IfFinished.SKIP
) -> WorkflowStep:
    """Move a running job to other parameter servers.

    Args:
        until: phase to wait for: ``Succeeded``, or ``Restarting``, when the new servers are ready.
        retries: how often a migration that was rolled back is tried again (plugin only).
        if_finished: as for `scale`.
    """
    inputs = inputs_of(MIGRATE_PS)
    servers = {"replicas": inputs["replicas"], "resource": inputs["resource"]}
    spec = {
        "checkpoint": True,
        "replicaResourceSpecs": {names.PS_TYPE: servers},
        "migrateRanks": inputs["migrate"],
    }
    reached = "status.phase in (Restarting, Verifying, Succeeded)"
    success = "status.phase == Succeeded" if until == "Succeeded" else reached
    return _plan(MIGRATE_PS, spec, retries=retries, success=success, until=until, if_finished=if_finished)


def suspend(*, kind: str = ELASTIC_JOB, if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Release a job's pods; its data position and checkpoints stay."""
    goal = (_phase(kind, "Suspended"), _phase(kind, "Succeeded", "Failed"))
    return _switch(SUSPEND, kind, suspended=True, goal=goal, if_finished=if_finished)


def resume(*, kind: str = ELASTIC_JOB, if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Resume a suspended job, and wait until it runs."""
    goal = (_phase(kind, "Running", "Succeeded"), _phase(kind, "Failed"))
    return _switch(RESUME, kind, suspended=False, goal=goal, if_finished=if_finished)


def autoscale(*, kind: str = "TrainingJob", if_finished: IfFinished = IfFinished.SKIP) -> WorkflowStep:
    """Enable or disable autoscaling of a job, by the cluster's autoscaler or by an ElasticJob's own
    master."""
    bounds = inputs_of(AUTOSCALE)["bounds"]
    manifest = _object(kind, NAME)
    manifest["metadata"]["annotations"] = {autoscaling.ANNOTATION: bounds}
    return WorkflowStep(
        _named("autoscale", kind),
        AUTOSCALE.name,
        (NAME, bounds, timeout("5m")),
        request_of(AUTOSCALE, kind, if_finished),
        PatchObject(manifest),
        job_outputs(kind),
        on_cancel="keep",
    )


def delete(*, kind: str = ELASTIC_JOB) -> WorkflowStep:
    """Delete a job, and wait until it and its pods are gone. A job that does not exist counts as deleted."""
    return WorkflowStep(
        _named("delete", kind),
        DELETE.name,
        (NAME, timeout("15m")),
        request_of(DELETE, kind),
        DeleteObject(_object(kind, NAME)),
        job_outputs(kind, GONE_OUTPUTS),
        on_cancel="keep",
    )


def _switch(
    stage: StageSpec[Any], kind: str, *, suspended: bool, goal: tuple[str, str], if_finished: IfFinished
) -> WorkflowStep:
    spec = kinds.kind_of(kind).suspension(suspend=suspended)
    return WorkflowStep(
        _named(stage.name, kind),
        stage.name,
        (NAME, timeout("30m")),
        request_of(stage, kind, if_finished),
        PatchObject(_object(kind, NAME) | {"spec": spec}, *goal),
        job_outputs(kind),
        on_cancel="keep",
    )


def _plan(
    stage: StageSpec[Any],
    spec: Mapping[str, Any],
    *,
    retries: int,
    success: str = "status.phase == Succeeded",
    pins: bool = True,
    if_finished: IfFinished = IfFinished.SKIP,
    **fixed: Any,
) -> WorkflowStep:
    """A step that creates a ScalePlan. Each change has its own ScalePlan, so its status is never that of an
    earlier change.

    Args:
        stage: the stage.
        spec: fields of the ScalePlan, for resource templates.
        retries: how often a failed plan is tried again (plugin only).
        success: condition on the status of the plan.
        pins: whether the plan sets replica counts. If so, the resource template disables autoscaling first;
            the agent's stages do this themselves.
        if_finished: the result if the job succeeds first.
        fixed: fields of the request that the author of the workflow fixed.
    """
    inputs = inputs_of(stage)
    own = [given for given in inputs.values() if given not in (JOB, STEP_TIMEOUT)]
    plan = _object(SCALE_PLAN, _plan_name(stage.name), owned=True) | {
        "spec": {"ownerJob": JOB, "stepTimeoutSeconds": STEP_TIMEOUT, "reason": reason_tag(), **spec}
    }
    pinned = _object(ELASTIC_JOB, JOB)
    pinned["metadata"]["annotations"] = {autoscaling.ANNOTATION: autoscaling.OFF}
    return WorkflowStep(
        stage.name,
        stage.name,
        (JOB, *own, STEP_TIMEOUT, timeout("1h")),
        request_of(stage, if_finished=if_finished, **fixed),
        ApplyObject(plan, success, ENDED, pinned if pins else {}),
        PLAN_OUTPUTS,
        retries=retries,
    )


def _plan_name(verb: str) -> Tag:
    """A name unique to the step: the job's name, to be readable, and a hash of the workflow's uid and the
    step's path in it."""
    job = f"{{{{=sprig.trimSuffix('-', sprig.trunc(40, {JOB.variable}))}}}}"
    return Tag(f"{job}-{verb}-{{{{=sprig.trunc(10, sprig.sha256sum(workflow.uid + ' ' + {STEP_PATH}))}}}}")


def _object(
    kind: str, name: StepInput | Tag, *, owned: bool = False, marked: bool | None = None
) -> dict[str, Any]:
    """An object in the workflow's namespace.

    Args:
        kind: its kind.
        name: its name.
        owned: whether it is deleted with the workflow.
        marked: whether it has an owner annotation (the agent's stages set theirs themselves); None: if it is
            owned.
    """
    metadata: dict[str, Any] = {"name": name, "namespace": Tag(NAMESPACE)}
    if owned if marked is None else marked:
        metadata["annotations"] = {OWNER_ANNOTATION: Tag(f"{OWNER}/{{{{={MARK_PATH}}}}}")}
    if owned:
        # Neither ``controller``, since the workflow does not control the job, nor ``blockOwnerDeletion``,
        # which would need permission to update the workflow's finalizers.
        metadata["ownerReferences"] = [
            {
                "apiVersion": "argoproj.io/v1alpha1",
                "kind": "Workflow",
                "name": Tag("{{workflow.name}}"),
                "uid": Tag("{{workflow.uid}}"),
            }
        ]
    return {"apiVersion": kinds.kind_of(kind).source.api.api_version, "kind": kind, "metadata": metadata}


_STEPS: dict[str, Callable[[], WorkflowStep]] = {
    SUBMIT.name: submit,
    WAIT.name: wait_for_job,
    WAIT_PLAN.name: wait_for_plan,
    COLLECT.name: collect,
    CANCEL.name: cancel,
    SCALE.name: scale,
    CHECKPOINT.name: checkpoint,
    MIGRATE_PS.name: migrate_ps,
    PLAN_SCALE.name: plan_scale,
    APPLY_PLAN.name: apply_plan,
    SUSPEND.name: suspend,
    RESUME.name: resume,
    AUTOSCALE.name: autoscale,
    DELETE.name: delete,
}
"""The stages that have more than the default step: a resource template, or options for the author of a
workflow."""


def step_of(stage_name: str) -> WorkflowStep:
    """The step of a stage.

    Raises:
        InvalidError: there is no such stage.
    """
    stage = stage_of(stage_name)
    make = _STEPS.get(stage.name)
    return make() if make is not None else default_step(stage)


def default_step(stage: StageSpec[Any]) -> WorkflowStep:
    """The step of a stage without a resource template: the agent runs it (plugin only)."""
    inputs = (*inputs_of(stage).values(), timeout("1h"))
    on_cancel: CancelAction = "keep" if stage.waits == "never" else "delete"
    return WorkflowStep(stage.name, stage.name, inputs, request_of(stage), None, {}, on_cancel=on_cancel)
