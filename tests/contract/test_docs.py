"""The documentation is correct: snippets are tested code, commands parse, links lead to files."""

import ast
import importlib.util
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from edl_workflows.core.jobs.elastic_job.adapters import ADAPTERS, Adapter
from edl_workflows.core.jobs.elastic_job.model import DistributionStrategy
from edl_workflows.core.jobs.kinds import KINDS, kind_of
from edl_workflows.core.kubernetes import names
from edl_workflows.core.scaling.policies import POLICIES
from edl_workflows.pipelines.cli.root import app
from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.services.agent import command as agent
from edl_workflows.services.master.app import create_app
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.standalone import StandaloneBackend, add_plan_routes
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.stores.file import FileStore
from edl_workflows.training import addresses
from edl_workflows.training.collective.regrouping import RegroupingFramework
from tests.cases.kinds import KIND_CASES
from tests.cases.kubeflow import KUBEFLOW_KINDS

ROOT = Path(__file__).parents[2]
LISTS_OF_KINDS = (
    ".github/ISSUE_TEMPLATE/bug.yml", "README.md", "docs/index.md", "docs/how-to/argo-agent.md",
    "docs/how-to/argo-pipelines.md", "docs/reference/glossary.md",
)  # fmt: skip
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\((?!https?://|#|mailto:)([^)#]+)(?:#[^)]*)?\)")


def _snippets(language: str) -> Iterator[Any]:
    for page in PAGES:
        for number, match in enumerate(FENCE.finditer(page.read_text())):
            if match[1] == language:
                yield pytest.param(match[2], id=f"{page.relative_to(ROOT)}-{number}")


def _sources() -> str:
    files = [*(ROOT / "dags").rglob("*.py"), *(ROOT / "tests" / "docs").rglob("*.py")]
    notebooks = [json.loads(file.read_text()) for file in (ROOT / "docs").rglob("*.ipynb")]
    cells = ["".join(cell["source"]) for notebook in notebooks for cell in notebook["cells"]]
    return "\n".join([*(file.read_text() for file in files), *cells])


@pytest.mark.parametrize("snippet", list(_snippets("python")))
def test_python_is_tested_code(snippet: str) -> None:
    """Each block of a Python snippet is an excerpt of a file that tests run."""
    sources = re.sub(r"\s+", " ", _sources())
    blocks = [re.sub(r"\s+", " ", block).strip() for block in re.split(r"\n\s*\.\.\.\n|\n\n+", snippet)]

    missing = [block for block in blocks if block and block not in sources]
    assert not missing


def _manifests() -> Iterator[Any]:
    yield from _snippets("yaml")
    for file in sorted((ROOT / "docs").rglob("*.yaml")):
        yield pytest.param(file.read_text(), id=str(file.relative_to(ROOT)))


@pytest.mark.parametrize("text", list(_manifests()))
def test_manifests_are_valid(text: str) -> None:
    """Manifests of our kinds in the documentation are valid."""
    for document in yaml.safe_load_all(text):
        if isinstance(document, dict) and str(document.get("apiVersion", "")).startswith(
            "elastic.iml.github.io"
        ):
            kind_of(document["kind"]).model.parse(document)


def _commands() -> Iterator[Any]:
    for page in PAGES:
        for match in FENCE.finditer(page.read_text()):
            if match[1] == "console":
                for line in re.findall(r"^\$ (edl .*)$", match[2].replace("\\\n", " "), re.MULTILINE):
                    yield pytest.param(
                        line.split(" | ")[0].split(" > ")[0].split(" &")[0],
                        id=f"{page.relative_to(ROOT)}: {line}",
                    )


@pytest.mark.parametrize("line", list(_commands()))
def test_commands_parse(line: str) -> None:
    """The command line accepts every `edl` command in the documentation."""
    words = shlex.split(line)[1:]
    if words[0] == "agent":
        assert agent._parser().parse_args(words[1:]).command, line
        return
    command: Any = typer.main.get_command(app)
    context = command.make_context("edl", ["--help"] if not words else [], resilient_parsing=True)
    while hasattr(command, "commands") or hasattr(command, "list_commands"):
        command = command.get_command(context, words.pop(0))
        assert command is not None, line
        context = command.make_context(
            command.name,
            list(words) if not hasattr(command, "commands") else [],
            parent=context,
            resilient_parsing=hasattr(command, "commands"),
        )

    assert not context.args


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link in the documentation leads to a file that exists."""
    broken = [target for target in LINK.findall(page.read_text()) if not (page.parent / target).exists()]

    assert not broken


@pytest.mark.parametrize("page", LISTS_OF_KINDS)
def test_lists_of_the_kinds_are_complete(page: str) -> None:
    """Each page that lists the kinds of jobs lists all of them, by name or by the plural of the API."""
    text = (ROOT / page).read_text().lower()
    assert not [kind for kind in KIND_CASES if kind.lower() not in text], f"{page} lists every kind"


@pytest.mark.parametrize("kind", KUBEFLOW_KINDS)
def test_the_own_containers_of_kubeflows_kinds_are_listed(kind: str) -> None:
    """The page about pods with several containers names the container of each kind that decides."""
    page = (ROOT / "docs/explanation/fault-tolerance.md").read_text()
    template: Any = KIND_CASES[kind].detailed
    for key in KIND_CASES[kind].template:
        template = template[key]
    container = template["spec"]["containers"][0]["name"]
    assert f"{kind} `{container}`" in page, "docs/explanation/fault-tolerance.md names the own container"


def test_the_kinds_that_the_autoscaler_resizes_are_listed() -> None:
    """The table of elastic jobs has a row for each kind with `Kind.elastic`, and for no other."""
    page = (ROOT / "docs/how-to/autoscale-jobs.md").read_text()
    table = page.partition("| job | what is scaled | limits |\n")[2].partition("\n\n")[0]
    listed = set(re.findall(r"^\| (\w+Job)\b", table, re.MULTILINE))
    elastic = {kind.name for kind in KINDS if kind.elastic is not None}
    assert listed == elastic, "docs/how-to/autoscale-jobs.md lists the kinds with bounds"


def test_every_call_of_the_master_is_listed(tmp_path: Path) -> None:
    """The page about the master's API lists the calls of a master, with those of a standalone one, and no
    others."""
    settings = JobSettings("job", "default", {})
    master = Master(JobState(settings), FileStore(tmp_path / "state"))
    app = create_app(master, "token")
    add_plan_routes(app, master, StandaloneBackend(tmp_path / "plans.json", settings))
    routes = app.openapi()["paths"]
    served = {f"{method.upper()} {path}" for path, methods in routes.items() for method in methods}
    page = (ROOT / "docs" / "reference" / "master-api.md").read_text()

    assert set(re.findall(r"^\| `((?:GET|POST|DELETE) /[^`]*)`", page, re.MULTILINE)) == served


@pytest.mark.parametrize("adapter", ADAPTERS, ids=lambda adapter: adapter.module)
def test_each_adapter_is_documented(adapter: Adapter) -> None:
    """The page about own scripts names the adapter where it says which strategy follows from which import,
    and the API page of the library has its module."""
    page = (ROOT / "docs" / "how-to" / "run-your-own-script.md").read_text()
    served = adapter.strategy is DistributionStrategy.PARAMETER_SERVER
    job = "with parameter servers" if served else "collective: all workers train one model together"
    (row,) = re.findall(rf"^\| (.*) \| {job} \|$", page, re.MULTILINE)
    assert re.search(rf"`({adapter.module}|…{adapter.module.rpartition('.')[2]})`", row)

    modules = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["extra"]["api_pages"]["training"]["modules"]
    assert any(f"{module}.".startswith(f"{adapter.module}.") for module in modules)


def test_the_methods_of_a_regrouping_adapter_are_listed() -> None:
    """The page about training programs lists all methods that an adapter needs to keep its processes."""
    page = (ROOT / "docs/how-to/write-a-training-program.md").read_text()
    table = page.partition("| method | what it does |\n")[2].partition("\n\n")[0]
    methods = {name for name in vars(RegroupingFramework) if not name.startswith("_")}
    assert set(re.findall(r"^\| `(\w+)\(", table, re.MULTILINE)) == methods


@pytest.mark.parametrize("page", ["explanation/architecture.md", "reference/glossary.md"])
def test_the_map_and_the_glossary_name_existing_files(page: str) -> None:
    """Each path of a file or a folder on the map of the code and in the glossary exists."""
    text = (ROOT / "docs" / page).read_text().split("## The packages")[0]
    paths = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)
    assert len(paths) > 40

    missing = [
        path for path in paths if not any((root / path).exists() for root in (ROOT, ROOT / "edl_workflows"))
    ]
    assert not missing


def test_the_map_lists_every_package() -> None:
    """The map's table of packages has a row for each folder of the package."""
    page = (ROOT / "docs" / "explanation" / "architecture.md").read_text()
    packages = {init.parent.name for init in (ROOT / "edl_workflows").glob("*/__init__.py")}

    rows = re.findall(r"^\| ((?:`\w+/`(?:, )?)+) \|", page, re.MULTILINE)
    assert packages <= set(re.findall(r"`(\w+)/`", " ".join(rows)))


def test_the_glossary_defines_each_word_once() -> None:
    """The glossary has one row for each word, in alphabetical order, in lower case."""
    page = (ROOT / "docs" / "reference" / "glossary.md").read_text()
    words = re.findall(r"^\| ([^|`]+?) \| [^|]+ \| [^|]+ \|$", page, re.MULTILINE)[1:]

    assert len(words) > 60
    assert words == sorted({word.lower() for word in words})


def test_every_environment_variable_is_listed() -> None:
    """The page of environment variables lists each variable that the package names."""
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    named = [value for name, value in vars(names).items() if name.startswith("ENV_")]
    named += [value for name, value in vars(addresses).items() if name.endswith("_VARIABLE")]

    missing = [name for name in named if f"`{name}`" not in page]
    assert not missing


def test_variables_of_recorded_pods_are_listed() -> None:
    """The page of environment variables lists each variable that the pods of DIJobs and TrainingJobs get."""
    page = (ROOT / "docs" / "reference" / "environment.md").read_text()
    recorded = [
        path
        for kind in ("di_jobs", "training_jobs")
        for path in (ROOT / "tests/golden" / kind).glob("*.pods.yaml")
    ]
    own = re.compile(
        r"name: ((?:DI|PADDLE|TRAINING|ETCD)_[A-Z_]+|TRAINERS|PSERVERS|ENTRY|TOPOLOGY)$", re.MULTILINE
    )
    named = {name for path in recorded for name in own.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20

    per_task = {name for name in named if re.fullmatch(r"DI_[A-Z_]+_NODES", name)}
    missing = [name for name in sorted(named - per_task) if f"`{name}`" not in page]
    assert not missing, "list them in docs/reference/environment.md"


def test_every_page_is_in_the_index() -> None:
    """The index has a link to each page."""
    index = ROOT / "docs" / "index.md"
    linked = {(index.parent / target).resolve() for target in LINK.findall(index.read_text())}

    missing = [page for page in index.parent.rglob("*.md") if page != index and page not in linked]
    assert not missing, "link these pages in docs/index.md"


def _site() -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())
    return settings


def _nav_pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
        return
    for inner in entry.values() if isinstance(entry, dict) else entry:
        yield from _nav_pages(inner)


def test_every_page_is_in_the_navigation() -> None:
    """The built site's navigation has each page of docs/ and each API page, and no others."""
    site = _site()
    pages = [str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")]
    pages += [f"api/{name}.md" for name in site["extra"]["api_pages"]]

    listed = [page for page in _nav_pages(site["nav"]) if not page.startswith("source/")]
    assert not set(pages) - set(listed), "add these pages to the nav of mkdocs.yml"
    assert sorted(listed) == sorted(pages)


def test_api_pages_name_modules_that_exist() -> None:
    """Each API page names an existing module, so that a renamed one is noticed without building the site."""
    pages = _site()["extra"]["api_pages"].values()
    modules = [module.removesuffix(".*") for page in pages for module in page["modules"]]

    assert not [module for module in modules if importlib.util.find_spec(module) is None]


def test_every_command_is_used_on_a_page() -> None:
    """A page that people have written, not only the reference, uses each command of ``edl``."""
    group: Any = typer.main.get_command(app)
    written = "\n".join(page.read_text() for page in PAGES if page.parent.name != "reference")
    commands = group.list_commands(group.make_context("edl", ["--help"], resilient_parsing=True))
    assert len(commands) > 20
    unused = [name for name in commands if not re.search(rf"\bedl {re.escape(name)}\b", written)]
    assert unused == [], "show these commands on a page of docs/"


def test_the_stages_of_argos_agent_are_listed() -> None:
    """The page about Argo's agent lists exactly the stages that the agent carries out."""
    page = (ROOT / "docs" / "how-to" / "argo-agent.md").read_text()
    listed = re.search(r"^- `stage` is one of (.*?)\.$", page, re.MULTILINE | re.DOTALL)
    assert listed is not None
    assert re.findall(r"`([a-z-]+)`", listed[1]) == [stage.name for stage in STAGES], (
        "list the stages in docs/how-to/argo-agent.md, in the order of STAGES"
    )


def test_every_operator_of_a_stage_has_a_task() -> None:
    """The first table of the page about DAGs says which task each operator of a stage is for."""
    page = (ROOT / "docs/how-to/write-a-dag.md").read_text()
    table = page.partition("| task | class |\n")[2].partition("\n\n")[0]
    missing = [stage.operator for stage in STAGES if stage.operator and f"`{stage.operator}`" not in table]
    assert missing == [], "list them in the first table of docs/how-to/write-a-dag.md"


def test_every_live_policy_is_explained() -> None:
    """The page about DIJobs explains each policy that a controller can use instead of the default."""
    page = (ROOT / "docs/how-to/run-dijobs.md").read_text()
    default, *others = [policy.name for policy in POLICIES]
    assert default == "fit"
    missing = [name for name in others if f"--allocator-policy {name}`" not in page]
    assert missing == [], "explain them in docs/how-to/run-dijobs.md"


PACKAGES = sorted(
    file for file in (ROOT / "edl_workflows").rglob("__init__.py") if "__pycache__" not in file.parts
)


@pytest.mark.parametrize("file", PACKAGES, ids=lambda file: str(file.parent.relative_to(ROOT)))
def test_a_packages_docstring_names_what_it_holds(file: Path) -> None:
    """Modules and folders that the list in a package's docstring names exist in the package."""
    docstring = ast.get_docstring(ast.parse(file.read_text())) or ""
    heads = [line.partition(":")[0] for line in docstring.splitlines() if line.startswith("- `")]
    named = {name for head in heads for name in re.findall(r"(?<!`)`([a-z][a-z0-9_]*)`(?!`)", head)}

    assert named <= {entry.stem for entry in file.parent.iterdir()}
