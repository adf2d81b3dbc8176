"""What all tests share: no test sees the user's own state, and golden files change only when asked."""

import gc
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hypothesis.core
import pytest
import structlog
from hypothesis import HealthCheck, settings
from hypothesis.vendor.pretty import RepresentationPrinter

from tests import leaks

if TYPE_CHECKING:
    from edl_workflows.testing import ApiServerProcess

# By default, garbage collection takes a fifth of the CPU that collecting the tests takes.
gc.set_threshold(50_000, 20, 20)

_CLUSTER = Path(__file__).parent / "cluster"
_USER_STATE = ("KUBECONFIG", "EDL_LOCAL_DIR", "EDL_SERVICE_MAP", "DLROVER_MASTER_ADDR", "EDL_JOB_TOKEN")


# How long a draw or an example takes says something about the machine, and nothing about our promises.
settings.register_profile("edl", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("edl")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden files instead of comparing"
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """The tests on a real cluster need root and minutes: they run where their folder is named, as `make
    test-cluster` does."""
    if collection_path != _CLUSTER:
        return None
    named = any(
        Path(argument.partition("::")[0]).resolve().is_relative_to(_CLUSTER) for argument in config.args
    )
    return None if named else True


def pytest_runtest_setup() -> None:
    """A failing Hypothesis example prints its values, also in a process that has imported schemathesis, which
    replaces Hypothesis's printer by one that prints nothing."""
    hypothesis.core.RepresentationPrinter = RepresentationPrinter  # type: ignore[attr-defined]


_DIFFERS_BY_PROCESS = re.compile(r"set\(\{| at 0x")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The processes that share a run must name its tests alike; the order of a set and an address differ
    between them."""
    if wrong := [item.nodeid for item in items if _DIFFERS_BY_PROCESS.search(item.nodeid)]:
        raise pytest.UsageError(f"give the parameters of these tests ids: {', '.join(wrong[:3])}")


def pytest_collection_finish() -> None:
    """What was imported and collected stays to the end: the garbage collector need not look at it again."""
    gc.collect()
    gc.freeze()


_TENSORFLOW_FILES = re.compile(r"tests/unit/training/test_(tensorflow|tf)(_\w+)?\.py")


@pytest.hookimpl(optionalhook=True)  # PyTorch's environment has no pytest-xdist
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With ``--dist loadfile``: a file's tests run in one process, and so do those of all files that import
    TensorFlow, which takes 3 s of CPU."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

    class Scheduling(LoadFileScheduling):  # type: ignore[misc]  # it has no types
        def _split_scope(self, nodeid: str) -> str:
            file = super()._split_scope(nodeid)
            return "tensorflow" if _TENSORFLOW_FILES.fullmatch(file) else file

    return Scheduling(config, log)


_airflow_home = pytest.StashKey[str]()


def pytest_configure(config: pytest.Config) -> None:
    """Airflow reads its settings when it is first imported, by whichever test: they must stand before. Agents
    as well."""
    leaks.mark_processes(worker=hasattr(config, "workerinput"))
    home = tempfile.mkdtemp(prefix="edl-airflow-")
    config.stash[_airflow_home] = home
    (Path(home) / "dags").mkdir()
    (Path(home) / "memory").mkdir()
    os.environ |= {
        "EDL_SHARED_MEMORY": f"{home}/memory",  # agents that tests kill leave copies of models there
        "AIRFLOW_HOME": home,
        "AIRFLOW__CORE__DAGS_FOLDER": f"{home}/dags",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
    }


def pytest_unconfigure(config: pytest.Config) -> None:
    """Nothing of it stays."""
    shutil.rmtree(config.stash[_airflow_home], ignore_errors=True)


_processes_end_with_the_run = leaks._processes_end_with_the_run
_threads_end_with_their_test = leaks._threads_end_with_their_test


@pytest.fixture(scope="session")
def shared_api_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator["ApiServerProcess"]:
    """An API server with our kinds, for the tests of all folders that ask for it: each costs a second of CPU
    to start. Tests keep apart by namespaces."""
    # PyTorch's environment has no client of Kubernetes.
    from tests.airflow.support import server_with_kinds

    with server_with_kinds(tmp_path_factory.mktemp("api")) as started:
        yield started


@pytest.fixture
def update_golden(request: pytest.FixtureRequest) -> bool:
    """Whether golden files are to be written."""
    return bool(request.config.getoption("--update-golden"))


@pytest.fixture(autouse=True)
def _no_user_state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A developer's kubeconfig and embedded cluster are out of reach."""
    for name in _USER_STATE:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("EDL_LOCAL_DIR", str(tmp_path / "edl-local"))


@pytest.fixture(autouse=True)
def _logging_ends_with_the_test() -> Iterator[None]:
    """A command under test sets logging up for the process, to a stderr that is closed after the test."""
    yield
    structlog.reset_defaults()
