"""Ready-made groups of several stages, to be called in a `DAG` or in `Steps` of a Hera workflow."""

from collections.abc import Iterable
from typing import Any

from hera.shared.serialization import MISSING
from hera.workflows import DAG, Parameter, Steps, Suspend, models

from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.pipelines.argo.templates import builders, step_fields, steps
from edl_workflows.pipelines.argo.templates.outputs import PARAMETERS
from edl_workflows.pipelines.argo.templates.step import StepInput, WaitMode

__all__ = [
    "approval",
    "checkpoint_migrate_restart",
    "clean_up",
    "output",
    "outputs_of",
    "plan_approve_apply",
]

_PLAN_INPUTS = steps.migrate_ps().inputs


def parameter(given: StepInput) -> Parameter:
    """An input of a step, declared as an input of the template that calls the step."""
    default = MISSING if given.default is None else given.default
    return Parameter(name=given.name, description=given.description, default=default)


def output(task: Any, name: str) -> str:
    """An output parameter of a task, in the same DAG."""
    return f"{{{{tasks.{task.name}.outputs.parameters.{name}}}}}"


def outputs_of(task: str, names: Iterable[str] = PARAMETERS) -> list[Parameter]:
    """Outputs of a DAG that pass on the outputs of one of its tasks."""
    return [
        Parameter(
            name=name,
            value_from=models.ValueFrom(parameter=f"{{{{tasks.{task}.outputs.parameters.{name}}}}}"),
        )
        for name in names
    ]


def checkpoint_migrate_restart(waiting: WaitMode, name: str = "checkpoint-migrate-restart") -> DAG:
    """A migration of parameter servers as three visible steps.

    ``checkpoint`` asks the job for a checkpoint while training continues. ``migrate`` begins the migration
    and ends when the new servers are ready. ``restart`` ends when training continues on the new servers from
    the switch checkpoint. If the migration fails, one of the last two steps fails, and the job continues on
    its old servers.

    Args:
        waiting: how the steps wait.
        name: of the DAG's template; its inputs are those of ``migrate-ps``.
    """
    checkpoint = builders.checkpoint(waiting)
    migrate = builders.migrate_ps(waiting, until="Restarting")
    restart = builders.wait_for_plan(waiting)
    common = {
        step_fields.JOB.name: step_fields.JOB.tag,
        step_fields.STEP_TIMEOUT.name: step_fields.STEP_TIMEOUT.tag,
    }
    with DAG(
        name=name,
        inputs=[parameter(step_input) for step_input in _PLAN_INPUTS],
        outputs=outputs_of("restart"),
    ) as dag:
        first: Any = checkpoint(name="checkpoint", arguments=common)
        second: Any = migrate(
            name="migrate", arguments={step_input.name: step_input.tag for step_input in _PLAN_INPUTS}
        )
        third: Any = restart(name="restart", arguments={"name": output(second, "name")})
        first >> second >> third
    return dag


APPROVED = "approve"
YES = "yes"


def approval(name: str = "approval") -> Suspend:
    """A step that waits until a person says ``yes`` or ``no`` to a plan, in Argo's UI or by ``argo node set``
    and ``argo resume``.

    Args:
        name: name of the template. Its input ``plan`` is shown to the person; its output ``approve`` is the
            answer.
    """
    # If the node is resumed without an answer, the answer is no.
    answer = models.ValueFrom(supplied=models.SuppliedValueFrom(), default="no")
    return Suspend(
        name=name,
        inputs=[
            Parameter(name="plan", description="What would change, and why: JSON."),
            Parameter(
                name=APPROVED, default="no", enum=[YES, "no"], description="Whether it is to be carried out."
            ),
        ],
        outputs=[Parameter(name=APPROVED, value_from=answer)],
    )


def plan_approve_apply(waiting: WaitMode, name: str = "plan-approve-apply") -> DAG:
    """Ask a person to approve what a job's optimizer would change, and carry it out if approved.

    If the plan changes nothing, nobody is asked.

    Args:
        waiting: how the steps wait.
        name: of the DAG's template; its inputs are ``job`` and ``step-timeout-seconds``, its output is
            ``plan``.
    """
    plan, ask, apply = builders.plan_scale(waiting), approval(), builders.apply_plan(waiting)
    inputs = [parameter(step_input) for step_input in (step_fields.JOB, step_fields.STEP_TIMEOUT)]
    with DAG(name=name, inputs=inputs, outputs=outputs_of("plan", ("plan",))) as dag:
        planned: Any = plan(name="plan", arguments={step_fields.JOB.name: step_fields.JOB.tag})
        changes = f"jsonpath(tasks.{planned.name}.outputs.parameters.plan, '$.empty')"
        given = {"plan": output(planned, "plan")}
        asked: Any = ask(name="approve", arguments=given, when=f"{{{{={changes} == false}}}}", depends="plan")
        apply(
            name="apply",
            arguments={
                **given,
                step_fields.JOB.name: step_fields.JOB.tag,
                step_fields.STEP_TIMEOUT.name: step_fields.STEP_TIMEOUT.tag,
            },
            # Succeeded, because a skipped approval has no answer for `when` to read.
            depends="approve.Succeeded",
            when=f"{output(asked, APPROVED)} == {YES}",
        )
    return dag


POLICY = next(step_input for step_input in steps.cancel().inputs if step_input.name == "policy")
STATUS = StepInput("status", "The workflow's status: after a success nothing is done.")


def clean_up(waiting: WaitMode, name: str = "clean-up", *, kind: str = ELASTIC_JOB) -> Steps:
    """An exit handler: ends the workflow's job if the job has not ended when the workflow failed or was
    stopped.

    A job that has ended is kept for inspection, and a job that the workflow did not create is never touched.
    Argo runs no exit handler when a workflow is terminated or deleted.

    Args:
        waiting: how the steps wait.
        name: name of the template. Its inputs are ``name`` (of the job), ``policy`` and ``status``.
        kind: kind of the job.
    """
    cancel = builders.cancel(waiting, kind=kind)
    with Steps(
        name=name, inputs=[parameter(step_input) for step_input in (step_fields.NAME, POLICY, STATUS)]
    ) as handler:
        cancel(
            name="cancel",
            arguments={step_fields.NAME.name: step_fields.NAME.tag, POLICY.name: POLICY.tag},
            when=f"{STATUS.tag} != Succeeded && {POLICY.tag} != keep",
        )
    return handler
