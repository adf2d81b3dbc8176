"""One Hera template per stage, to be called in a `DAG` or in `Steps` like any other Hera template.

::

    with WorkflowTemplate(name="train", entrypoint="main") as workflow:
        submit = builders.submit("plugin")
        with DAG(name="main"):
            submit(arguments={"name": "digits", "spec": SPEC})
    manifest = to_manifest(workflow)

Hera's models have no ``plugin`` body and lack some fields of Argo 4.1. They silently drop what they lack, so
write manifests with `serializer.to_manifest`, not with Hera's own ``to_yaml``.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial, update_wrapper
from typing import Any, Concatenate, ParamSpec

from hera.workflows import models
from hera.workflows._meta_mixins import CallableTemplateMixin
from hera.workflows._mixins import IOMixin, TemplateMixin

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.templates import steps
from edl_workflows.pipelines.argo.templates.plugin_template import plugin_templates
from edl_workflows.pipelines.argo.templates.resource_template import resource_templates
from edl_workflows.pipelines.argo.templates.step import WaitMode, WorkflowStep
from edl_workflows.pipelines.stages.autoscale import AUTOSCALE
from edl_workflows.pipelines.stages.catalog import STAGES

__all__ = [
    "StageTemplate",
    "apply_plan",
    "autoscale",
    "cancel",
    "checkpoint",
    "collect",
    "delete",
    "migrate_ps",
    "plan_scale",
    "resume",
    "scale",
    "submit",
    "submit_di_job",
    "submit_tf_job",
    "submit_training_job",
    "suspend",
    "wait_for_job",
    "wait_for_plan",
]

P = ParamSpec("P")
_RENDER = {"plugin": plugin_templates, "resource": resource_templates}


@dataclass(kw_only=True)
class StageTemplate(CallableTemplateMixin, TemplateMixin, IOMixin):
    """A stage as a Hera template. Hera sees only its name, inputs and outputs.

    Attributes:
        rendered: the templates for the manifest: the stage's own, and those that it calls.
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


def _builder(step: Callable[P, WorkflowStep]) -> Callable[Concatenate[WaitMode, P], StageTemplate]:
    """A function that makes the Hera template of a step. Its arguments are the way to wait and those of
    `step`."""

    def build(waiting: WaitMode, /, *args: P.args, **kwargs: P.kwargs) -> StageTemplate:
        return template(step(*args, **kwargs), waiting)

    update_wrapper(build, step)
    return build


submit = _builder(steps.submit)
submit_tf_job = partial(submit, kind="TFJob")
submit_training_job = partial(submit, kind="TrainingJob")
submit_di_job = partial(submit, kind="DIJob")
wait_for_job = _builder(steps.wait_for_job)
wait_for_plan = _builder(steps.wait_for_plan)
collect = _builder(steps.collect)
cancel = _builder(steps.cancel)
scale = _builder(steps.scale)
plan_scale = _builder(steps.plan_scale)
apply_plan = _builder(steps.apply_plan)
checkpoint = _builder(steps.checkpoint)
migrate_ps = _builder(steps.migrate_ps)
suspend = _builder(steps.suspend)
resume = _builder(steps.resume)
autoscale = _builder(steps.autoscale)
delete = _builder(steps.delete)


START = "start"
"""The template of ``edl-stages`` that submits a job and does not wait for it."""


def library(waiting: WaitMode) -> list[StageTemplate]:
    """One template for each stage of ElasticJobs, as in the WorkflowTemplate ``edl-stages``, and `START`.

    Autoscaling is not among them: its template is about TrainingJobs. With waiting ``resource``, stages that
    only the agent can run are left out.
    """
    start = replace(steps.submit(wait=False), name=START)
    workflow_steps = [start, *(steps.step_of(stage.name) for stage in STAGES if stage is not AUTOSCALE)]
    return [
        template(step, waiting) for step in workflow_steps if waiting == "plugin" or step.action is not None
    ]
