"""One Hera template a stage, to call in a `DAG` or in `Steps` as any other template of Hera's.

::

    with WorkflowTemplate(name="train", entrypoint="main") as workflow:
        submit = builders.submit("plugin")
        with DAG(name="main"):
            submit(arguments={"name": "digits", "spec": SPEC})
    manifest = to_manifest(workflow)

Hera's models know no ``plugin`` body and not all fields of Argo 4.1 and drop what they don't know, without a word: write
manifests with `serializer.to_manifest`, not with Hera's own ``to_yaml``.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

from hera.workflows import models
from hera.workflows._meta_mixins import CallableTemplateMixin
from hera.workflows._mixins import IOMixin, TemplateMixin

from edl_workflows.argo import steps
from edl_workflows.argo.plugin_template import plugin_templates
from edl_workflows.argo.resource_template import resource_templates
from edl_workflows.argo.step import WaitMode, WorkflowStep
from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.stages.ownership import CancelAction

_RENDER = {"plugin": plugin_templates, "resource": resource_templates}


@dataclass(kw_only=True)
class StageTemplate(CallableTemplateMixin, TemplateMixin, IOMixin):
    """A stage among Hera's templates. Hera sees its name, its inputs and its outputs.

    Attributes:
        rendered: the templates as Argo shall have them: the stage's, and those that it calls.
    """

    rendered: list[dict[str, Any]]

    def _build_template(self) -> models.Template:
        return models.Template(
            name=self.name,
            inputs=models.Inputs.model_validate(self.rendered[0]["inputs"]),
            outputs=models.Outputs.model_validate(self.rendered[0]["outputs"]),
        )


def template(step: WorkflowStep, waiting: WaitMode) -> StageTemplate:
    """A step as a Hera template.

    Raises:
        InvalidError: the step can't wait in this way.
    """
    if waiting not in _RENDER:
        raise InvalidError(f"waiting is {waiting!r}; it must be one of {', '.join(_RENDER)}")
    return StageTemplate(name=step.name, rendered=_RENDER[waiting](step))


def submit(
    waiting: WaitMode,
    *,
    kind: str = ELASTIC_JOB,
    wait: bool = True,
    on_cancel: CancelAction = "delete",
    retries: int = 0,
    owned: bool = True,
) -> StageTemplate:
    """See `steps.submit`."""
    step = steps.submit(kind=kind, wait=wait, on_cancel=on_cancel, retries=retries, owned=owned)
    return template(step, waiting)


submit_tf_job = partial(submit, kind="TFJob")
submit_training_job = partial(submit, kind="TrainingJob")
submit_di_job = partial(submit, kind="DIJob")


def wait_for_job(
    waiting: WaitMode,
    *,
    name: str = "",
    kind: str = ELASTIC_JOB,
    on_cancel: CancelAction = "keep",
    condition: str = "",
) -> StageTemplate:
    """See `steps.wait_for_job`."""
    return template(steps.wait_for_job(name, kind=kind, on_cancel=on_cancel, condition=condition), waiting)


def wait_for_plan(waiting: WaitMode) -> StageTemplate:
    """See `steps.wait_for_plan`."""
    return template(steps.wait_for_plan(), waiting)


def collect(waiting: WaitMode, *, kind: str = ELASTIC_JOB) -> StageTemplate:
    """See `steps.collect`."""
    return template(steps.collect(kind=kind), waiting)


def cancel(waiting: WaitMode, *, kind: str = ELASTIC_JOB) -> StageTemplate:
    """See `steps.cancel`."""
    return template(steps.cancel(kind=kind), waiting)


def scale(waiting: WaitMode, *, retries: int = 0) -> StageTemplate:
    """See `steps.scale`."""
    return template(steps.scale(retries=retries), waiting)


def plan_scale(waiting: WaitMode, *, wait_for_change: bool = False) -> StageTemplate:
    """See `steps.plan_scale`."""
    return template(steps.plan_scale(wait_for_change=wait_for_change), waiting)


def apply_plan(waiting: WaitMode, *, retries: int = 0) -> StageTemplate:
    """See `steps.apply_plan`."""
    return template(steps.apply_plan(retries=retries), waiting)


def checkpoint(waiting: WaitMode, *, retries: int = 0) -> StageTemplate:
    """See `steps.checkpoint`."""
    return template(steps.checkpoint(retries=retries), waiting)


def migrate_ps(waiting: WaitMode, *, until: str = "Succeeded", retries: int = 0) -> StageTemplate:
    """See `steps.migrate_ps`."""
    return template(steps.migrate_ps(until=until, retries=retries), waiting)


def suspend(waiting: WaitMode, *, kind: str = ELASTIC_JOB) -> StageTemplate:
    """See `steps.suspend`."""
    return template(steps.suspend(kind=kind), waiting)


def resume(waiting: WaitMode, *, kind: str = ELASTIC_JOB) -> StageTemplate:
    """See `steps.resume`."""
    return template(steps.resume(kind=kind), waiting)


def autoscale(waiting: WaitMode, *, kind: str = "TrainingJob") -> StageTemplate:
    """See `steps.autoscale`."""
    return template(steps.autoscale(kind=kind), waiting)


def delete(waiting: WaitMode, *, kind: str = ELASTIC_JOB) -> StageTemplate:
    """See `steps.delete`."""
    return template(steps.delete(kind=kind), waiting)


BUILDERS = (
    submit, wait_for_job, wait_for_plan, collect, cancel, scale, checkpoint, migrate_ps, plan_scale, apply_plan, suspend,
    resume, delete,
)  # fmt: skip
"""All of them: each takes `waiting` and has defaults for the rest. Those with a `kind` serve every kind of job."""
