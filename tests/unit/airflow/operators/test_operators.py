"""Operators and sensors as DAG authors and Airflow's parser see them."""

import inspect
import json
import pkgutil
import re
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import yaml
from airflow.providers_manager import ProvidersManager
from airflow.sdk import DAG, BaseOperator

import edl_workflows
from edl_workflows import operators, sensors
from edl_workflows.airflow.decorators import FrameworkName
from edl_workflows.airflow.hooks.airflow_versions import AirflowException, AirflowFailException
from edl_workflows.airflow.hooks.errors import branch_name, raised_for_airflow, to_airflow
from edl_workflows.core import exceptions
from edl_workflows.core.jobs.elastic_job.adapters import Framework
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.get_provider_info import get_provider_info
from edl_workflows.operators import stages
from edl_workflows.operators.base import StageTask
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.job import read_manifest
from edl_workflows.pipelines.stages.migrate_ps import MigratePsRequest
from edl_workflows.pipelines.stages.wait import WaitRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.sensors.elastic_job import ElasticJobSensor

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

ROOT = Path(__file__).parents[4]
MODULES = tuple(
    import_module(f"{package.__name__}.{module.name}")
    for package in (operators, sensors)
    for module in pkgutil.iter_modules(package.__path__)
)
"""Each module of the two folders."""
CLASSES: list[type[BaseOperator]] = [
    found
    for module in MODULES
    for name, found in vars(module).items()
    if inspect.isclass(found)
    and issubclass(found, BaseOperator)
    and found.__module__ == module.__name__
    and not name.startswith("_")
    and found.execute is not BaseOperator.execute
    and (not issubclass(found, StageTask) or hasattr(found, "stage_name"))
]
"""What a DAG may use."""
HEAVY = (
    "kubernetes",
    "kubernetes_asyncio",
    "hera",
    "numpy",
    "airflow.providers.cncf.kubernetes.hooks.kubernetes",
    "edl_workflows.pipelines.stages",
    "openlineage",
)


def test_parsing_a_dag_file_imports_no_kubernetes_client() -> None:
    """Importing our modules, as a DAG file does, imports no Kubernetes client. Airflow parses each DAG file
    again and again, and the client alone takes more than a second."""
    ours = ", ".join(
        [
            "edl_workflows.airflow.task_groups",
            "edl_workflows.airflow.decorators",
            *(module.__name__ for module in MODULES),
        ]
    )
    code = f"import sys, {ours}\nprint([name for name in {HEAVY} if name in sys.modules])"

    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )

    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize(
    "imports",
    [
        "import edl_workflows.operators, edl_workflows.sensors, edl_workflows.airflow",
        "from edl_workflows.operators import SubmitElasticJobOperator",
        "from edl_workflows.sensors import JobSensor",
        "from edl_workflows.airflow import elastic_job, elastic_task",
    ],
)
def test_the_public_form_of_an_import_costs_no_more(imports: str) -> None:
    """A DAG file that imports a name from its public package imports no heavy module."""
    code = f"import sys\n{imports}\nprint([name for name in {HEAVY} if name in sys.modules])"

    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )

    assert run.stdout.splitlines()[-1] == "[]"


def test_each_kind_of_job_has_an_operator() -> None:
    """Each kind of job has an operator that is named after it and submits it."""
    submits = {f"Submit{kind.name}Operator": kind.name for kind in KINDS if kind.view is not None}
    made = {found.__name__: getattr(found, "manifest_kind", "") for found in CLASSES}

    assert {name: made.get(name) for name in submits} == submits, (
        "each kind needs an operator in operators/<kind>.py, as operators/pytorch_job.py"
    )


def test_the_decorator_offers_each_framework() -> None:
    """The type of the decorator's argument ``framework`` has the name of each framework."""
    assert get_args(FrameworkName) == tuple(Framework), "airflow/decorators.py lacks a framework"


def test_each_operator_is_public() -> None:
    """A DAG may import each operator and sensor from its package, in two parts."""
    public = {getattr(package, name) for package in (operators, sensors) for name in package.__all__}

    assert public == set(CLASSES)


def test_the_reference_page_has_the_operators_that_a_dag_may_use() -> None:
    """`docs/reference/airflow.md` lists each operator and sensor, and what a DAG may import of
    `edl_workflows.airflow`, with the import that works."""
    page = (ROOT / "docs" / "reference" / "airflow.md").read_text()
    listed = set(re.findall(r"^`from (\S+) import (\w+)`$", page, re.MULTILINE))

    tasks = ("checkpoint_migrate_restart", "elastic_job", "elastic_task")
    assert listed == {
        *((package.__name__, name) for package in (operators, sensors) for name in package.__all__),
        *(("edl_workflows.airflow", name) for name in tasks),
    }, "run make docs"
    assert all(hasattr(import_module(module), name) for module, name in listed)


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_constructors_take_keywords_only_and_only_assign(found: type[BaseOperator]) -> None:
    """Airflow renders templates in attributes after the constructor, so each attribute must hold the argument
    unchanged."""
    parameters = inspect.signature(found.__init__).parameters
    own: dict[str, Any] = {name: f"{{{{ {name} }}}}" for name in found.template_fields}
    needed = {n: "x" for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    with DAG("parse", schedule=None):
        made: Any = found(task_id="task", **(needed | own))

    assert all(p.kind in (p.KEYWORD_ONLY, p.VAR_KEYWORD) for n, p in parameters.items() if n != "self")
    assert isinstance(found.template_fields, tuple)
    assert {name: getattr(made, name) for name in own} == own


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_arguments_may_be_set_for_a_dag_or_mapped(found: type[BaseOperator]) -> None:
    """Arguments may be in the DAG's ``default_args``, and each template field may be mapped."""
    parameters = inspect.signature(found.__init__).parameters
    needed = {n: "x" for n, p in parameters.items() if p.kind is p.KEYWORD_ONLY and p.default is p.empty}
    given = needed | dict.fromkeys(found.template_fields, "x")
    with DAG("parse", schedule=None, default_args=given):
        made: Any = found(task_id="task")
        if found.template_fields:
            values = {name: ["a", "b"] for name in found.template_fields}
            mapped: Any = found.partial(task_id="mapped").expand(**values)
            assert set(mapped.expand_input.value) == set(found.template_fields)

    assert {name: getattr(made, name) for name in given} == given


def test_types_of_arguments_are_known_to_mypy() -> None:
    """Type checkers find missing arguments and wrong types. `make type` is the test: it reports a comment
    ``type: ignore`` that hides no error."""
    with DAG("parse", schedule=None):
        with pytest.raises(TypeError, match="missing keyword argument 'name'"):
            stages.SuspendJobOperator(task_id="suspend")  # type: ignore[call-arg]
        stages.ResumeJobOperator(task_id="resume", name="j", if_finished="never")  # type: ignore[arg-type]
        stages.CancelJobOperator(task_id="cancel", name="j", action="keep")  # type: ignore[arg-type]
        stages.ScaleJobOperator(task_id="scale", job="j", replicas=3)  # type: ignore[arg-type]
        stages.MigrateParameterServersOperator(task_id="migrate", job="j", migrate=[0])  # type: ignore[arg-type]


def test_deferrable_follows_airflows_setting() -> None:
    """The default of ``deferrable`` is Airflow's setting ``[operators] default_deferrable``, which is off
    unless an administrator sets it."""
    with DAG("parse", schedule=None):
        assert SubmitElasticJobOperator(task_id="task", manifest={}).deferrable is False


def test_the_provider_is_known_to_airflow_and_what_it_names_exists() -> None:
    """Airflow finds the provider, and each module that it names exists; otherwise every Airflow command would
    fail."""
    info = get_provider_info()
    named = [
        m for part in ("operators", "sensors", "hooks", "triggers") for m in info[part][0]["python-modules"]
    ]

    for module in named:
        import_module(module)
    assert {found.__module__ for found in CLASSES} <= set(named)
    link = info["extra-links"][0].rpartition(".")
    assert hasattr(import_module(link[0]), link[2])
    assert info["package-name"] in ProvidersManager().providers  # type: ignore[no-untyped-call]


def test_each_option_is_in_the_schema_of_airflows_configuration() -> None:
    """Airflow shows the options of a provider (``airflow config list``) from its schema. It has all options
    that the package reads, and no others."""
    package = Path(edl_workflows.__file__).parent
    calls = re.compile(r"""conf\.get\w*\(\s*"edl_workflows",\s*"(\w+)\"""")
    read = {name for file in package.rglob("*.py") for name in calls.findall(file.read_text())}
    config = get_provider_info()["config"]

    assert set(config) == {"edl_workflows"}
    assert set(config["edl_workflows"]["options"]) == read == {"settle_seconds"}
    configs = ProvidersManager().provider_configs  # type: ignore[no-untyped-call]
    assert "edl-workflows" in dict(configs)


@pytest.mark.parametrize("given", ["dict", "text"])
def test_a_manifest_is_a_map_or_its_yaml(given: str) -> None:
    """A manifest is a map or its YAML text."""
    manifest = {"kind": "ElasticJob", "spec": {"suspend": True}}

    assert read_manifest(manifest if given == "dict" else yaml.safe_dump(manifest)) == manifest


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "not valid YAML"),
        ("", "has 0 documents"),
        ("a: 1\n---\nb: 2", "has 2 documents"),
        ("job.yml.j2", "of type str; is it a path"),
    ],
)
def test_a_wrong_manifest_says_what_it_is(text: str, says: str) -> None:
    """The error says what is wrong with the manifest, and that a path must end with one of Airflow's template
    suffixes."""
    with pytest.raises(exceptions.InvalidError, match=says):
        read_manifest(text)


@pytest.mark.parametrize(
    "given",
    [
        {"worker": {"replicas": 3}},
        '{"worker": {"replicas": 3}}',
        "{'worker': {'replicas': 3}}",
        {"worker": 3},
    ],
    ids=["XCom", "JSON", "a template's text", "short"],
)
def test_replicas_are_a_map_or_its_text(given: Any) -> None:
    """Replicas may be a map or its text, since a template gives text unless the DAG renders native
    objects."""
    with DAG("parse", schedule=None):
        operator = stages.ScaleJobOperator(task_id="task", job="j", replicas=given)

    assert operator.request_values()["replicas"] == {"worker": {"replicas": 3}}


MIGRATION = {0: {"cpu": 2, "memory": "4Gi", "gpu": None}}
TEXTS: dict[str, Callable[[Any], Any]] = {
    "a map": lambda value: value,
    "JSON": json.dumps,
    "a template's text of Python": str,
    "YAML": yaml.safe_dump,
}
"""How a value that a template made may come."""


@pytest.mark.parametrize("form", TEXTS)
def test_a_migration_is_a_map_or_its_text(form: str) -> None:
    """Both maps of a migration may be the text that a template made of them, including None."""
    with DAG("parse", schedule=None):
        operator = stages.MigrateParameterServersOperator(
            task_id="task",
            job="j",
            replicas="3",
            migrate=TEXTS[form](MIGRATION),
            resource=TEXTS[form](MIGRATION[0]),
        )

    request = MigratePsRequest.of(operator.request_values() | {"step_timeout_seconds": 600})

    assert request == MigratePsRequest.of(
        {"job": "j", "replicas": 3, "migrate": MIGRATION, "resource": MIGRATION[0]}
    )


@pytest.mark.parametrize("text", ["", "None", " null\n"])
def test_a_template_that_yields_nothing_leaves_the_default(text: str) -> None:
    """An argument whose template renders to nothing has its default value."""
    with DAG("parse", schedule=None):
        migrate = stages.MigrateParameterServersOperator(
            task_id="migrate", job="j", replicas=text, migrate=text, resource=text
        )
        sensor = ElasticJobSensor(task_id="wait", name="j", phases=text, step=text)

    assert {migrate.request_values()[name] for name in ("replicas", "migrate", "resource")} == {None}
    assert {sensor.request_values()[name] for name in ("phases", "step")} == {None}


@pytest.mark.parametrize("given", ["{0: {'cpu': 2}", "0", "[1, 2]", "[" * 5000])
def test_a_migration_that_is_no_map(given: str) -> None:
    """The error for a migration that is not a map names the argument."""
    with DAG("parse", schedule=None):
        operator = stages.MigrateParameterServersOperator(task_id="task", job="j", migrate=given)

    with pytest.raises(exceptions.InvalidError, match="migrate"):
        operator.request_values()


@pytest.mark.parametrize(
    "given",
    [("Running", "Succeeded"), "['Running', 'Succeeded']", '["Running", "Succeeded"]', "Running, Succeeded"],
    ids=["tuple", "a template's text", "JSON", "words"],
)
def test_phases_are_a_list_or_its_text(given: Any) -> None:
    """Phases may be a list or the text that a template made of it."""
    with DAG("parse", schedule=None):
        sensor = ElasticJobSensor(task_id="task", name="j", phases=given)

    request = WaitRequest.of({key: value for key, value in sensor.request_values().items() if value})
    assert request.phases == ("Running", "Succeeded")


def test_a_manifest_may_be_the_text_of_a_map_with_none() -> None:
    """A manifest may be the text that a template made of another task's result: None means null."""
    assert read_manifest("{'kind': 'TFJob', 'spec': {'suspend': None}}")["spec"] == {"suspend": None}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param('{"a": {"b": NaN}}', "manifest: a.b: 'nan' is read as a float", id="no number"),
        pytest.param('{"a": 1e999}', "manifest: a: 'inf' is read as a float", id="an endless number"),
        pytest.param('{"a": ' * 101 + "1" + "}" * 101, "is nested deeper than 100 levels", id="deep JSON"),
        pytest.param("{'a': " * 101 + "1" + "}" * 101, "is nested deeper than 100 levels", id="deep Python"),
        pytest.param('{"a": [' + "0, " * 200_000 + "0]}", "more than 200000 values", id="many values"),
    ],
)
def test_a_text_is_bounded_in_each_of_its_forms(text: str, says: str) -> None:
    """JSON and Python text is limited like YAML, since an API server would not accept larger values
    either."""
    with pytest.raises(exceptions.InvalidError, match=says):
        read_manifest(text)


def test_a_text_may_be_as_deep_as_any_manifest() -> None:
    """A manifest nested as deep as the limit is accepted."""
    assert read_manifest('{"a": ' * 100 + "1" + "}" * 100)


@pytest.mark.parametrize("given", ["", "3", "worker"])
def test_a_plan_that_is_no_map(given: str) -> None:
    """The error for a plan that is not a map names the argument."""
    with DAG("parse", schedule=None):
        operator = stages.ApplyPlanOperator(task_id="task", job="j", plan=given)

    with pytest.raises(exceptions.InvalidError, match="plan"):
        operator.request_values()


@pytest.mark.parametrize(
    ("error", "retried"),
    [
        (exceptions.ManifestError("ElasticJob a", [exceptions.Problem("spec", "is missing")]), False),
        (exceptions.ConflictError("x"), False),
        (exceptions.NotFoundError("x"), True),
        (exceptions.ForbiddenError("x"), True),
        (exceptions.UnavailableError("x"), True),
        (exceptions.JobFailedError("x"), True),
        (exceptions.PlanFailedError("x"), True),
        (exceptions.JobDisappearedError("x"), True),
        (exceptions.StageTimeoutError("x"), True),
        (exceptions.QueueTimeoutError("x"), True),
        (exceptions.CheckpointError("x"), True),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_errors_are_of_both_trees(error: exceptions.EdlError, retried: bool) -> None:
    """Each error is of our class, so that a retry policy can name it, and of Airflow's class, so that Airflow
    knows whether to retry. A trigger's event has both."""
    with pytest.raises(AirflowException) as raised, raised_for_airflow():
        raise error
    told: Exception = to_airflow(branch_name(error), str(error))

    assert type(told) is type(raised.value)
    assert str(told) == str(error)
    assert isinstance(told, AirflowFailException) is not retried
    assert isinstance(told, exceptions.EdlError)


@pytest.mark.parametrize(
    ("extra", "owner"),
    [({}, "airflow/dag/run/task/-1"), ({"edl_installation": "team-a"}, "airflow@team-a/dag/run/task/-1")],
)
def test_a_task_is_known_by_its_run_and_its_installation(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, str], owner: str
) -> None:
    """Two Airflows with equal DAGs in one namespace have separate owners and object names if their
    connections name the installations."""
    text = json.dumps({"conn_type": "kubernetes", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", text)
    ti = SimpleNamespace(dag_id="dag", run_id="run", task_id="task", map_index=None, try_number=2)
    context: Any = {"ti": ti, "task_state_store": SimpleNamespace(get=lambda _key: None)}
    operator = SubmitElasticJobOperator(task_id="task", manifest={})

    identity = operator.identity(context)

    assert (identity.owner, identity.attempt) == (owner, "2")
    assert identity.name("job") == StageIdentity(owner=owner).name("job")
