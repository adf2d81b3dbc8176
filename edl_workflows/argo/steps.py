"""The stages as steps. Each function gives the model of one step; `builders` makes Hera templates of them."""

from collections.abc import Mapping
from typing import Any

from edl_workflows.argo.manifest_text import Tag
from edl_workflows.argo.resource_template import JQ
from edl_workflows.argo.step import Apply, Cancel, Change, Get, Input, Remove, Step
from edl_workflows.jobs import names
from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.stages.cancel import CANCEL
from edl_workflows.stages.checkpoint import CHECKPOINT
from edl_workflows.stages.collect import COLLECT
from edl_workflows.stages.delete import DELETE
from edl_workflows.stages.identity import OWNER_ANNOTATION
from edl_workflows.stages.migrate_ps import MIGRATE_PS
from edl_workflows.stages.ownership import CancelAction
from edl_workflows.stages.scale import SCALE
from edl_workflows.stages.submit import SUBMIT
from edl_workflows.stages.suspend import RESUME, SUSPEND
from edl_workflows.stages.wait import WAIT, WAIT_PLAN

NAMESPACE = "{{workflow.namespace}}"
"""Jobs live where their workflow does: an owner in another namespace would make the garbage collector delete them."""

NAME = Input("name", "The job's name.")
JOB = Input("job", "The job's name.")
STEP_TIMEOUT = Input(
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
GONE_OUTPUTS: Mapping[str, str] = {
    "kind": ELASTIC_JOB, "namespace": NAMESPACE, "name": NAME.tag, "job": NAME.tag, "replicas": "{}",
}  # fmt: skip

ENDED = "status.phase == Failed"


def timeout(default: str) -> Input:
    """How long a step may take at most."""
    return Input("timeout", "How long the step may take, as 90s, 30m or 24h.", default=default)


def submit(
    *, wait: bool = True, on_cancel: CancelAction = "delete", retries: int = 0, owned: bool = True
) -> Step:
    """Create a job from its spec.

    Args:
        wait: until it has succeeded.
        on_cancel: what becomes of it if the step is cancelled (plugin only).
        retries: a failed job is replaced by a new one so many times (plugin only).
        owned: whether the job is deleted with its workflow.
    """
    spec = Input("spec", "The ElasticJob's spec, as YAML.", "yaml")
    manifest = _object(ELASTIC_JOB, NAME, owned=owned) | {"spec": spec}
    done = ("status.phase == Succeeded", ENDED) if wait else ("", "")
    return Step(
        "submit",
        SUBMIT.name,
        (NAME, spec, timeout("24h" if wait else "15m")),
        {
            "manifest": _object(ELASTIC_JOB, NAME, owned=owned, marked=False) | {"spec": spec},
            "namespace": NAMESPACE,
        },
        Apply(manifest, *done),
        JOB_OUTPUTS,
        wait=wait,
        on_cancel=on_cancel if wait else "keep",
        retries=retries,
    )


def wait_for_job(name: str = "wait", *, on_cancel: CancelAction = "keep", condition: str = "") -> Step:
    """Wait for a job's phase, for a training step, or for both at once.

    Args:
        name: the template's.
        on_cancel: see `argo.task.Task`.
        condition: a condition's type, as ``Ready`` (plugin only).
    """
    phases = Input("phases", "Phases to wait for, any of them, separated by commas.", default="Succeeded")
    step = Input("step", "Global step of the training to wait for besides; empty: none.", "integer", "")
    request = {"phases": f"[{phases.tag}]", "step": step.tag, "name": NAME.tag, "namespace": NAMESPACE}
    return Step(
        name,
        WAIT.name,
        (NAME, phases, step, timeout("24h")),
        request | ({"condition": condition} if condition else {}),
        Get(_object(ELASTIC_JOB, NAME), _reached(phases, step), _missed(phases)),
        JOB_OUTPUTS,
        on_cancel=on_cancel,
    )


def _reached(phases: Input, step: Input) -> str:
    """Running is also met by a job that has succeeded meanwhile: it has run. A later phase than Running is none."""
    text, number = phases.variable, step.variable
    named = f"{{{{={text} + ({text} contains 'Running' ? ',Succeeded' : '')}}}}"
    # Without a step to wait for the second term is one that always holds: an object has had a generation from the first.
    key = f"{{{{={number} == '' ? 'metadata.generation' : 'status.progress.step'}}}}"
    least = f"{{{{={number} == '' ? 0 : int({number}) - 1}}}}"
    return f"status.phase in ({named}), {key} > {least}"


def _missed(phases: Input) -> str:
    """The final phases that are not waited for."""
    text = phases.variable
    failed = f"{text} contains 'Failed' ? 'None' : 'Failed'"
    succeeded = f"{text} contains 'Succeeded' || {text} contains 'Running' ? 'None' : 'Succeeded'"
    return f"status.phase in ({{{{={failed}}}}},{{{{={succeeded}}}}})"


def wait_for_plan() -> Step:
    """Wait until a ScalePlan that another step made has succeeded."""
    name = Input("name", "The plan's name.")
    return Step(
        "wait-plan",
        WAIT_PLAN.name,
        (name, timeout("1h")),
        {"name": name.tag, "namespace": NAMESPACE},
        Get(_object(SCALE_PLAN, name), "status.phase == Succeeded", ENDED),
        PLAN_OUTPUTS,
        on_cancel="keep",
    )


def collect() -> Step:
    """What a job has come to, at once."""
    return Step(
        "collect",
        COLLECT.name,
        (NAME, timeout("5m")),
        {"name": NAME.tag, "namespace": NAMESPACE},
        Get(_object(ELASTIC_JOB, NAME)),
        JOB_OUTPUTS,
        on_cancel="keep",
    )


def cancel() -> Step:
    """End a job that the workflow made and that still goes on; any other is left alone. For exit handlers."""
    owner = f"{OWNER}/"
    policy = Input("policy", "What becomes of it: delete, suspend or keep.", default="delete")
    mark = f'(.metadata.annotations["{OWNER_ANNOTATION}"] // "" | startswith("{owner}"))'
    return Step(
        "cancel",
        CANCEL.name,
        (NAME, policy, timeout("15m")),
        {"name": NAME.tag, "namespace": NAMESPACE, "owner": owner, "action": policy.tag},
        Cancel(_object(ELASTIC_JOB, NAME), policy),
        JOB_OUTPUTS | {"phase": f'{JQ}if {mark} then .status.phase // "Pending" else "" end'},
        on_cancel="keep",
    )


def scale(*, retries: int = 0) -> Step:
    """Other counts or sizes of a running job's roles."""
    replicas = Input("replicas", "Role to count and size, as YAML: {worker: {replicas: 3}}.", "yaml")
    return _plan(
        "scale",
        SCALE.name,
        (JOB, replicas, STEP_TIMEOUT, timeout("1h")),
        {"replicas": replicas.tag},
        {"replicaResourceSpecs": replicas},
        retries=retries,
    )


def checkpoint(*, retries: int = 0) -> Step:
    """Ask a running job for a checkpoint."""
    inputs = (JOB, STEP_TIMEOUT, timeout("1h"))
    return _plan("checkpoint", CHECKPOINT.name, inputs, {}, {"checkpoint": True}, retries=retries)


def migrate_ps(*, until: str = "Succeeded", retries: int = 0) -> Step:
    """Move a running job to other parameter servers.

    Args:
        until: how far to wait: ``Succeeded``, or ``Restarting`` when the new servers are ready.
        retries: of a migration that was rolled back (plugin only).
    """
    replicas = Input("replicas", "How many servers; empty: as many as now.", "integer", "")
    resource = Input("resource", "Size of servers that are added, as YAML: {cpu: '2'}.", "yaml", "{}")
    migrate = Input(
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


def suspend() -> Step:
    """Free a job's pods; its data position and checkpoints stay."""
    return _switch("suspend", SUSPEND.name, suspended=True)


def resume() -> Step:
    """Let a suspended job go on, and wait until it runs."""
    return _switch("resume", RESUME.name, suspended=False)


def delete() -> Step:
    """Delete a job, and wait until it and its pods are gone. One that is not there is as good as deleted."""
    return Step(
        "delete",
        DELETE.name,
        (NAME, timeout("15m")),
        {"name": NAME.tag, "namespace": NAMESPACE},
        Remove(_object(ELASTIC_JOB, NAME)),
        GONE_OUTPUTS,
        on_cancel="keep",
    )


def _switch(name: str, stage: str, *, suspended: bool) -> Step:
    phase = ("status.phase == Suspended", "status.phase in (Succeeded, Failed)")
    running = ("status.phase in (Running, Succeeded)", ENDED)
    return Step(
        name,
        stage,
        (NAME, timeout("30m")),
        {"name": NAME.tag, "namespace": NAMESPACE},
        Change(
            _object(ELASTIC_JOB, NAME) | {"spec": {"suspend": suspended}}, *(phase if suspended else running)
        ),
        JOB_OUTPUTS,
        on_cancel="keep",
    )


def _plan(
    name: str,
    stage: str,
    inputs: tuple[Input, ...],
    request: Mapping[str, Any],
    spec: Mapping[str, Any],
    *,
    retries: int,
    success: str = "status.phase == Succeeded",
) -> Step:
    """A step that makes a ScalePlan: an object of its own, so that no status is an earlier change's."""
    asked = {"job": JOB.tag, "namespace": NAMESPACE, "stepTimeoutSeconds": STEP_TIMEOUT.tag, **request}
    plan = _object(SCALE_PLAN, _plan_name(name), owned=True) | {
        "spec": {"ownerJob": JOB, "stepTimeoutSeconds": STEP_TIMEOUT, **spec}
    }
    return Step(name, stage, inputs, asked, Apply(plan, success, ENDED), PLAN_OUTPUTS, retries=retries)


def _plan_name(verb: str) -> Tag:
    """A name of the step's own: the job's, readable, and a hash of the workflow and the step's path in it."""
    job = f"{{{{=sprig.trimSuffix('-', sprig.trunc(40, {JOB.variable}))}}}}"
    return Tag(f"{job}-{verb}-{{{{=sprig.trunc(10, sprig.sha256sum(workflow.uid + ' ' + {_STEP_PATH}))}}}}")


def _object(
    kind: str, name: Input | Tag, *, owned: bool = False, marked: bool | None = None
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
    return {"apiVersion": names.API_VERSION, "kind": kind, "metadata": metadata}
