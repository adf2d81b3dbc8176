"""The endpoints of the tab within Airflow's own API server: authentication, rights on the DAG, what they
answer."""

import asyncio
import json
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest
from airflow.sdk import DAG

from edl_workflows.airflow.hooks.task_object import OBJECT_KEY
from edl_workflows.airflow.tab.address import PREFIX
from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from edl_workflows.sensors.elastic_job import ElasticJobSensor
from tests.airflow import dags
from tests.airflow.support import IN_AIRFLOW, StandIn, elastic_job, eventually, jobs, plans

pytestmark = IN_AIRFLOW

DAG_ID, RUN_ID = "tab-training", "manual__tab-training"
PROPOSAL: dict[str, Any] = {
    "optimizer": "local",
    "stage": "job_stage_running",
    "replicaResourceSpecs": {"worker": {"replicas": 4}},
    "reasons": {"worker": "four train faster"},
    "time": "2026-01-01T00:10:00Z",
}

Ask = Callable[..., Any]


@pytest.fixture(scope="module")
def airflow_app(airflow_db: None) -> Iterator[Any]:
    """Airflow's API server with an auth manager that knows rights on single DAGs."""
    from airflow.api_fastapi.app import create_app, purge_cached_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__AUTH_MANAGER", "tests.airflow.dag_rights.DagRightsAuthManager")
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "of-the-test" * 6)
        purge_cached_app()
        yield create_app(apps="core")
        purge_cached_app()


def call(app: Any, method: str, path: str, **request: Any) -> httpx.Response:
    """Send one request to an ASGI application."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://testserver") as sender:
            return await sender.request(method, path, **request)

    return asyncio.run(send())


@pytest.fixture
def ask(airflow_app: Any) -> Ask:
    """Sends a request about the task of the run, as a user of a name and a role, or as nobody."""
    from airflow.api_fastapi.app import get_auth_manager
    from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser

    def send(
        user: str,
        path: str = "jobs",
        body: Any = None,
        role: str = "viewer",
        dag_id: str = DAG_ID,
        **query: Any,
    ) -> Any:
        headers = {}
        if user:
            token = get_auth_manager().generate_jwt(SimpleAuthManagerUser(username=user, role=role))
            headers["Authorization"] = f"Bearer {token}"
        query = {"run_id": RUN_ID, "task_id": "train"} | query
        params = {key: value for key, value in query.items() if value is not None}
        url = path if path.startswith("/") else f"{PREFIX}/dags/{dag_id}/{path}"
        return call(
            airflow_app, "GET" if body is None else "POST", url, params=params, headers=headers, json=body
        )

    return send


@pytest.fixture
def job(connection: None, cluster: Cluster, stand_in: StandIn) -> str:
    """A job that a DAG's task has submitted and that a later task watches; its optimizer has a proposal."""
    with DAG(DAG_ID, schedule=None) as dag:
        submit = SubmitElasticJobOperator(
            task_id="train", manifest=elastic_job(None), wait_for_completion=False, deferrable=False
        )
        wait = ElasticJobSensor(
            task_id="wait", name="{{ ti.xcom_pull('train')['name'] }}", step=10, deferrable=False
        )
        submit >> wait
    forget_run()
    dags.begin(dag, "wait")
    name = next(iter(jobs(cluster)))
    client.patch_status(cluster, ELASTIC_JOBS, name, {"autoscaling": PROPOSAL}, cluster.namespace)
    return name


def forget_run() -> None:
    """Delete what the previous test left of the run."""
    from airflow.models.dagrun import DagRun
    from airflow.utils.session import create_session
    from sqlalchemy import delete

    with create_session() as session:
        session.execute(delete(DagRun).where(DagRun.dag_id == DAG_ID))


def decision(cluster: Cluster, name: str, **more: str) -> dict[str, str]:
    """The body of a decision about a job."""
    return {"kind": "ElasticJob", "namespace": cluster.namespace, "name": name, **more}


def test_nobody_sees_a_job_without_the_right(job: str, cluster: Cluster, ask: Ask) -> None:
    """A request gets 401 without authentication, 403 without the right on the DAG, and 200 with it."""
    assert ask("").status_code == 401
    assert ask("", "decisions", decision(cluster, job, action="approve")).status_code == 401
    assert ask("other-dag:eve").status_code == 403
    assert ask("other-dag:eve", dag_id="other-dag", run_id=RUN_ID).json()["jobs"] == []

    assert ask(f"{DAG_ID}:ann", dag_id="~").status_code == 403

    allowed = ask(f"{DAG_ID}:ann")
    assert (allowed.status_code, allowed.headers["cache-control"]) == (200, "no-store")


def test_decisions_need_the_right_to_edit(job: str, cluster: Cluster, ask: Ask) -> None:
    """A user who may only read the DAG is refused, and the tab offers no decision."""
    seen = ask("ann").json()["jobs"][0]
    body = decision(cluster, job, action="approve", proposal=seen["proposal"]["id"])

    assert not seen["may_edit"]
    assert ask("ann", "decisions", body).status_code == 403
    assert ask("other-dag:eve", "decisions", body, role="user").status_code == 403
    assert not plans(cluster)


def test_the_document_of_a_task_and_of_a_run(job: str, cluster: Cluster, ask: Ask) -> None:
    """A task's tab shows its job; the run's tab shows each job once, with the tasks that work on it."""
    of_task, of_run = ask("ann").json(), ask("ann", task_id=None).json()

    [found] = of_task["jobs"]
    assert (found["name"], found["phase"], found["progress"]["step"]) == (job, "Running", 100)
    assert found["tasks"] == [{"task_id": "train", "map_index": -1}]
    assert found["log"]["note"] == "No pod has started."
    assert found["proposal"]["changes"] == ["worker: 4 replicas"]
    [known] = of_run["jobs"]
    assert {task["task_id"] for task in known["tasks"]} == {"train", "wait"}
    assert known["log"] is None


def test_a_running_job_has_the_figures_of_its_master(
    job: str, cluster: Cluster, ask: Ask, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master is asked, and what it answers is newer than the status. While it does not answer, the page
    has the figures of the status, says so, and is not slower each time."""
    asked: list[str] = []
    figures = {"time": time.time(), "step": 170, "speed": 2.5, "goodput": 0.5, "memory": 96.0}
    document = figures | {
        "records": 20,
        "records_total": 70,
        "records_per_second": 10,
        "metrics": {"loss": 0.25},
    }

    def answer(_cluster: Cluster, address: client.ServiceAddress, _action: str) -> bytes:
        asked.append(address.service)
        if not document:
            raise UnavailableError("no answer")
        return json.dumps(document).encode()

    monkeypatch.setattr(client, "read_service", answer)
    [live] = ask("ann").json()["jobs"]
    document.clear()
    before = len(asked)
    for _ in range(3):
        [old] = ask("ann").json()["jobs"]

    assert live["figures"] == {"live": True, "time": figures["time"], "memory": 96.0, "obstacle": ""}
    progress = live["progress"]
    assert (progress["step"], progress["speed"], progress["eta_seconds"]) == (170, 2.5, 5.0)
    assert live["metrics"] == {"loss": 0.25}
    assert (old["figures"]["live"], old["figures"]["obstacle"]) == (False, "no answer")
    assert old["progress"]["step"] == 100
    assert asked[before:] == [f"elasticjob-{job}-dlrover-master"]


def test_output_of_the_program_needs_the_right_to_logs(job: str, cluster: Cluster, ask: Ask) -> None:
    """Messages quote the last lines that a program printed, so a user without the right to logs sees neither
    these nor the log; phases, causes and counts are left."""
    said = "RuntimeError: password=hunter2"
    restart = {"time": "2026-01-01T00:00:00Z", "subject": "worker-0", "cause": "error", "message": said}
    status = {
        "warnings": [said],
        "restarts": {"counts": {"error": 1}, "recent": [restart]},
    }
    client.patch_status(cluster, ELASTIC_JOBS, job, status, cluster.namespace)

    full, limited = ask("ann"), ask("nologs")

    assert full.text.count(said) == 2
    assert full.json()["jobs"][0]["log"] is not None
    assert "hunter2" not in limited.text
    [seen] = limited.json()["jobs"]
    assert (seen["phase"], seen["log"], seen["progress"]["step"]) == ("Running", None, 100)
    assert (seen["restarts"]["counts"], seen["restarts"]["recent"][0]["cause"]) == ({"error": 1}, "error")


def test_approved_twice_is_one_plan(job: str, cluster: Cluster, ask: Ask) -> None:
    """Approving twice creates one ScalePlan, with the reasons, the name of the approver and the DAG whose
    right to edit this person used."""
    proposal = ask("bob", role="user").json()["jobs"][0]["proposal"]["id"]
    body = decision(cluster, job, action="approve", proposal=proposal)

    answers = [ask("bob", "decisions", body, role="user") for _ in range(2)]

    assert [answer.status_code for answer in answers] == [200, 200], [a.text for a in answers]
    [plan] = plans(cluster).values()
    assert plan["spec"]["replicaResourceSpecs"]["worker"]["replicas"] == 4
    assert plan["spec"]["reason"] == (
        f"Airflow: approved by bob; worker: four train faster; tab of DAG {DAG_ID}"
    )
    eventually(lambda: ask("bob").json()["jobs"][0]["plans"][0]["phase"] == "Succeeded", "the plan's end")


def test_rejected_and_outdated_plans(job: str, cluster: Cluster, ask: Ask) -> None:
    """A rejected proposal shows who rejected it. A proposal that has changed since it was shown can't be
    approved."""
    proposal = ask("bob", role="user").json()["jobs"][0]["proposal"]["id"]

    assert (
        ask(
            "bob", "decisions", decision(cluster, job, action="approve", proposal="old"), role="user"
        ).status_code
        == 409
    )
    rejected = ask(
        "bob", "decisions", decision(cluster, job, action="reject", proposal=proposal), role="user"
    )

    assert rejected.status_code == 200
    shown = ask("ann").json()["jobs"][0]["proposal"]
    assert (shown["state"], shown["decided"][:7]) == ("rejected", "by bob,")
    assert not plans(cluster)


def test_another_job_than_the_tasks_is_not_shown(job: str, cluster: Cluster, ask: Ask) -> None:
    """An XCom that names another job shows nothing: neither a job that no pipeline created, nor one of a DAG
    that the user may not see."""
    for name, owner in (("private", ""), ("foreign", "airflow/other-dag/run/task/-1")):
        manifest = elastic_job(name)
        manifest["metadata"]["annotations"] = {"elastic.iml.github.io/owner": owner} if owner else {}
        client.create(cluster, manifest)
        push({"kind": "ElasticJob", "namespace": cluster.namespace, "name": name})

        shown = ask(f"{DAG_ID}:ann").json()

        assert shown["jobs"] == []
        assert name in shown["notes"][0]
    push({"kind": [], "name": 3})
    assert ask("ann").json()["jobs"] == []


def test_an_xcom_imports_nothing_in_the_api_server(job: str, ask: Ask) -> None:
    """An XCom that names a class is not deserialized: the tab shows no job, and Airflow's API server does not
    import a module that a DAG's author chose."""
    module = "airflow.providers.standard.sensors.weekday"
    named = {"__classname__": f"{module}.Absent", "__version__": 0, "__data__": {}}
    for value in (json.dumps(named), named):
        push(value)
        shown = ask("ann")

        assert (shown.status_code, shown.json()["jobs"]) == (200, [])
    assert module not in sys.modules


def push(value: Any) -> None:
    """Overwrite the XCom of the task."""
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import update

    row = (XComModel.dag_id == DAG_ID) & (XComModel.task_id == "train") & (XComModel.key == OBJECT_KEY)
    with create_session() as session:
        session.execute(update(XComModel).where(row).values(value=value))


def test_the_page_is_served_and_airflow_lists_it(ask: Ask, airflow_app: Any) -> None:
    """Airflow lists both tabs, and serves their module and its imports without authentication."""
    listed = ask("ann", "/api/v2/plugins", role="admin", task_id=None).json()["plugins"]
    [plugin] = [one for one in listed if one["name"] == "edl_workflows"]

    assert [one["destination"] for one in plugin["react_apps"]] == ["task_instance", "dag_run"]
    for one in plugin["react_apps"]:
        found = call(airflow_app, "GET", f"/{one['bundle_url']}")
        assert found.headers["content-type"].startswith("text/javascript")
    for name in ("parts.js", "charts.js", "format.js", "shapes.js", "style.js", "icon.svg"):
        assert call(airflow_app, "GET", f"{PREFIX}/files/{name}").status_code == 200
    assert call(airflow_app, "GET", f"{PREFIX}/files/..%2Fapp.py").status_code == 404
