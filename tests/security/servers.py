"""Every server of ours as a process of its own, as it runs in production, with what attacks need to know of
it."""

import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests
import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.local import daemon
from edl_workflows.testing import free_port
from tests.local_cluster import LocalCluster, Settings
from tests.unit.services.brain.support import OPERATOR, tokens_file

START_SECONDS = 240.0
ANSWER_SECONDS = 60.0
TOKEN = "attacked"


@dataclass(frozen=True)
class Server:
    """One server under attack.

    Attributes:
        name: of its rows.
        port: on 127.0.0.1.
        token: that lets in to everything.
        process: that serves.
        log: what the process prints.
        ping: a path that is answered at once.
        paths: some that it serves, for requests that go further than the router.
        authority: certificate of an HTTPS server's authority; None for HTTP.
    """

    name: str
    port: int
    token: str
    process: psutil.Process
    log: Path
    ping: str
    paths: tuple[str, ...]
    authority: Path | None = None

    @property
    def url(self) -> str:
        """Without a slash at its end."""
        return f"{'https' if self.authority else 'http'}://127.0.0.1:{self.port}"

    @property
    def lives(self) -> bool:
        """Whether the process that was started still runs."""
        return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    @property
    def memory(self) -> float:
        """Resident, in MiB; 0 if it ended."""
        return self.process.memory_info().rss / 2**20 if self.lives else 0.0

    @property
    def verify(self) -> str | bool:
        """As `requests` takes it."""
        return str(self.authority) if self.authority else True

    def ask(self, method: str, path: str, body: Any = None) -> requests.Response:
        """One request with the token."""
        headers = {"Authorization": f"Bearer {self.token}"}
        return requests.request(
            method, self.url + path, json=body, headers=headers, verify=self.verify, timeout=ANSWER_SECONDS
        )

    def connect(self, seconds: float = 10.0) -> socket.socket:
        """A connection, with the TLS handshake done where there is one."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=seconds)
        if self.authority is None:
            return plain
        context = ssl.create_default_context(cafile=str(self.authority))
        return context.wrap_socket(plain, server_hostname="127.0.0.1")


@contextlib.contextmanager
def _process(log: Path, *arguments: str, **environment: str) -> Iterator[psutil.Process]:
    with log.open("ab") as out:
        child = subprocess.Popen(
            [sys.executable, "-m", *arguments],
            stdout=out, stderr=out, env=os.environ | environment, start_new_session=True,
        )  # fmt: skip
    try:
        yield psutil.Process(child.pid)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _serving(server: Server) -> Server:
    deadline = time.monotonic() + START_SECONDS
    while True:
        assert server.lives, f"{server.name} did not start: {server.log.read_text()}"
        try:
            server.connect().close()
        except OSError:
            assert time.monotonic() < deadline, f"{server.name} does not listen: {server.log.read_text()}"
            time.sleep(0.05)
        else:
            return server


@contextlib.contextmanager
def master(folder: Path) -> Iterator[list[Server]]:
    """The master of a job without a cluster."""
    port, log = free_port(), folder / "master.log"
    place = [
        "--port",
        str(port),
        "--state-dir",
        str(folder / "master"),
        "--nodes",
        "ps=1,worker=2",
        "--verdict-wait",
        "0",
    ]
    command = ["edl_workflows", "master", "run", "--standalone", *place]
    paths = ("/v1/nodes", "/v1/nodes/heartbeat", "/v1/datasets/train/lease", "/v1/scaleplans", "/v1/status")
    with _process(log, *command, **{names.ENV_JOB_TOKEN: TOKEN}) as process:
        yield [_serving(Server("master", port, TOKEN, process, log, "/healthz", paths))]


@contextlib.contextmanager
def brain(folder: Path) -> Iterator[list[Server]]:
    """Brain on SQLite, and the endpoints for probes and metrics that all long-running processes have."""
    port, health, log = free_port(), free_port(), folder / "brain.log"
    store = ["--database-url", f"sqlite:///{folder}/brain.db", "--tokens-file", str(tokens_file(folder))]
    command = [
        "edl_workflows",
        "brain",
        "run",
        *store,
        "--port",
        str(port),
        "--metrics-port",
        str(health),
    ]
    paths = ("/", "/v1/jobs", "/v1/metrics", "/v1/optimize", "/v1/cluster", "/v1/jobs/uid-1")
    with _process(log, *command) as process:
        yield [
            _serving(Server("brain", port, OPERATOR, process, log, "/healthz", paths)),
            _serving(Server("health", health, "", process, log, "/healthz", ("/metrics", "/readyz"))),
        ]


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[list[Server]]:
    """The embedded cluster with its controller, and a DI server beside it."""
    local = LocalCluster(folder / "cluster", Settings(controller=True))
    paths = (
        "/api/v1/namespaces/default/pods",
        "/api/v1/nodes",
        "/apis",
        "/openapi/v2",
        "/api/v1/pods?watch=1",
    )
    try:
        local.up()
        found = daemon.find(local.folder)
        assert found is not None
        config = yaml.safe_load(found.kubeconfig.read_text())
        api = Server(
            "embedded", int(found.url.rpartition(":")[2]), config["users"][0]["user"]["token"],
            psutil.Process(found.pid), daemon.log_file(local.folder), "/readyz", paths,
            local.folder / "pki" / "ca.crt",
        )  # fmt: skip
        with _di_server(folder, found.kubeconfig) as di_server:
            yield [_serving(api), di_server]
    finally:
        local.down()


@contextlib.contextmanager
def _di_server(folder: Path, kubeconfig: Path) -> Iterator[Server]:
    port, log = free_port(), folder / "di-server.log"
    place = ["--kubeconfig", str(kubeconfig), "--port", str(port), "--metrics-port", "0", "--token", TOKEN]
    paths = ("/v2alpha1/default.walk.0/replicas", "/v2alpha1/default.walk.0/profilings")
    with _process(log, "edl_workflows", "di-server", "run", "-A", *place) as process:
        yield _serving(Server("di-server", port, TOKEN, process, log, "/", paths))


@contextlib.contextmanager
def _small(name: str, folder: Path, paths: tuple[str, ...]) -> Iterator[list[Server]]:
    port, log = free_port(), folder / f"{name}.log"
    (folder / name).mkdir()
    with _process(log, "tests.security.serve", name, str(folder / name), str(port), TOKEN) as process:
        yield [_serving(Server(name, port, TOKEN, process, log, "/", paths))]


@contextlib.contextmanager
def every(folder: Path) -> Iterator[dict[str, Server]]:
    """All servers by name, over state in `folder`."""
    newest = ("/v1/snapshots/newest", "/v1/snapshots/checkpoint-0")
    with contextlib.ExitStack() as stack:
        found = [
            *stack.enter_context(master(folder)),
            *stack.enter_context(brain(folder)),
            *stack.enter_context(embedded(folder)),
            *stack.enter_context(_small("plugin", folder, ("/api/v1/template.execute",))),
            *stack.enter_context(_small("peers", folder, newest)),
        ]
        yield {server.name: server for server in found}


NAMES = ("master", "brain", "health", "embedded", "di-server", "plugin", "peers")
"""Of all servers, for parameters of tests."""
