"""Runs a private Airflow on this machine: its four services as child processes, and the REST calls that the
demo needs.

It does not use ``airflow standalone``, which leaves its child processes running when it gets SIGTERM.
"""

import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
import stamina

from edl_workflows.core.exceptions import UnavailableError
from tests.demo.processes import Child, free_port

SERVICES = ("api-server", "scheduler", "dag-processor", "triggerer")
# Log servers would listen on all interfaces. The API server reads the log files itself.
OPTIONS = {"scheduler": ("--skip-serve-logs",), "triggerer": ("--skip-serve-logs",)}
NO_SERVER = "1"
"""A port at which only root could listen."""
START_SECONDS = 300.0
API_LOCK_SECONDS = 2
REPEAT_SECONDS = 120.0
"""How long a request is repeated while the API server responds with a server error."""


def settings(home: Path, dags: Path, port: int) -> dict[str, str]:
    """Environment variables of a private Airflow: own home, own port, no login, no examples.

    Args:
        home: its folder, with the SQLite database and logs.
        dags: folder of DAG files.
        port: port of the API server, on loopback.
    """
    secret = secrets.token_hex(16)
    return {
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__SECRET_KEY": secret,
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": secret,
        "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{port}/execution/",
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__EDL_WORKFLOWS__SETTLE_SECONDS": "5",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        # A new or changed file is parsed within 5 s. By default, the others would be parsed every 30 s, which
        # takes a quarter of a core.
        "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "5",
        "AIRFLOW__DAG_PROCESSOR__MIN_FILE_PROCESS_INTERVAL": "300",
        # On a busy machine a service may lock the database for longer than SQLite's default time-out of 5 s.
        # Then the other services would end with an error.
        **database(home, seconds=120),
        # The API server also asks the log servers of running tasks. There is none at this port.
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": NO_SERVER,
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": NO_SERVER,
        "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": "True",
        "AIRFLOW__USAGE_DATA_COLLECTION__ENABLED": "False",
        # On a busy machine the API server's first response to a worker takes a minute. With the default of
        # five attempts of 5 s each, the task would fail.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "120",
    }


def database(home: Path, seconds: int) -> dict[str, str]:
    """The variable that names the database, and how long a statement waits for a lock of another process."""
    return {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout={seconds}"}


class Airflow:
    """Runs Airflow's services while the context lasts.

    Args:
        home: its folder, created if absent.
        dags: folder of DAG files.
        env: additional variables for its processes, such as connections.
    """

    def __init__(self, home: Path, dags: Path, env: Mapping[str, str]) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self._home = home
        self._env = {**os.environ, **settings(home, dags, self.port), **env}
        # Airflow's services start each other as `airflow`, without a path.
        self._env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{self._env.get('PATH', '')}"
        self._children: list[Child] = []
        self._http = httpx.Client(base_url=self.url, timeout=300)

    def __enter__(self) -> Self:
        self._home.mkdir(parents=True, exist_ok=True)
        try:
            self._run("db", "migrate")
            for service in SERVICES:
                # A request to the API server can block on another one (see `call`); its clients then repeat
                # the request.
                waits = database(self._home, API_LOCK_SECONDS) if service == "api-server" else {}
                log = self._home / f"{service}.log"
                self._children.append(Child(service, self._command(service), self._env | waits, log))
            self._await_api()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """End all services and all processes that they have started."""
        self._http.close()
        for child in self._children:
            child.terminate()
        for child in self._children:
            child.reap()

    def check(self) -> None:
        """Check that all services run.

        Raises:
            UnavailableError: one has ended; the message names its log.
        """
        for child in self._children:
            child.check()

    def _command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "airflow", *arguments, *OPTIONS.get(arguments[0], ())]

    def _run(self, *arguments: str) -> None:
        log = self._home / f"{arguments[0]}.log"
        with log.open("wb") as out:
            run = subprocess.run(
                self._command(*arguments),
                env=self._env,
                stdout=out,
                stderr=out,
                check=False,
                timeout=START_SECONDS,
            )
        if run.returncode:
            raise UnavailableError(
                f"airflow {' '.join(arguments)} ended with code {run.returncode}; its output is in {log}"
            )

    def _await_api(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            # The server does not accept connections until it has started.
            with contextlib.suppress(httpx.TransportError):
                token = self._http.get("/auth/token")
                if token.is_success:
                    self._http.headers["Authorization"] = f"Bearer {token.json()['access_token']}"
                    return
            time.sleep(0.5)
        raise UnavailableError(
            f"Airflow's API server did not respond on {self.url} within {START_SECONDS:.0f} s"
        )

    def call(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Call Airflow's REST API (``/api/v2``).

        A request that gets a server error is repeated: Airflow has rolled it back. Such errors occur because
        Airflow's event loop writes each changing request into the audit log first. That fails if a worker's
        request holds SQLite's lock at this time and itself waits for the event loop.

        Raises:
            UnavailableError: it rejected the request or did not respond.
        """
        try:
            for attempt in stamina.retry_context(_is_server_error, attempts=None, timeout=REPEAT_SECONDS):
                with attempt:
                    answer = self._http.request(method, f"/api/v2{path}", json=body)
                    answer.raise_for_status()
            result: dict[str, Any] = answer.json() if answer.content else {}
        except httpx.HTTPError as error:
            raise UnavailableError(f"Airflow API {method} {path}: {error}") from error
        return result

    def await_dag(self, dag_id: str) -> None:
        """Wait until a DAG has been parsed and stored.

        Raises:
            UnavailableError: the DAG has import errors, or did not appear in time.
        """
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            self.check()
            if any(dag["dag_id"] == dag_id for dag in self.call("GET", "/dags?limit=100")["dags"]):
                return
            errors = self.call("GET", "/importErrors")["import_errors"]
            if errors:
                raise UnavailableError(f"{errors[0]['filename']}: import failed: {errors[0]['stack_trace']}")
            time.sleep(0.5)
        raise UnavailableError(f"Airflow did not load the DAG {dag_id!r} within {START_SECONDS:.0f} s")

    def trigger(self, dag_id: str, conf: Mapping[str, Any]) -> str:
        """Start a DAG run and return its id."""
        run_id: str = self.call(
            "POST", f"/dags/{dag_id}/dagRuns", {"logical_date": None, "conf": dict(conf)}
        )["dag_run_id"]
        return run_id

    def runs(self, dag_id: str) -> list[dict[str, Any]]:
        """The runs of a DAG, newest first."""
        runs: list[dict[str, Any]] = self.call("GET", f"/dags/{dag_id}/dagRuns?order_by=-run_after")[
            "dag_runs"
        ]
        return runs

    def tasks(self, dag_id: str, run_id: str) -> list[dict[str, Any]]:
        """The task instances of a run."""
        return list(
            self.call("GET", f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances?limit=200")["task_instances"]
        )

    def result(self, dag_id: str, run_id: str, task_id: str) -> Any:
        """The return value of a task (its XCom ``return_value``)."""
        path = f"/dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value"
        return self.call("GET", path)["value"]


def _is_server_error(error: Exception) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.is_server_error
