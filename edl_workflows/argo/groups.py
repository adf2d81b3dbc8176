"""What an author would else put together from several stages: call them in a `DAG` or in `Steps`, inside a
Hera workflow."""

from collections.abc import Iterable
from typing import Any

from hera.shared.serialization import MISSING
from hera.workflows import DAG, Parameter, Steps, Suspend, models

from edl_workflows.argo import builders, step_fields, steps
from edl_workflows.argo.outputs import PARAMETERS
from edl_workflows.argo.step import StepInput, WaitMode
from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB

_PLAN_INPUTS = steps.migrate_ps().inputs


def parameter(given: StepInput) -> Parameter:
    """An input of a step as an input of a template that calls it."""
    default = MISSING if given.default is None else given.default
    return Parameter(name=given.name, description=given.description, default=default)


def output(task: Any, name: str) -> str:
    """An output parameter of a task, in the same DAG."""
    return f"{{{{tasks.{task.name}.outputs.parameters.{name}}}}}"


def outputs_of(task: str, names: Iterable[str] = PARAMETERS) -> list[Parameter]:
    """The outputs of a DAG that are those of one of its tasks."""
    return [
        Parameter(
            name=name,
            value_from=models.ValueFrom(parameter=f"{{{{tasks.{task}.outputs.parameters.{name}}}}}"),
        )
        for name in names
    ]


def checkpoint_migrate_restart(waiting: WaitMode, name: str = "checkpoint-migrate-restart") -> DAG:
    """A migration of parameter servers whose three steps show.

    ``checkpoint`` has a checkpoint saved while training goes on; ``migrate`` begins the migration and is done
    when the new servers are ready; ``restart`` is done when training goes on from the switch checkpoint on
    the new servers. A migration that fails fails one of the last two, and the job goes on with its old
    servers.

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
        name=name, inputs=[parameter(one) for one in _PLAN_INPUTS], outputs=outputs_of("restart")
    ) as dag:
        first: Any = checkpoint(name="checkpoint", arguments=common)
        second: Any = migrate(name="migrate", arguments={one.name: one.tag for one in _PLAN_INPUTS})
        third: Any = restart(name="restart", arguments={"name": output(second, "name")})
        first >> second >> third
    return dag


APPROVED = "approve"
YES = "yes"


def approval(name: str = "approval") -> Suspend:
    """A step that waits until a person says ``yes`` or ``no`` to a plan, in Argo's UI or by ``argo node set``
    and ``argo resume``.

    Args:
        name: of the template; its input is ``plan``, to be read, its output ``approve``.
    """
    # Resumed without an answer, it is no.
    said = models.ValueFrom(supplied=models.SuppliedValueFrom(), default="no")
    return Suspend(
        name=name,
        inputs=[
            Parameter(name="plan", description="What would change, and why: JSON."),
            Parameter(
                name=APPROVED, default="no", enum=[YES, "no"], description="Whether it is to be carried out."
            ),
        ],
        outputs=[Parameter(name=APPROVED, value_from=said)],
    )


def plan_approve_apply(waiting: WaitMode, name: str = "plan-approve-apply") -> DAG:
    """What a job's optimizer would change is put to a person, and carried out if he approves it.

    A plan that changes nothing is put to nobody.

    Args:
        waiting: how the steps wait.
        name: of the DAG's template; its inputs are ``job`` and ``step-timeout-seconds``, its output is
            ``plan``.
    """
    plan, ask, apply = builders.plan_scale(waiting), approval(), builders.apply_plan(waiting)
    inputs = [parameter(one) for one in (step_fields.JOB, step_fields.STEP_TIMEOUT)]
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
            # Succeeded: what was skipped has no answer to look at.
            depends="approve.Succeeded",
            when=f"{output(asked, APPROVED)} == {YES}",
        )
    return dag


POLICY = next(one for one in steps.cancel().inputs if one.name == "policy")
STATUS = StepInput("status", "The workflow's status: after a success nothing is done.")


def clean_up(waiting: WaitMode, name: str = "clean-up", *, kind: str = ELASTIC_JOB) -> Steps:
    """An exit handler: ends the workflow's job that still goes on although the workflow failed or was
    stopped.

    A job that has ended stays, so that it can be looked at, and one that is another's is never touched. Argo
    runs no exit handler of a workflow that is terminated or deleted.

    Args:
        waiting: how the steps wait.
        name: of the template; its inputs are ``name`` (the job's), ``policy`` and ``status``.
        kind: the job's.
    """
    cancel = builders.cancel(waiting, kind=kind)
    with Steps(name=name, inputs=[parameter(one) for one in (step_fields.NAME, POLICY, STATUS)]) as handler:
        cancel(
            name="cancel",
            arguments={step_fields.NAME.name: step_fields.NAME.tag, POLICY.name: POLICY.tag},
            when=f"{STATUS.tag} != Succeeded && {POLICY.tag} != keep",
        )
    return handler
