"""Ready-made WorkflowTemplates. Each is self-contained, so that it also works as a
ClusterWorkflowTemplate."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from hera.shared.serialization import MISSING
from hera.workflows import DAG, ClusterWorkflowTemplate, Container, Env, Parameter, WorkflowTemplate, models

from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.argo.templates import builders, groups, step_fields, steps
from edl_workflows.pipelines.argo.templates.groups import output, outputs_of
from edl_workflows.pipelines.argo.templates.serializer import to_manifest
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.waiting.ownership import CancelAction

__all__ = [
    "ACCOUNT",
    "JOB_NAME",
    "TemplateOptions",
    "checkpoint_migrate_restart",
    "clean_up",
    "elastic_retrain",
    "elastic_scale",
    "on_exit",
    "planned_scale",
    "stages",
    "train",
    "train_and_scale",
]

ACCOUNT = "edl-argo"
"""Service account of the steps' pods; `access` makes it with the rights that they need."""

_UID_CHARACTERS = 8
JOB_NAME = (
    "{{=workflow.parameters.name == '' ? "
    f"sprig.trimSuffix('-', sprig.trunc({names.MAX_JOB_NAME - _UID_CHARACTERS - 1}, workflow.name))"
    f" + '-' + sprig.trunc({_UID_CHARACTERS}, workflow.uid) : workflow.parameters.name}}}}"
)
"""The job's name: the parameter ``name`` or, if it is empty, the workflow's name, truncated to the allowed
length, and the first characters of its uid, to distinguish two workflows."""

NAME = Parameter(name="name", value="", description="The job's name; empty: made of the workflow's.")
SPEC = Parameter(name="spec", description="The ElasticJob's spec, as YAML.")
TIMEOUT = Parameter(name="timeout", value="24h", description="How long training may take, as 90m or 24h.")
CLEAN_UP = Parameter(
    name="clean-up",
    value="delete",
    enum=["delete", "suspend", "keep"],
    description="What becomes of a job that has not ended when the workflow fails or is stopped.",
)
ON_CANCEL = cast("CancelAction", "{{workflow.parameters.clean-up}}")
"""A tag that Argo replaces with one of the actions."""
JOB = Parameter(name="job", description="Name of the ElasticJob to change.")
REPLICAS = Parameter(
    name="replicas", value="{worker: {replicas: 2}}", description="Role to count and size, as YAML."
)
AT_STEP = Parameter(name="at-step", value="1", description="The training step after which the job is scaled.")
STEP_TIMEOUT = Parameter(
    name=step_fields.STEP_TIMEOUT.name,
    value=step_fields.STEP_TIMEOUT.default,
    description=step_fields.STEP_TIMEOUT.description,
)
IMAGE = Parameter(name="image", description="Image of the commands.")
EVALUATE = Parameter(
    name="evaluate",
    description="Shell command that evaluates $EDL_CHECKPOINT_URI and prints one JSON object of metrics.",
)
METRIC = Parameter(name="metric", value="accuracy", description="Which of the metrics the gate looks at.")
MINIMUM = Parameter(name="minimum", value="0.9", description="The least value of it that is promoted.")
PROMOTE = Parameter(
    name="promote",
    description="Shell command that publishes the model; $EDL_METRICS holds the metrics besides.",
)
POD = Parameter(name="pod-spec-patch", value="{}", description="Patch of the commands' pods, as for volumes.")


@dataclass(frozen=True)
class TemplateOptions:
    """How templates are made.

    Attributes:
        waiting: how their steps wait.
        cluster_scope: ClusterWorkflowTemplates instead of WorkflowTemplates.
        parameters: values of the workflows' parameters instead of their defaults.
        from_event: names of the parameters that an event may set in a workflow that it starts.
    """

    waiting: WaitMode = "resource"
    cluster_scope: bool = False
    parameters: Mapping[str, str] = field(default_factory=dict)
    from_event: tuple[str, ...] = ()


def tag(parameter: Parameter) -> str:
    """A parameter of the workflow."""
    return f"{{{{workflow.parameters.{parameter.name}}}}}"


def _workflow(
    options: TemplateOptions, name: str, parameters: Sequence[Parameter], description: str, **more: Any
) -> WorkflowTemplate:
    """An empty template with what all of ours have in common."""
    kind = ClusterWorkflowTemplate if options.cluster_scope else WorkflowTemplate
    return kind(
        name=name,
        annotations={"workflows.argoproj.io/description": description},
        entrypoint="main",
        arguments=[_with_value(parameter, options.parameters) for parameter in parameters],
        service_account_name=ACCOUNT,
        pod_gc=models.PodGC(strategy="OnPodSuccess"),
        **more,
    )


def _with_value(parameter: Parameter, values: Mapping[str, str]) -> Parameter:
    given = Parameter(name=parameter.name, description=parameter.description, enum=parameter.enum)
    given.value = values.get(str(parameter.name), parameter.value)
    return given


def on_exit() -> dict[str, models.LifecycleHook]:
    """The exit hook for a workflow that has the templates of `groups.clean_up` and the parameters ``name``
    and ``clean-up``."""
    values = {"name": JOB_NAME, "policy": tag(CLEAN_UP), "status": "{{workflow.status}}"}
    arguments = models.Arguments(
        parameters=[models.Parameter(name=key, value=value) for key, value in values.items()]
    )
    return {"exit": models.LifecycleHook(template="clean-up", arguments=arguments)}


def train(options: TemplateOptions, name: str = "elastic-train", kind: str = ELASTIC_JOB) -> dict[str, Any]:
    """Train: submit the job, wait until it has succeeded, and collect its outputs.

    Args:
        options: see `TemplateOptions`.
        name: the template's.
        kind: the job's.
    """
    article = "an" if kind[0] in "AEIO" else "a"
    description = (
        f"Runs {article} {kind}: submits it, waits for its success, collects its checkpoint and metrics."
    )
    spec = Parameter(name=SPEC.name, description=f"The {kind}'s spec, as YAML.")
    parameters = [NAME, spec, TIMEOUT, CLEAN_UP]
    with _workflow(options, name, parameters, description, hooks=on_exit()) as workflow:
        groups.clean_up(options.waiting, kind=kind)
        submit = builders.submit(options.waiting, kind=kind, on_cancel=ON_CANCEL)
        collect = builders.collect(options.waiting, kind=kind)
        with DAG(name="main", outputs=outputs_of(str(collect.name))):
            submitted: Any = submit(arguments={"name": JOB_NAME, "spec": tag(SPEC), "timeout": tag(TIMEOUT)})
            submitted >> collect(arguments={"name": output(submitted, "name")})
    return to_manifest(workflow)


def train_and_scale(options: TemplateOptions) -> dict[str, Any]:
    """Train, and scale the job while it trains."""
    description = (
        "Runs an ElasticJob and changes the number of its nodes after a step; ends as elastic-train."
    )
    parameters = [NAME, SPEC, TIMEOUT, CLEAN_UP, AT_STEP, REPLICAS, STEP_TIMEOUT]
    with _workflow(options, "elastic-train-and-scale", parameters, description, hooks=on_exit()) as workflow:
        groups.clean_up(options.waiting)
        submit = builders.submit(options.waiting, wait=False)
        wait, scale = builders.wait_for_job(options.waiting), builders.scale(options.waiting)
        with DAG(name="main", outputs=outputs_of("trained")):
            submitted: Any = submit(arguments={"name": JOB_NAME, "spec": tag(SPEC)})
            name = {"name": output(submitted, "name"), "timeout": tag(TIMEOUT)}
            reached: Any = wait(name="reached", arguments={**name, "phases": "Running", "step": tag(AT_STEP)})
            scaled: Any = scale(
                arguments={
                    "job": output(submitted, "name"),
                    **{str(given.name): tag(given) for given in (REPLICAS, STEP_TIMEOUT)},
                }
            )
            submitted >> reached >> scaled >> wait(name="trained", arguments=name)
    return to_manifest(workflow)


def elastic_scale(options: TemplateOptions) -> dict[str, Any]:
    """Scale a running job."""
    description = "Changes how many nodes a running ElasticJob has, or how large new ones are."
    parameters = [JOB, REPLICAS, STEP_TIMEOUT]
    with _workflow(options, "elastic-scale", parameters, description) as workflow:
        scale = builders.scale(options.waiting)
        with DAG(name="main", outputs=outputs_of("scale")):
            scale(arguments={str(parameter.name): tag(parameter) for parameter in parameters})
    return to_manifest(workflow)


def planned_scale(options: TemplateOptions) -> dict[str, Any]:
    """Ask a running job's optimizer, then a person, then scale."""
    description = "Reads the plan of a running ElasticJob's optimizer, waits for approval, and applies it."
    parameters = [JOB, STEP_TIMEOUT]
    with _workflow(options, "elastic-planned-scale", parameters, description) as workflow:
        change = groups.plan_approve_apply(options.waiting)
        with DAG(name="main", outputs=outputs_of("change", ("plan",))):
            change(name="change", arguments={str(parameter.name): tag(parameter) for parameter in parameters})
    return to_manifest(workflow)


def checkpoint_migrate_restart(options: TemplateOptions) -> dict[str, Any]:
    """Move a running job to other parameter servers in three visible steps."""
    given = {step_input.name: step_input for step_input in steps.migrate_ps().inputs}
    parameters = [
        JOB,
        *(
            Parameter(name=name, value=given[name].default, description=given[name].description)
            for name in ("replicas", "resource", "migrate", step_fields.STEP_TIMEOUT.name)
        ),
    ]
    description = (
        "Moves a running ElasticJob to other parameter servers: checkpoint, migrate, restart from there."
    )
    name = "ps-checkpoint-migrate-restart"
    with _workflow(options, name, parameters, description) as workflow:
        migration = groups.checkpoint_migrate_restart(options.waiting)
        with DAG(name="main", outputs=outputs_of("migration")):
            migration(
                name="migration", arguments={str(parameter.name): tag(parameter) for parameter in parameters}
            )
    return to_manifest(workflow)


def elastic_retrain(options: TemplateOptions) -> dict[str, Any]:
    """Train, evaluate, and promote the model if it passes the gate."""
    description = "Trains, evaluates the checkpoint, and promotes the model if a metric reaches the minimum."
    parameters = [NAME, SPEC, TIMEOUT, CLEAN_UP, IMAGE, EVALUATE, METRIC, MINIMUM, PROMOTE, POD]
    with _workflow(options, RETRAIN, parameters, description, hooks=on_exit()) as workflow:
        groups.clean_up(options.waiting)
        train, command = builders.submit(options.waiting, on_cancel=ON_CANCEL), _command()
        metrics = "tasks.evaluate.outputs.result"
        with DAG(
            name="main",
            outputs=[
                *outputs_of("train"),
                Parameter(name="metrics", value_from=models.ValueFrom(parameter=f"{{{{{metrics}}}}}")),
            ],
        ):
            trained: Any = train(
                name="train", arguments={"name": JOB_NAME, "spec": tag(SPEC), "timeout": tag(TIMEOUT)}
            )
            checkpoint = {"checkpoint-uri": output(trained, "checkpoint-uri")}
            evaluated: Any = command(name="evaluate", arguments={**checkpoint, "command": tag(EVALUATE)})
            value = f"jsonpath({metrics}, '$.' + workflow.parameters.metric)"
            promoted = command(
                name="promote",
                arguments={**checkpoint, "command": tag(PROMOTE), "metrics": f"{{{{{metrics}}}}}"},
                when=f"{{{{=asFloat({value}) >= asFloat(workflow.parameters.minimum)}}}}",
            )
            trained >> evaluated >> promoted
    return to_manifest(workflow)


RETRAIN = "elastic-retrain"


def _command() -> Container:
    """A user's shell command that works on a checkpoint."""
    return Container(
        name="command",
        inputs=[
            Parameter(name="command"),
            Parameter(name="checkpoint-uri"),
            Parameter(name="metrics", default=""),
        ],
        image=tag(IMAGE),
        command=["sh", "-c"],
        args=["{{inputs.parameters.command}}"],
        env=[
            Env(name="EDL_CHECKPOINT_URI", value="{{inputs.parameters.checkpoint-uri}}"),
            Env(name="EDL_METRICS", value="{{inputs.parameters.metrics}}"),
        ],
        pod_spec_patch=tag(POD),
    )


def clean_up(options: TemplateOptions) -> dict[str, Any]:
    """The exit handler alone, for users' workflows to refer to."""
    parameters = [
        Parameter(
            name=step_input.name, description=step_input.description, value=step_input.default or MISSING
        )
        for step_input in (step_fields.NAME, groups.POLICY, groups.STATUS)
    ]
    description = (
        "An exit handler: ends an ElasticJob that goes on although its workflow failed or was stopped."
    )
    with _workflow(options, "edl-clean-up", parameters, description) as workflow:
        groups.clean_up(options.waiting, "main")
    return to_manifest(workflow)


def stages(options: TemplateOptions) -> dict[str, Any]:
    """All stages, and the clean-up group, for users' workflows to refer to by ``templateRef``."""
    kind = ClusterWorkflowTemplate if options.cluster_scope else WorkflowTemplate
    description = "The stages of elastic jobs, one template each; refer to them by templateRef."
    with kind(name="edl-stages", annotations={"workflows.argoproj.io/description": description}) as workflow:
        builders.library(options.waiting)
        groups.clean_up(options.waiting)
    return to_manifest(workflow)
