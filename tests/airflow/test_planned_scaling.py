"""The example that asks a person, run by Airflow itself; the person answers as Airflow's API lets people
answer."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, TICK, StandIn, eventually, jobs, plans

pytestmark = IN_AIRFLOW

DAG_ID = "example_planned_scaling"
FILE = Path(__file__).resolve().parents[2] / "dags" / f"{DAG_ID}.py"
PLANNED = {
    "stage": "job_stage_running",
    "replicaResourceSpecs": {"worker": {"replicas": 3, "resource": {"cpu": "2"}}},
    "reasons": {"worker": "3 workers gain"},
}
EMPTY = {"stage": "job_stage_running", "notes": ["all is well"]}


@dataclass
class Person:
    """What happens beside Airflow: the master plans, somebody answers, training ends.

    Attributes:
        asked: what he was asked.
        waits: Airflow waits for the answer.
    """

    cluster: Cluster
    stand_in: StandIn
    plan: dict[str, Any]
    answer: str
    asked: list[str] = field(default_factory=list)
    waits: threading.Event = field(default_factory=threading.Event)
    _stopped: threading.Event = field(default_factory=threading.Event)

    def act(self) -> None:
        """One after the other, until the run is over."""
        self._await(lambda: bool(jobs(self.cluster)))
        (name,) = jobs(self.cluster)
        client.patch_status(self.cluster, ELASTIC_JOBS, name, {"autoscaling": self.plan})
        self._await(lambda: self._state("approve") in ("awaiting_input", "skipped"))
        if self._state("approve") == "awaiting_input":
            self._await(self.waits.is_set)
            self._respond()
        self._await(lambda: self._state("apply") in ("success", "skipped", "failed"))
        self.stand_in.end(name)

    def stop(self) -> None:
        """The run is over."""
        self._stopped.set()

    def _await(self, holds: Callable[[], bool]) -> None:
        while not self._stopped.is_set() and not holds():
            self._stopped.wait(TICK)

    def _state(self, task_id: str) -> str:
        from airflow.models.taskinstance import TaskInstance
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with create_session() as session:
            mine = (TaskInstance.dag_id == DAG_ID, TaskInstance.task_id == task_id)
            newest = select(TaskInstance.state).where(*mine).order_by(TaskInstance.run_id.desc())
            return str(session.scalars(newest).first())

    def _respond(self) -> None:
        from airflow.api_fastapi.core_api.datamodels.hitl import UpdateHITLDetailPayload
        from airflow.api_fastapi.core_api.routes.public.hitl import update_hitl_detail
        from airflow.models.dagrun import DagRun
        from airflow.models.hitl import HITLDetail
        from airflow.utils.session import create_session
        from sqlalchemy import select

        user: Any = SimpleNamespace(get_id=lambda: "1", get_name=lambda: "somebody")
        with create_session() as session:
            runs = select(DagRun.run_id).where(DagRun.dag_id == DAG_ID).order_by(DagRun.id.desc())
            run = session.scalars(runs).first()
            detail: Any = session.scalars(select(HITLDetail).order_by(HITLDetail.created_at.desc())).first()
            self.asked += [detail.subject, detail.body]
            payload = UpdateHITLDetailPayload(chosen_options=[self.answer])
            update_hitl_detail(DAG_ID, str(run), "approve", payload, user, session)


@contextmanager
def beside(person: Person) -> Iterator[None]:
    """Acting in a thread while the context lasts."""
    thread = threading.Thread(target=person.act, name="person", daemon=True)
    thread.start()
    try:
        yield
    finally:
        person.stop()
        thread.join()


def tell_when_it_waits(person: Person, monkeypatch: pytest.MonkeyPatch) -> None:
    """``dag.test()`` writes a task's state once more after the task has written it, and would undo an answer
    given in between."""
    from airflow.sdk.definitions import dag

    run_task = dag._run_task

    def told(*, ti: Any, **arguments: Any) -> Any:
        result = run_task(ti=ti, **arguments)
        if ti.task_id == "approve":
            person.waits.set()
        return result

    monkeypatch.setattr(dag, "_run_task", told)


@pytest.fixture
def airflow_logs(airflow_db: None) -> None:
    """As in each of Airflow's own processes; its operators that skip ask for the level. Other tests undo
    it."""
    from airflow.logging_config import configure_logging

    configure_logging()  # type: ignore[no-untyped-call]


@pytest.mark.parametrize(
    ("plan", "answer", "asked", "applied"),
    [
        pytest.param(PLANNED, "Approve", True, "success", id="approved"),
        pytest.param(PLANNED, "Reject", True, "skipped", id="rejected"),
        pytest.param(EMPTY, "", False, "skipped", id="nothing to ask"),
    ],
)
def test_a_plan_is_applied_when_somebody_says_so(
    plan: dict[str, Any],
    answer: str,
    asked: bool,
    applied: str,
    airflow_logs: None,
    connection: None,
    cluster: Cluster,
    stand_in: StandIn,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A person reads what would change and why. An approved plan is applied as it was planned, and nothing
    else is ever created."""
    from airflow.dag_processing.dagbag import DagBag

    dag = DagBag(str(FILE)).dags[DAG_ID]
    person = Person(cluster, stand_in, plan, answer)
    tell_when_it_waits(person, monkeypatch)

    with beside(person):
        run = dags.run(dag)

    states = dags.states(run)
    skipped = {"approve": "success" if asked else "skipped", "apply": applied}
    rest = dict.fromkeys(("submit", "plan", "worthwhile", "trained", "cancel", "watcher"), "success")
    assert states == skipped | rest
    made = [one["spec"]["replicaResourceSpecs"] for one in plans(cluster).values()]
    assert made == ([PLANNED["replicaResourceSpecs"]] if applied == "success" else [])
    assert bool(person.asked) is asked
    if asked:
        assert "- worker: " in person.asked[1]
        assert "worker: 3 workers gain" in person.asked[1]
    eventually(lambda: next(iter(jobs(cluster).values()))["status"]["phase"] == "Succeeded", "the end")
