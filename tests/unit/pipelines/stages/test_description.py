"""The descriptions of the stages, and what the drivers make of them. These lists break when a new stage lacks
a part."""

import inspect
from importlib import import_module
from typing import Any

import pytest
from airflow.sdk import BaseOperator
from pydantic.fields import FieldInfo

from edl_workflows import operators
from edl_workflows.airflow.stage_operators import COMMAND, MODULE, documentation_of, render_operators
from edl_workflows.get_provider_info import get_provider_info
from edl_workflows.operators.base import StageOperator, StageTask
from edl_workflows.operators.cluster import CLUSTER_FIELDS, ClusterTask
from edl_workflows.pipelines.argo.templates import step_fields, steps
from edl_workflows.pipelines.cli.jobs import stage_commands
from edl_workflows.pipelines.cli.root import COMMANDS
from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.pipelines.stages.description import Argument, RequestField, StageSpec
from tests.cases.stages import STAGE_CASES

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

SET_BY_DRIVERS = {"namespace", "owner", "manifest", "hint", "program"}
"""Fields that no user gives as such: drivers know them, or make them of something else."""
OPERATORS: list[type[Any]] = [
    found
    for group in ("operators", "sensors")
    for entry in get_provider_info()[group]
    for module in map(import_module, entry["python-modules"])
    for name, found in vars(module).items()
    if inspect.isclass(found)
    and issubclass(found, StageTask)
    and found.__module__ == module.__name__
    and not name.startswith("_")
    and hasattr(found, "stage_name")
]
EACH_STAGE = pytest.mark.parametrize("stage", STAGES, ids=lambda stage: stage.name)


@EACH_STAGE
def test_every_field_says_what_it_means(stage: StageSpec[Any]) -> None:
    """A field is offered to users with a help text, or set by the drivers. The docstring of its request says
    it, too."""
    offered = {field.name: field.argument.help for field in stage.fields()}
    _, documented = documentation_of(stage.request)

    assert set(offered) <= set(documented), "a docstring has every field in its Attributes"
    assert set(stage.request.model_fields) <= set(offered) | SET_BY_DRIVERS
    cut = {name: text for name, text in offered.items() if not text.endswith((".", "}"))}
    assert not cut, "a help text is sentences, with a full stop"
    assert stage.summary.endswith("."), "the summary is sentences, with a full stop"


@EACH_STAGE
def test_every_stage_has_a_command_or_is_for_pipelines(stage: StageSpec[Any]) -> None:
    """A new stage needs a row in `cli.root.COMMANDS`, or cases with ``command=False``."""
    commands = {row.name for row in COMMANDS}

    assert stage.name in STAGE_CASES, f"{stage.name} needs an entry in tests/cases/stages.py"
    assert (stage.name in commands) is STAGE_CASES[stage.name].command, (
        f"{stage.name} needs a row in COMMANDS of edl_workflows/pipelines/cli/root.py, or command=False in "
        "tests/cases/stages.py"
    )


@EACH_STAGE
def test_every_stage_has_a_step(stage: StageSpec[Any]) -> None:
    """The inputs of a stage's Argo step are those of its description, and a time-out with a default."""
    step = steps.step_of(stage.name)
    names = [given.name for given in step.inputs]

    assert step.stage == stage.name
    assert names[-1] == "timeout"
    assert step.inputs[-1].default
    if stage.name != "submit":  # its manifest is made of the input spec
        assert set(names[:-1]) == {given.name for given in step_fields.inputs_of(stage).values()}


@EACH_STAGE
def test_every_stage_has_an_operator_or_a_sensor(stage: StageSpec[Any]) -> None:
    """Each stage has an operator or a sensor, except ``collect``, whose outputs a sensor returns."""
    assert stage.name == "collect" or any(found.stage_name == stage.name for found in OPERATORS), (
        f"{stage.name} needs the name of an operator in its StageSpec"
    )
    assert stage.operator in ("", *operators.__all__), f"operators/__init__.py lacks {stage.operator}"


def test_the_generated_operators_are_up_to_date() -> None:
    """`operators/stages.py` is what the descriptions give now, so a changed argument is seen in its diff."""
    assert render_operators() == MODULE.read_text(encoding="utf-8"), f"run `{COMMAND}`"


@pytest.mark.parametrize("found", OPERATORS, ids=lambda found: found.__name__)
def test_operators_take_the_fields_of_their_stage(found: type[BaseOperator]) -> None:
    """An operator's arguments and template fields are those of the description, with the same defaults."""
    (stage,) = (stage for stage in STAGES if stage.name == vars_of(found)["stage_name"])
    given = arguments_of(found)
    described = {field.argument.operator or field.name: field for field in stage.fields()}
    templated = {name for name, field in described.items() if field.argument.templated}
    made = {"manifest"} if stage.name == "submit" else set()
    # How long the job may be queued, and what the task's log shows.
    waits = {"submit": {"queue_timeout", "logs", "log_tail_lines"}, "wait": {"queue_timeout"}}
    waiting = waits.get(stage.name, set())

    assert set(given) == set(described) | made | waiting
    assert set(found.template_fields) == templated | made | set(CLUSTER_FIELDS)
    for name, field in described.items():
        default = given[name].default
        if default not in (inspect.Parameter.empty, None) and not field.argument.operator_optional:
            assert default == field.default, name


def vars_of(found: type[Any]) -> dict[str, Any]:
    """The attributes of a class and its bases; a subclass's win."""
    return {key: value for base in reversed(found.__mro__) for key, value in vars(base).items()}


def arguments_of(found: type[Any]) -> dict[str, inspect.Parameter]:
    """The arguments that a class and its own bases add to those of all operators and sensors."""
    return {
        name: parameter
        for base in reversed(found.__mro__)
        if issubclass(base, ClusterTask)
        and base not in (ClusterTask, StageTask, StageOperator)
        and "__init__" in vars(base)
        for name, parameter in inspect.signature(vars(base)["__init__"]).parameters.items()
        if name not in ("self", "kwargs", "task_id")
    }


def test_an_argument_of_a_command_is_named_after_its_field() -> None:
    """A field that is an argument of its command needs no name of its own there."""
    field = RequestField("job", FieldInfo(annotation=str), Argument("The job.", cli="argument"))

    assert stage_commands._identifier(field) == "job"
