"""A standalone master as a process, and a stand-in for the controller: it starts the nodes that the master
wants."""

import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from edl_workflows.core.kubernetes import names
from tests.e2e.pods import IDS, JOB, Pods, free_ports

TOKEN = "e2e-token"
LOOK_SECONDS = 0.2


class Standalone:
    """One job: its master, and its nodes as the master wants them.

    Args:
        folder: for state and logs.
        nodes: what to begin with, as ``ps=2,worker=1``.
        command: the training program.
        ids: the most nodes of a type during the job's life.
    """

    def __init__(self, folder: Path, nodes: str, command: list[str], ids: int = IDS) -> None:
        self.folder = folder
        self._nodes = nodes
        (self._port,) = free_ports(1)
        self.pods = self._make_pods(f"127.0.0.1:{self._port}", command, ids)
        self._http = httpx.Client(
            base_url=f"http://127.0.0.1:{self._port}",
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=5,
            trust_env=False,
        )
        self._started: set[str] = set()
        self._closing = threading.Event()
        self._log = (folder / "master.log").open("ab")
        self.master = self._start_master()
        self._starter = threading.Thread(target=self._start_nodes, daemon=True)

    def __enter__(self) -> Self:
        self._starter.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing.set()
        self._starter.join(30)
        self.pods.close()
        self.master.kill()
        self.master.wait(10)
        self._log.close()
        self._http.close()
        if error is not None:
            sys.stderr.write(self.pods.logs())
            sys.stderr.write(f"== master\n{(self.folder / 'master.log').read_text()[-6000:]}")

    def kill_master(self) -> None:
        """SIGKILL to the master, and a new one in its place."""
        self.master.kill()
        self.master.wait(10)
        self.master = self._start_master()

    def status(self) -> dict[str, Any]:
        """What the master says; empty while it does not answer."""
        try:
            answer: dict[str, Any] = self._http.get("/v1/status").raise_for_status().json()
        except httpx.HTTPError:
            return {}
        return answer

    def step(self) -> int:
        """The newest global step."""
        return int((self.status().get("progress") or {}).get("step") or 0)

    def checkpoint(self) -> dict[str, Any]:
        """The newest checkpoint: ``uri`` and ``step``."""
        return self.status().get("checkpoint") or {}

    def leased(self) -> int:
        """Shards that are handed out and not answered."""
        return sum(dataset["shards_leased"] for dataset in self.status().get("datasets", []))

    def scale(self, name: str, spec: dict[str, Any]) -> None:
        """Post a manual ScalePlan."""
        manifest = {
            "apiVersion": names.API_VERSION,
            "kind": "ScalePlan",
            "metadata": {"name": name},
            "spec": {"ownerJob": JOB, **spec},
        }
        answer = self._http.post("/v1/scaleplans", json=manifest)
        assert answer.is_success, answer.text

    def plan(self, name: str) -> dict[str, Any]:
        """A plan's status."""
        try:
            return dict(
                self._http.get(f"/v1/scaleplans/{name}").raise_for_status().json().get("status") or {}
            )
        except httpx.HTTPError:
            return {}

    def wait(self, condition: Callable[[], Any], seconds: float, what: str) -> Any:
        """The condition's first true value; fails when there is none in time, or the master has ended in
        failure."""
        end = time.monotonic() + seconds
        while not (value := condition()):
            assert time.monotonic() < end, f"not within {seconds} s: {what}"
            assert self.master.poll() in (None, 0), (
                f"the master ended with {self.master.poll()} before: {what}"
            )
            time.sleep(0.05)
        return value

    def _make_pods(self, master: str, command: list[str], ids: int) -> Pods:
        return Pods(self.folder, master, TOKEN, command, ids)

    def _start_master(self) -> subprocess.Popen[bytes]:
        options = {
            "--job": JOB,
            "--nodes": self._nodes,
            "--port": str(self._port),
            "--state-dir": str(self.folder / "state"),
            "--heartbeat-timeout": "12",
        }
        command = [sys.executable, "-m", "edl_workflows", "master", "run", "--standalone"]
        return subprocess.Popen(
            [*command, *(word for option in options.items() for word in option)],
            env={**self.pods.env, names.ENV_JOB_TOKEN: TOKEN},
            stdout=self._log,
            stderr=self._log,
        )

    def _start_nodes(self) -> None:
        while not self._closing.wait(LOOK_SECONDS):
            for node in self.status().get("nodes", []):
                name = f"{node['type']}-{node['id']}"
                ended = node["released"] or node["status"] in ("Succeeded", "Failed", "Deleted")
                if name not in self._started and not ended:
                    self._started.add(name)
                    self.pods.start(node["type"], node["id"], node["rank"])
