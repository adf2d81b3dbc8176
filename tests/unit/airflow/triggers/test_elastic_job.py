"""The trigger: what it stores, when it fires, and whom it spares when Airflow calls on_kill."""

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock

import pytest
from airflow.sdk.bases.xcom import BaseXCom
from airflow.sdk.execution_time.task_runner import RuntimeTaskInstance
from airflow.triggers.base import TriggerEvent
from asgiref.sync import async_to_sync

from edl_workflows.airflow import triggers as module
from edl_workflows.airflow.hooks import kills, written_logs
from edl_workflows.airflow.hooks.elastic_job import ElasticJobHook
from edl_workflows.airflow.hooks.task_object import TaskObject
from edl_workflows.airflow.hooks.task_state import DELETED
from edl_workflows.airflow.triggers import ElasticJobTrigger, StageEvent
from edl_workflows.pipelines.stages import submit
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from edl_workflows.runtime.kube.shared import SHARED
from edl_workflows.testing import ApiServerProcess
from tests.airflow.support import StandIn, elastic_job, jobs

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

ME = StageIdentity("airflow/dag/run/task/-1")


@dataclass
class TaskInstance:
    """What a triggerer tells its trigger about the task."""

    dag_id: str = "dag"
    run_id: str = "run"
    task_id: str = "task"
    map_index: int = -1


@pytest.fixture(autouse=True)
def _at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__EDL_WORKFLOWS__SETTLE_SECONDS", "0")
    monkeypatch.setattr(kills, "run_state", lambda _dag_id, _run_id: "running")
    monkeypatch.setenv(
        "AIRFLOW_CONN_KUBERNETES_DEFAULT", json.dumps({"conn_type": "kubernetes", "extra": {}})
    )


def begun(cluster: Cluster, ends: str = "") -> Handle:
    """A submitted job."""
    request = submit.SubmitRequest(manifest=elastic_job("mnist", ends=ends))
    return submit.begin_submit(cluster, request, ME)


def trigger(server: ApiServerProcess, handle: Handle, **changes: Any) -> ElasticJobTrigger:
    """As an operator makes it, after the way through the database."""
    made = ElasticJobTrigger(
        handle=handle.model_dump(mode="json"),
        connection={"kubernetes_conn_id": "kubernetes_default", "config_file": str(server.kubeconfig)},
        **{"on_kill_action": "delete", **changes},
    )
    return stored(made)


def stored(made: ElasticJobTrigger) -> ElasticJobTrigger:
    """What a triggerer makes of what was stored."""
    path, kwargs = made.serialize()
    name, _, attribute = path.rpartition(".")
    again: ElasticJobTrigger = getattr(import_module(name), attribute)(**json.loads(json.dumps(kwargs)))
    again.task_instance = TaskInstance()  # type: ignore[assignment]
    return again


async def fire(made: ElasticJobTrigger) -> StageEvent:
    """Its event."""
    event: TriggerEvent = await anext(made.run())
    return StageEvent.model_validate(json.loads(json.dumps(event.payload)))


def test_stored_arguments_are_a_fixed_point_without_secrets(
    server: ApiServerProcess, cluster: Cluster
) -> None:
    """Airflow stores the trigger's arguments as plain text: they have the connection's id and the object's
    name, and nothing of the manifest. Serialized twice, they are equal."""
    made = trigger(server, begun(cluster))

    assert stored(made).serialize() == made.serialize()
    assert set(made.serialize()[1]) == {
        "handle",
        "connection",
        "deadline",
        "queue_deadline",
        "on_kill_action",
        "link",
        "attempt",
        "logs",
    }
    assert "containers" not in json.dumps(made.serialize()[1])


def test_it_fires_with_the_outputs(server: ApiServerProcess, cluster: Cluster, stand_in: StandIn) -> None:
    """The trigger fires one event with the outputs, so that the task can end without another request."""
    event = asyncio.run(fire(trigger(server, begun(cluster, "Succeeded"))))

    assert event.status == "success"
    assert event.outputs is not None
    assert event.outputs.phase == "Succeeded"


def test_it_tells_failure_and_timeout_apart(
    server: ApiServerProcess, cluster: Cluster, stand_in: StandIn
) -> None:
    """The event has the class of the error, so that the task raises the same one."""
    late = asyncio.run(fire(trigger(server, begun(cluster), deadline=time.time() - 1)))
    client.delete(cluster, ELASTIC_JOBS, "mnist")
    stand_in.idle = True
    queued = asyncio.run(fire(trigger(server, begun(cluster), queue_deadline=time.time() - 1)))
    stand_in.idle = False
    client.delete(cluster, ELASTIC_JOBS, "mnist")
    failed = asyncio.run(fire(trigger(server, begun(cluster, "Failed"))))

    assert (failed.status, failed.error) == ("failed", "JobFailedError")
    assert (late.status, late.error) == ("timeout", "StageTimeoutError")
    assert (queued.status, queued.error) == ("timeout", "QueueTimeoutError")


def test_an_absent_connection_is_an_event_and_no_crash(cluster: Cluster) -> None:
    """A missing connection gives an event with the error. A crash of the trigger would be retried in vain."""
    made = ElasticJobTrigger(
        handle=begun(cluster).model_dump(mode="json"), connection={"kubernetes_conn_id": "absent"}
    )

    event = asyncio.run(fire(made))

    assert event.error == "InvalidError"
    assert "Airflow has no connection 'absent'" in event.message


def test_many_triggers_share_one_watch(server: ApiServerProcess, cluster: Cluster, stand_in: StandIn) -> None:
    """A hundred triggers cost the API server as much as one."""
    stand_in.idle = True
    handle = begun(cluster)

    async def scenario() -> list[StageEvent]:
        waits = [asyncio.create_task(fire(trigger(server, handle))) for _ in range(100)]
        while sum(w.users for w in SHARED._watches.values()) < len(waits):  # noqa: ASYNC110 - no event tells it
            await asyncio.sleep(0.05)
        assert len(SHARED) == 1
        stand_in.end("mnist")
        stand_in.idle = False
        return await asyncio.gather(*waits)

    events = asyncio.run(scenario())

    assert {event.status for event in events} == {"success"}
    assert len(SHARED) == 0


async def kill(made: ElasticJobTrigger) -> None:
    """As a triggerer kills it: on_kill is interrupted after a moment, and what it began goes on."""
    killing = asyncio.create_task(made.on_kill())
    await asyncio.sleep(0.01)
    killing.cancel()
    while module._BACKGROUND:
        await asyncio.wait(module._BACKGROUND)
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("answer", "lives"),
    [
        pytest.param({"run": {"task": "failed"}}, False, id="marked failed"),
        pytest.param({"run": {"task": "success"}}, False, id="marked success"),
        pytest.param({"run": {"task": "skipped"}}, False, id="the run's time is up"),
        pytest.param({}, False, id="the run was deleted"),
        pytest.param({"run": {"task": "deferred"}}, True, id="another triggerer has it, or the next attempt"),
        pytest.param({"run": {"task": "running"}}, True, id="cleared, and taken up"),
        pytest.param({"run": {"task": None}}, True, id="cleared, and not yet scheduled"),
    ],
)
def test_on_kill_deletes_only_for_a_task_that_was_killed(
    server: ApiServerProcess,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    answer: dict[str, dict[str, str | None]],
    lives: bool,
) -> None:
    """`on_kill` deletes the job only if the task was killed. Airflow 3.3 also calls it on failover and while
    the next attempt of a cleared task begins."""

    def states(**_query: Any) -> dict[str, dict[str, str | None]]:
        time.sleep(0.2)  # longer than Airflow waits
        return answer

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(states))

    asyncio.run(kill(trigger(server, begun(cluster))))

    assert ("mnist" in jobs(cluster)) is lives


def test_on_kill_spares_what_the_next_attempt_adopted(
    server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the next attempt has adopted the job, `on_kill` does not delete it, even if the task's state is
    failed."""
    monkeypatch.setattr(
        RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_q: {"run": {"task": "failed"}})
    )
    made = trigger(server, begun(cluster))
    submit.begin_submit(
        cluster, submit.SubmitRequest(manifest=elastic_job("mnist")), StageIdentity(ME.owner, attempt="2")
    )

    asyncio.run(kill(made))

    assert "mnist" in jobs(cluster)


@pytest.mark.parametrize(("action", "suspended"), [("suspend", True), ("keep", False)])
def test_on_kill_action(
    server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, action: str, suspended: bool
) -> None:
    """A killed task can also suspend its job, or keep it."""
    monkeypatch.setattr(
        RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_q: {"run": {"task": "failed"}})
    )

    asyncio.run(kill(trigger(server, begun(cluster), on_kill_action=action)))

    assert bool(jobs(cluster)["mnist"]["spec"].get("suspend")) is suspended


@pytest.mark.parametrize(
    ("run", "on_cancel", "lives"),
    [("failed", "delete", False), (DELETED, "delete", False), ("failed", "keep", True),
     ("running", "delete", True), ("success", "delete", True)],
)  # fmt: skip
def test_a_wait_that_is_killed_with_its_run_ends_the_job(
    server: ApiServerProcess,
    cluster: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    run: str,
    on_cancel: str,
    lives: bool,
) -> None:
    """A run that exceeds its ``dagrun_timeout`` or is deleted runs no teardown, so the last task that knows
    of the job ends it, although another task created it. Jobs of other runs, and those that a task waits for,
    stay."""
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_q: {"run": {}}))
    monkeypatch.setattr(kills, "run_state", lambda _dag_id, _run_id: run)
    for name, owner, lifetime in (
        ("mnist", "airflow/dag/run/submit/-1", "run"),
        ("other-run", "airflow/dag/run2/submit/-1", "run"),
        ("run-with-a-slash", "airflow/dag/run/2/submit/-1", "run"),
        ("awaited", "airflow/dag/run/other/-1", "task"),
    ):
        submit_job(cluster, name, owner, on_cancel=on_cancel, lifetime=lifetime)

    asyncio.run(kill(trigger(server, wait_of(cluster, "mnist"), on_kill_action="keep")))

    others = {"other-run", "run-with-a-slash", "awaited"}
    assert set(jobs(cluster)) == {*others, *(["mnist"] if lives else [])}


def submit_job(cluster: Cluster, name: str, owner: str, **marks: Any) -> str:
    """A job that a task submitted; its uid."""
    identity = StageIdentity(owner, **{"on_cancel": "delete", "lifetime": "run", **marks})
    return submit.begin_submit(cluster, submit.SubmitRequest(manifest=elastic_job(name)), identity).uid


def wait_of(cluster: Cluster, job: str) -> Handle:
    """The handle of a task that waits for a job that another task submitted."""
    return Handle(kind="ElasticJob", namespace=cluster.namespace, name=job, goal=JobGoal(step=10**9))


def test_an_airflow_without_a_name_ends_no_job_of_another(
    server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two Airflows with the same DAG and no names write the same owner annotations, even for jobs of other
    names. A killed task ends the job that it waits for, and those that a task of this Airflow has noted."""
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_q: {"run": {}}))
    monkeypatch.setattr(kills, "run_state", lambda _dag_id, _run_id: "failed")
    submit_job(cluster, "awaited", "airflow/dag/run/submit/-1")
    uid = submit_job(cluster, "noted", "airflow/dag/run/mapped/3")
    submit_job(cluster, "foreign", "airflow/dag/run/mapped/4")
    noted = TaskObject(kind="ElasticJob", namespace=cluster.namespace, name="noted", uid=uid).model_dump()
    monkeypatch.setattr(BaseXCom, "get_one", lambda **query: noted if query["map_index"] == 3 else None)

    asyncio.run(kill(trigger(server, wait_of(cluster, "awaited"), on_kill_action="keep")))

    assert set(jobs(cluster)) == {"foreign"}


def test_a_run_that_is_cleared_while_its_task_is_killed_keeps_its_jobs(
    server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run is cleared after its state was read, and its next attempt adopts the job before the jobs are
    listed: it goes on."""
    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_q: {"run": {}}))
    states = iter(["failed", "running"])
    monkeypatch.setattr(kills, "run_state", lambda _dag_id, _run_id: next(states))
    submit_job(cluster, "mnist", "airflow/dag/run/submit/-1")

    asyncio.run(kill(trigger(server, wait_of(cluster, "mnist"), on_kill_action="keep")))

    assert set(jobs(cluster)) == {"mnist"}


def test_the_event_waits_for_the_scheduler(
    server: ApiServerProcess, cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that learns of the deferral only after the task continues fails the task. So the event
    comes three of the scheduler's heartbeats after the trigger's start, or as late as the setting says."""
    monkeypatch.delenv("AIRFLOW__EDL_WORKFLOWS__SETTLE_SECONDS")
    assert module.settle_seconds() == 15.0
    monkeypatch.setenv("AIRFLOW__SCHEDULER__SCHEDULER_HEARTBEAT_SEC", "7")
    assert module.settle_seconds() == 21.0
    monkeypatch.setenv("AIRFLOW__EDL_WORKFLOWS__SETTLE_SECONDS", "0.5")
    made, start = trigger(server, begun(cluster, "Succeeded")), time.monotonic()

    asyncio.run(fire(made))

    assert time.monotonic() - start >= 0.5


def test_the_event_waits_for_the_log(
    server: ApiServerProcess, cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Airflow drops lines that it has not read when a trigger ends. So a trigger that writes training logs
    sends its event only when its last line is in the file; another one does not read files."""
    lines: list[str] = []
    awaited: list[str] = []

    async def await_line(_ti: Any, text: str) -> None:
        awaited.append(next(line for line in lines if line.startswith(text)))

    def info(text: str, *arguments: Any) -> None:
        lines.append(text % arguments if arguments else text)

    monkeypatch.setattr(written_logs, "await_line", await_line)
    monkeypatch.setattr(written_logs, "take_over_lines", lambda _ti: {})
    monkeypatch.setattr(ElasticJobTrigger, "log", SimpleNamespace(info=info, warning=info))
    handle = begun(cluster, "Succeeded")

    asyncio.run(fire(trigger(server, handle)))
    assert awaited == []
    asyncio.run(fire(trigger(server, handle, logs={})))

    assert awaited == [lines[-1]]


def test_requests_to_airflow_run_in_the_triggerers_loop(
    server: ApiServerProcess, cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Until 3.2, Airflow sends the requests of a trigger's thread with `async_to_sync`. They must run in the
    event loop of the triggerer: any other one mixes up the answers, and the triggerer dies."""
    loops: list[asyncio.AbstractEventLoop] = []

    async def request() -> None:
        loops.append(asyncio.get_running_loop())

    def requesting(function: Callable[..., Any]) -> Callable[..., Any]:
        def ask(*args: Any, **kwargs: Any) -> Any:
            async_to_sync(request)()
            return function(*args, **kwargs)

        return staticmethod(ask)

    monkeypatch.setattr(RuntimeTaskInstance, "get_task_states", requesting(lambda **_query: {}))
    monkeypatch.setattr(ElasticJobHook, "get_connection", requesting(ElasticJobHook.get_connection))
    monkeypatch.setattr(written_logs, "take_over_lines", requesting(lambda _ti: {}))
    monkeypatch.setattr(written_logs, "await_line", AsyncMock())
    made = trigger(server, begun(cluster, "Succeeded"), logs={})

    async def scenario() -> set[bool]:
        await kill(made)
        await fire(made)
        return {loop is asyncio.get_running_loop() for loop in loops}

    assert asyncio.run(scenario()) == {True}
    assert len(loops) >= 3


def test_on_kill_after_the_event_does_nothing(
    server: ApiServerProcess, cluster: Cluster, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`on_kill` does nothing after the event, since Airflow also calls it for a generator that has fired but
    not ended."""
    monkeypatch.setattr(
        RuntimeTaskInstance, "get_task_states", staticmethod(lambda **_q: {"run": {"task": "failed"}})
    )
    handle = begun(cluster)
    made = trigger(server, handle, deadline=time.time() - 1)

    async def scenario() -> None:
        generator = made.run()
        await anext(generator)
        await kill(made)

    asyncio.run(scenario())

    assert client.find(cluster, ELASTIC_JOBS, "mnist") is not None
