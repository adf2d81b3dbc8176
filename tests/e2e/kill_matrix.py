"""What can befall a task that has begun a job, row by row, on a real Airflow and the embedded cluster.

All rows share one Airflow and go through the same phases: every run is triggered and has begun its job; the
blows that fall while all services live; the blows that fall while no triggerer lives, or right after the
worker was killed; the reaper; and last the jobs that are left are told to end. Meanwhile each container has
written when it began, and its process's id.
"""

import contextlib
import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import airflow
import httpx
import psutil
from packaging.version import Version

from edl_workflows.airflow.hooks.task_object import OBJECT_KEY
from edl_workflows.core.exceptions import EdlError
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION
from edl_workflows.pipelines.waiting.ownership import annotation_of, resource_of
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, Scope
from tests import local_cluster
from tests.airflow.lineage_events import read_events
from tests.demo.airflow import Airflow
from tests.demo.processes import Child
from tests.e2e.kill_matrix_dags import DAGS, GRACE_SECONDS

SECONDS = 600.0
"""For a state to come about: a few seconds on an idle machine, minutes on a busy one."""
LOOK_SECONDS = 0.5
INSTALLATION = "matrix"
RESTARTS_CLEARED = Version(airflow.__version__) >= Version("3.1")
"""Airflow 3.0 leaves a task that was cleared while it ran in the state ``restarting`` until it is cleared
again (apache/airflow#55045)."""
RETRIES_KILLED = Version(airflow.__version__) >= Version("3.1.2")
"""Older versions fail a task whose process was killed, whatever its retries (apache/airflow#55753)."""
REAPER = "reaper"
LINEAGE = "events"
"""OpenLineage's events of all rows."""

Mode = Literal["deferred", "sync"]
Shape = Literal["waits", "pipeline", "mapped", "leaks", "leaves"]
"""A task that waits for its job; one that does not, with a sensor, teardowns and a task behind, also in a
mapped group, with a sensor, and alone."""
PIPELINES = ("pipeline", "mapped")
"""Shapes whose run is followed to its end."""
Gone = Literal["", "by itself", "by the reaper"]
When = Literal["now", "outage"]


@dataclass(frozen=True)
class Row:
    """One thing that befalls one task.

    Attributes:
        befalls: what does.
        mode: where the task waits meanwhile.
        blow: makes it befall.
        when: while all services live, or while no triggerer does.
        gone: who ends the job; "" if it goes on until it is told to end.
        attempt: in which the task succeeds with the job that goes on; 0 if it doesn't follow it any more.
        shape: of the DAG.
        on_kill_action, retries, seconds: of the task; a `completion_timeout` of 0 is none. Of a pipeline it
            is the ``dagrun_timeout``.
    """

    befalls: str
    mode: Mode
    blow: Callable[["Matrix", "Row"], None]
    when: When = "now"
    gone: Gone = ""
    attempt: int = 0
    shape: Shape = "waits"
    on_kill_action: str = "delete"
    retries: int = 1
    seconds: int = 0

    @property
    def name(self) -> str:
        """Of its DAG."""
        return f"{self.mode}-{self.befalls}"

    @property
    def waiting_task(self) -> str:
        """The task that waits for the job; "" if none does."""
        return {"waits": "train", "leaves": ""}.get(self.shape, "trained")


@dataclass
class Found:
    """What became of a row.

    Attributes:
        uid: of the job that it began.
        trouble: why the row could not be played to its end.
        reported: what the reaper said of the job when it only reported.
        alive: whether the job, and its process, went on before and after the reaper.
        begun: processes of containers, in order.
        state, attempt: of the waiting task in the end; "" of a run that is no more.
        run: state of the run in the end; "" if it is no more, or nobody waited for it.
    """

    uid: str = ""
    trouble: str = ""
    reported: str = ""
    alive: list[bool] = field(default_factory=list)
    begun: list[int] = field(default_factory=list)
    state: str = ""
    attempt: int = 0
    run: str = ""


# --- Blows ---


def nothing(_matrix: "Matrix", _row: Row) -> None:
    """Nothing befalls it."""


def clear(matrix: "Matrix", row: Row) -> None:
    """As a user does on the task's page, twice where Airflow needs it; the second attempt waits again
    afterwards."""
    process = matrix.task(row, row.waiting_task)["pid"]
    _clear_once(matrix, row)
    if row.mode == "sync" and not RESTARTS_CLEARED:
        matrix.await_restarting(row, process)
        _clear_once(matrix, row)
    matrix.await_waiting(row, attempt=2)


def _clear_once(matrix: "Matrix", row: Row) -> None:
    body = {
        "dry_run": False,
        "dag_run_id": matrix.runs[row.name],
        "task_ids": ["train"],
        "only_failed": False,
    }
    matrix.airflow.call("POST", f"/dags/{row.name}/clearTaskInstances", body | {"reset_dag_runs": True})


def mark_failed(matrix: "Matrix", row: Row) -> None:
    """As a user does on the task's page."""
    matrix.mark(row, "failed")


def mark_success(matrix: "Matrix", row: Row) -> None:
    """As a user does on the task's page."""
    matrix.mark(row, "success")


def fail_run(matrix: "Matrix", row: Row) -> None:
    """As a user does on the run's page."""
    matrix.airflow.call("PATCH", matrix.run_path(row), {"state": "failed"})


def fail_and_delete_run(matrix: "Matrix", row: Row) -> None:
    """At once, as a script does. Airflow deletes no run that is running."""
    matrix.hide_from_scheduler(row)
    fail_run(matrix, row)
    matrix.airflow.call("DELETE", matrix.run_path(row))


def outlive(matrix: "Matrix", row: Row) -> None:
    """The run has taken longer than its ``dagrun_timeout``: it began a day ago."""
    with contextlib.closing(sqlite3.connect(matrix.folder / "home" / "airflow.db", timeout=120)) as database:
        begun = "UPDATE dag_run SET start_date = datetime('now', '-1 day') WHERE dag_id = ?"
        database.execute(begun, (row.name,))
        database.commit()


def kill_worker(matrix: "Matrix", row: Row) -> None:
    """The task's process dies without a word; the next attempt waits, if Airflow makes one."""
    os.kill(matrix.task(row, "train")["pid"], signal.SIGKILL)
    if row.attempt:
        matrix.await_waiting(row, attempt=2)
    else:
        matrix.await_state(row, "train", ["failed"])


def unheard(blow: Callable[["Matrix", Row], None]) -> Callable[["Matrix", Row], None]:
    """The same blow, with nobody there to hear of it: no triggerer lives, and the worker is killed right
    before, with its supervisor."""

    def struck(matrix: "Matrix", row: Row) -> None:
        if row.mode == "sync":
            task = psutil.Process(matrix.task(row, row.waiting_task)["pid"])
            supervisor = task.parent()
            assert supervisor is not None
            supervisor.kill()
            task.kill()
        blow(matrix, row)

    return struck


def rows_of(mode: Mode) -> list[Row]:
    """All rows of a mode."""
    lost: Callable[[Matrix, Row], None] = kill_worker if mode == "sync" else nothing
    failed = mode == "sync" and not RETRIES_KILLED
    return [
        Row("healthy", mode, nothing, attempt=1),
        Row("cleared", mode, clear, attempt=2),
        Row("marked-failed", mode, mark_failed, gone="by itself"),
        Row("marked-success", mode, mark_success, gone="by itself"),
        Row("run-failed", mode, fail_run, gone="by itself"),
        Row("run-failed-and-deleted", mode, fail_and_delete_run, gone="by itself"),
        Row("out-of-time", mode, nothing, gone="by itself", retries=0, seconds=30),
        # Of a deferred task the triggerer is killed in each row: another takes its triggers over.
        Row("killed", mode, lost, gone="by the reaper" if failed else "",
            attempt=0 if failed else 2 if mode == "sync" else 1),
        Row("killed-and-marked-failed", mode, unheard(mark_failed), "outage", gone="by the reaper"),
        Row("killed-and-run-deleted", mode, unheard(fail_and_delete_run), "outage", gone="by the reaper"),
        Row("killed-but-kept", mode, unheard(mark_failed), "outage", on_kill_action="keep"),
        Row("pipeline-run-failed", mode, fail_run, gone="by itself", shape="pipeline"),
        Row("pipeline-run-out-of-time", mode, outlive, gone="by itself", shape="pipeline", seconds=3600),
        Row("mapped-run-failed", mode, fail_run, gone="by itself", shape="mapped"),
        Row("mapped-run-out-of-time", mode, outlive, gone="by itself", shape="mapped", seconds=3600),
        Row("leaking-run-failed", mode, fail_run, gone="by itself", shape="leaks"),
        Row("left-by-a-run-that-succeeded", mode, nothing, shape="leaves"),
    ]  # fmt: skip


# --- The matrix ---


@dataclass
class Matrix:
    """Airflow's services, the cluster and the runs.

    Attributes:
        runs: by row, the id of its run.
        found: by row, what became of it.
    """

    airflow: Airflow
    cluster: Cluster
    rows: Sequence[Row]
    folder: Path
    runs: dict[str, str] = field(default_factory=dict)
    found: dict[str, Found] = field(default_factory=dict)

    def play(self) -> None:
        """All phases."""
        for row in self.rows:
            self.found[row.name] = Found()
            self.airflow.await_dag(row.name)
            self.runs[row.name] = self.airflow.trigger(row.name, {})
        self._each(self.rows, self._begin)
        self._each([row for row in self.rows if row.when == "now"], lambda row: row.blow(self, row))
        self._each([row for row in self.rows if row.gone == "by itself"], self._await_end)
        with self.no_triggerer():
            self._each([row for row in self.rows if row.when == "outage"], lambda row: row.blow(self, row))
        self._each(self.rows, self._look)
        self._reap()
        self._each(self.rows, self._look)
        self._each(self.rows, self._finish)

    def _each(self, rows: Sequence[Row], act: Callable[[Row], None]) -> None:
        """For each row that is not in trouble yet; one's trouble is no other's."""
        for row in rows:
            if not self.found[row.name].trouble:
                try:
                    act(row)
                except (AssertionError, EdlError, httpx.HTTPError, psutil.Error, OSError) as error:
                    self.found[row.name].trouble = f"{act.__name__}: {type(error).__name__}: {error}"

    def _begin(self, row: Row) -> None:
        self.await_that(lambda: bool(self._processes(row)), lambda: f"a container of {row.name}")
        job = self.job(row)
        assert job is not None or row.seconds, (
            f"{row.name} has a container and no job"
        )  # its time may be up by now
        self.found[row.name].uid = str(job["metadata"]["uid"]) if job else self._uid_of_task(row)
        self.await_waiting(row, attempt=1)
        if has_lineage():  # a job's container may begin before its worker has told of the job
            self.await_that(lambda: "START" in self.lineage_types(row), lambda: f"START of {row.name}")

    def _uid_of_task(self, row: Row) -> str:
        """The uid of the job that the task began, from the task's XCom: the job itself is gone."""
        path = f"{self.run_path(row)}/taskInstances/train/xcomEntries/{OBJECT_KEY}"
        return str(self.airflow.call("GET", path)["value"]["uid"])

    def _await_end(self, row: Row) -> None:
        self.await_that(lambda: self.job(row) is None, lambda: f"the end of the job of {row.name}")
        if row.shape in PIPELINES:
            self.await_that(
                lambda: self._run_state(row) in ("success", "failed"), lambda: f"{row.name}'s run"
            )
            self.found[row.name].run = self._run_state(row)
        if (
            row.mode == "deferred" and has_lineage()
        ):  # its triggerer is killed next, and a worker ends by itself
            self.await_that(lambda: self.lineage_types(row)[-1:] == ["ABORT"], lambda: f"ABORT of {row.name}")

    def _look(self, row: Row) -> None:
        """Whether the very job goes on, with its process."""
        found, job = self.found[row.name], self.job(row)
        same = (
            job is not None
            and job["metadata"]["uid"] == found.uid
            and "deletionTimestamp" not in job["metadata"]
        )
        found.begun = self._processes(row)
        found.alive.append(same)

    def _finish(self, row: Row) -> None:
        """Tell the job to end, wait for the task that follows it, and note what is left."""
        found = self.found[row.name]
        (self.folder / f"{row.name}.end").touch()
        if row.attempt:
            self.await_state(row, row.waiting_task, ("success", "failed"))
            task = self.task(row, row.waiting_task)
            found.state, found.attempt = task["state"], task["try_number"]
        self.await_that(lambda: not self._living(row), lambda: f"the end of the processes of {row.name}")
        found.begun = self._processes(row)

    def _reap(self) -> None:
        """Report; then note; then, after the grace time, cancel; and once more, for nothing."""
        told = self._reap_once(report_only=True)
        for _turn in ("note", "cancel", "find nothing"):
            time.sleep(GRACE_SECONDS)
            self._reap_once(report_only=False)
        for row in self.rows:
            mine = [one for one in told["objects"] if f"/{row.name}/" in one["owner"]]
            self.found[row.name].reported = mine[0]["verdict"] if mine else ""

    def _reap_once(self, *, report_only: bool) -> dict[str, Any]:
        run = self.airflow.trigger(REAPER, {"report_only": report_only})
        ended = ("success", "failed")
        self.await_that(
            lambda: self.airflow.tasks(REAPER, run)[0]["state"] in ended, lambda: "the reaper's end"
        )
        return dict(self.airflow.result(REAPER, run, "reap"))

    def lineage(self, row: Row) -> list[dict[str, Any]]:
        """The OpenLineage events of the row's job, in order."""
        events = read_events(self.folder / LINEAGE)
        return [event for event in events if event["job"]["name"] == f"{row.name}.train.tfjob"]

    def lineage_types(self, row: Row) -> list[str]:
        """The types of these events."""
        return [str(event["eventType"]) for event in self.lineage(row)]

    # What blows are made of.

    def job(self, row: Row) -> Object | None:
        """The row's job."""
        found = client.list_objects(self.cluster, Scope(resource_of("TFJob"), self.cluster.namespace)).items
        mark = f"airflow@{INSTALLATION}/{row.name}/"
        return next((job for job in found if annotation_of(job, OWNER_ANNOTATION).startswith(mark)), None)

    def task(self, row: Row, task_id: str) -> dict[str, Any]:
        """A task instance of the row's run."""
        tasks = self.airflow.tasks(row.name, self.runs[row.name])
        return next(task for task in tasks if task["task_id"] == task_id)

    def run_path(self, row: Row) -> str:
        """The row's run in Airflow's API."""
        return f"/dags/{row.name}/dagRuns/{self.runs[row.name]}"

    def _run_state(self, row: Row) -> str:
        return str(self.airflow.call("GET", self.run_path(row))["state"])

    def mark(self, row: Row, state: str) -> None:
        """Give the waiting task a state, as a user does on its page."""
        path = f"{self.run_path(row)}/taskInstances/{row.waiting_task}"
        self.airflow.call("PATCH", path, {"new_state": state})

    def hide_from_scheduler(self, row: Row) -> None:
        """Pause the row's DAG, and wait until the scheduler has no hold of its run: Airflow 3.3's ends when a
        run that it looks at is deleted (ObjectDeletedError). It has done a round when it has said that it
        lives."""
        self.airflow.call("PATCH", f"/dags/{row.name}", {"is_paused": True})
        self._await_round()  # the one under way
        self._await_round()

    def _await_round(self) -> None:
        last = self._heartbeat()
        self.await_that(lambda: self._heartbeat() != last, lambda: "a round of the scheduler")

    def _heartbeat(self) -> str:
        return str(self.airflow.call("GET", "/monitor/health")["scheduler"]["latest_scheduler_heartbeat"])

    def await_waiting(self, row: Row, attempt: int) -> None:
        """Wait until the task that waits for the job does so in this attempt; of a deferred one its trigger
        has begun."""
        if not row.waiting_task:
            return
        wanted = ["deferred"] if row.mode == "deferred" else ["running", "up_for_reschedule"]
        if row.seconds:
            wanted += ["failed", "skipped"]  # on a busy machine its time may be up by now
        self.await_state(row, row.waiting_task, wanted, attempt)
        if row.mode == "deferred":
            # A trigger that no triggerer has begun is not told of a kill: the rows of the outage are about
            # that.
            task = f"home/logs/dag_id={row.name}/**/task_id={row.waiting_task}"
            log = f"{task}/**/attempt={attempt}.log.trigger.*"
            self.await_that(lambda: any(self.folder.glob(log)), lambda: f"a trigger of {row.name}")

    def await_restarting(self, row: Row, process: int) -> None:
        """Wait until the process of a cleared task has ended and left it in the state ``restarting``."""
        self.await_that(lambda: not psutil.pid_exists(process), lambda: f"the end of {row.name}'s process")
        self.await_state(row, row.waiting_task, ["restarting"])

    @contextlib.contextmanager
    def no_triggerer(self) -> Iterator[None]:
        """The triggerer is killed; when the context ends another one starts."""
        children = self.airflow._children
        index = next(index for index, child in enumerate(children) if child.name == "triggerer")
        old = children.pop(index)
        old._signal(signal.SIGKILL)
        old.reap()
        try:
            yield
        finally:
            command = self.airflow._command("triggerer")
            children.insert(index, Child("triggerer", command, self.airflow._env, old.log))

    def await_that(self, holds: Callable[[], bool], what: Callable[[], str]) -> None:
        """Wait for a condition."""
        deadline = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < deadline, f"not within {SECONDS:.0f} s: {what()}"
            self.airflow.check()
            time.sleep(LOOK_SECONDS)

    def await_state(self, row: Row, task_id: str, states: Sequence[str], attempt: int = 0) -> None:
        """Wait for a state of a task, in an attempt if one is given."""

        def holds() -> bool:
            task = self.task(row, task_id)
            return task["state"] in states and attempt in (0, task["try_number"])

        self.await_that(holds, lambda: f"{task_id} of {row.name} {states}; it is {self.task(row, task_id)}")

    def _processes(self, row: Row) -> list[int]:
        path = self.folder / f"{row.name}.begun"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    def _living(self, row: Row) -> list[int]:
        return [pid for pid in self._processes(row) if psutil.pid_exists(pid)]


def has_lineage() -> bool:
    """Whether Airflow's OpenLineage provider is recent enough for events of jobs."""
    try:
        from airflow.providers.openlineage.api.core import is_openlineage_active  # noqa: F401
    except ImportError:
        return False
    return True


@contextlib.contextmanager
def played(folder: Path, rows: Sequence[Row]) -> Iterator[Matrix]:
    """The matrix of some rows, played to its end."""
    (folder / "dags").mkdir()
    (folder / "dags" / "rows.py").write_text(DAGS)
    keys = ("name", "shape", "on_kill_action", "retries", "seconds")
    described = [
        {key: getattr(row, key) for key in keys} | {"deferrable": row.mode == "deferred"} for row in rows
    ]
    (folder / "rows.json").write_text(json.dumps(described))
    with local_cluster.cluster(folder / "cluster", local_cluster.Settings(controller=True)) as local:
        extra = {
            "kube_config_path": str(local.kubeconfig),
            "namespace": "default",
            "edl_installation": INSTALLATION,
        }
        env = {
            "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps({"conn_type": "kubernetes", "extra": extra}),
            "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps(
                {"type": "file", "log_file_path": str(folder / LINEAGE), "append": False}
            ),
            # A task that waits in its worker holds it, and the reaper needs one as well.
            "AIRFLOW__CORE__PARALLELISM": str(4 + sum(row.mode == "sync" for row in rows)),
        }
        with Airflow(folder / "home", folder / "dags", env) as airflow:
            matrix = Matrix(airflow, local.client(), rows, folder)
            matrix.play()
            yield matrix
