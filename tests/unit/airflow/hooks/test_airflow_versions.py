"""What the provider puts in the place of what an older Airflow lacks."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import Context
from airflow.sdk.bases.xcom import BaseXCom
from airflow.triggers.base import BaseTrigger

from edl_workflows.airflow.hooks.airflow_versions import DELIVERED, KillableTrigger, XComStore, task_store

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

PAGE = Path(__file__).resolve().parents[4] / "docs" / "how-to" / "write-a-dag.md"
INSTALLED = tuple(int(part) for part in version("apache-airflow-core").split(".")[:2])
SINCE: dict[str, tuple[Callable[[], bool], tuple[int, int]]] = {
    "a task state store": (lambda: "task_state_store" in Context.__annotations__, (3, 3)),
    "`on_kill` of triggers": (lambda: hasattr(BaseTrigger, "on_kill"), (3, 3)),
    "tabs of plugins": (lambda: hasattr(AirflowPlugin, "react_apps"), (3, 1)),
    "`ApprovalOperator`": (lambda: find_spec("airflow.models.hitl") is not None, (3, 1)),
}
"""What the page says that Airflow has: how it is recognized, and since when."""
BEGUN = {"handle": {"name": "mnist"}, DELIVERED: False}


@dataclass
class TaskInstance:
    """One task instance of an Airflow without a task state store: an attempt deletes the XComs of the one
    before."""

    xcoms: dict[str, Any] = field(default_factory=dict)
    task_id: str = "task"
    dag_id: str = "dag"
    run_id: str = "run"
    map_index: int = -1
    _ti_context_from_server: Any = None

    def begin_attempt(self) -> None:
        """As the worker does before it executes the task."""
        self._ti_context_from_server = SimpleNamespace(xcom_keys_to_clear=list(self.xcoms))
        self.xcoms.clear()

    def xcom_push(self, key: str, value: Any) -> None:
        """Set one."""
        self.xcoms[key] = value

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int) -> Any:
        """Get one."""
        assert (task_ids, map_indexes) == (self.task_id, self.map_index)
        return self.xcoms.get(key)


@pytest.fixture
def ti(monkeypatch: pytest.MonkeyPatch) -> TaskInstance:
    """In its first attempt."""
    made = TaskInstance()
    made.begin_attempt()
    monkeypatch.setattr(BaseXCom, "delete", lambda *, key, **_names: made.xcoms.pop(key))
    return made


@pytest.mark.parametrize("name", SINCE)
def test_the_page_says_since_when_airflow_has_it(name: str) -> None:
    """The page gives the Airflow version since which each feature exists, and the installed version
    agrees."""
    has, since = SINCE[name]

    assert has() is (since <= INSTALLED)
    assert f"| {name} | {since[0]}.{since[1]} |" in PAGE.read_text()


def test_a_store_of_airflows_own_is_used(ti: TaskInstance) -> None:
    """State is kept in Airflow's task state store where it has one, and in XComs otherwise."""
    own = XComStore(ti)

    assert task_store({"ti": ti, "task_state_store": own}) is own
    assert isinstance(task_store({"ti": ti}), XComStore)


def test_a_deferral_keeps_the_state(ti: TaskInstance) -> None:
    """After a deferral, the task reads the complete state that it stored before."""
    XComStore(ti).set("edl_stage", BEGUN)

    assert XComStore(ti).get("edl_stage") == BEGUN


def test_a_retry_after_a_failure_knows_of_no_delivery(ti: TaskInstance) -> None:
    """A retry after a failure finds no delivered result."""
    XComStore(ti).set("edl_stage", BEGUN)
    ti.begin_attempt()

    assert XComStore(ti).get("edl_stage") is None


def test_an_attempt_after_a_success_knows_of_the_delivery(ti: TaskInstance) -> None:
    """The next attempt after a success finds the delivery, even if an attempt in between was lost before it
    began anything, but not once one has begun again."""
    XComStore(ti).set("edl_stage", BEGUN)
    XComStore(ti).set("edl_stage", {**BEGUN, DELIVERED: True})

    for _lost in range(2):
        ti.begin_attempt()
        assert XComStore(ti).get("edl_stage") == {DELIVERED: True}
    XComStore(ti).set("edl_stage", BEGUN)
    ti.begin_attempt()

    assert XComStore(ti).get("edl_stage") is None


@pytest.mark.skipif(INSTALLED >= (3, 3), reason="this Airflow calls on_kill itself")
def test_an_older_airflow_ends_a_trigger_by_on_kill() -> None:
    """Older Airflows call only a trigger's ``cleanup``, which then calls ``on_kill``."""
    killed: list[str] = []

    class Waits(KillableTrigger):
        async def on_kill(self) -> None:
            killed.append("on_kill")

        def serialize(self) -> tuple[str, dict[str, Any]]:
            return "", {}

        async def run(self) -> Any:
            yield None

    made: KillableTrigger = Waits()  # type: ignore[no-untyped-call]
    asyncio.run(made.cleanup())

    assert killed == ["on_kill"]
