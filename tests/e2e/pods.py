"""Pods of a job as plain processes: agents with the environment, and the addresses, that the embedded cluster
gives."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.addresses import PORT_VARIABLE_PREFIX, SERVICE_MAP_VARIABLE
from edl_workflows.local.network.host_ports import HostPorts
from edl_workflows.training.checkpoints.slot_memory import SHARED_MEMORY

JOB = "demo"
NAMESPACE = "default"
IDS = 32
PORTS = 3
"""Of a node: two for training processes, by parity, and its agent's."""


def free_ports(count: int) -> list[int]:
    """TCP ports that nobody listens on now."""
    probes = [socket.socket() for _ in range(count)]
    for probe in probes:
        probe.bind(("127.0.0.1", 0))
    ports: list[int] = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class Pods:
    """The running agents of one job.

    Args:
        folder: for logs.
        master: ``host:port`` of the job's master.
        token: of the job.
        command: the training program.
        ids: addresses are made for so many nodes of a type.
    """

    def __init__(self, folder: Path, master: str, token: str, command: Sequence[str], ids: int = IDS) -> None:
        self.folder = folder
        self.groups: dict[str, int] = {}
        """The group under whose id a node's processes run, by node."""
        # Agents that are killed leave their copies behind.
        self._memory = tempfile.mkdtemp(prefix="edl-tests-", dir=SHARED_MEMORY)
        self._command = list(command)
        self._agents: dict[str, subprocess.Popen[bytes]] = {}
        self._host_ports = HostPorts(seed=os.getpid())
        self._ports = self._assign(ids)
        self._map = folder / "services.json"
        self._map.write_text(
            json.dumps(
                {
                    _address(kind, node_id, which): f"127.0.0.1:{port}"
                    for (kind, node_id, which), port in self._ports.items()
                }
            )
        )
        self.env = {
            **os.environ,
            SERVICE_MAP_VARIABLE: str(self._map),
            names.ENV_MASTER_ADDR: master,
            names.ENV_JOB_TOKEN: token,
            names.ENV_JOB_NAME: JOB,
            names.ENV_NAMESPACE: NAMESPACE,
            names.ENV_SHARED_MEMORY: self._memory,
            "PYTHONUNBUFFERED": "1",
        }

    def environment(self, kind: str, node_id: int, rank: int) -> dict[str, str]:
        """What a node's agent gets."""
        env = {
            **self.env,
            names.ENV_POD_NAME: names.node_name(JOB, kind, node_id),
            names.ENV_NODE_TYPE: kind,
            names.ENV_NODE_ID: str(node_id),
            names.ENV_NODE_RANK: str(rank),
        }
        for which, port in enumerate((*names.NODE_PORTS[kind], names.AGENT_PORT)):
            env[f"{PORT_VARIABLE_PREFIX}{port}"] = str(self._ports[kind, node_id, which])
        return env

    def start(self, kind: str, node_id: int, rank: int) -> None:
        """Start a node's agent."""
        env = self.environment(kind, node_id, rank)
        with (self.folder / f"{kind}-{node_id}.log").open("wb") as log:
            self._agents[f"{kind}-{node_id}"] = subprocess.Popen(
                [sys.executable, "-m", "edl_workflows", "agent", "run", "--", *self._command],
                env=env,
                stdout=log,
                stderr=log,
                start_new_session=True,
                group=self.groups.get(f"{kind}-{node_id}"),
            )

    def kill(self, node: str) -> None:
        """SIGKILL to the agent, as when a machine is lost; its training process goes with it."""
        self._agents[node].kill()
        self._agents[node].wait(10)

    def terminate(self, node: str) -> None:
        """SIGTERM to the agent, as when a pod is deleted."""
        self._agents[node].terminate()

    def started(self, node: str) -> bool:
        """Whether the node's agent was started."""
        return node in self._agents

    def code(self, node: str) -> int | None:
        """Exit code of the agent; None while it runs."""
        return self._agents[node].poll()

    def log(self, node: str) -> str:
        """What the node has written."""
        return (self.folder / f"{node}.log").read_text(errors="replace")

    def logs(self) -> str:
        """The end of what all nodes have written, for a failed test."""
        return "\n".join(f"== {node}\n{self.log(node)[-3000:]}" for node in self._agents)

    def close(self) -> None:
        """End all that runs."""
        for agent in self._agents.values():
            try:
                os.killpg(agent.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for agent in self._agents.values():
            agent.wait(10)
        shutil.rmtree(self._memory, ignore_errors=True)
        self._host_ports.close()

    def _assign(self, ids: int) -> dict[tuple[str, int, int], int]:
        """Ports that stay free until a node with this id runs: outgoing connections use none of them."""
        keys = [
            (kind, node_id, which)
            for kind in (names.PS_TYPE, names.WORKER_TYPE)
            for node_id in range(ids)
            for which in range(PORTS)
        ]
        assigned: dict[tuple[str, int, int], int] = {}
        for key in keys:
            assigned[key] = self._host_ports.allocate(frozenset(assigned.values()))
        return assigned


def _address(kind: str, node_id: int, which: int) -> str:
    address = names.node_address(JOB, NAMESPACE, kind, node_id, which)
    return address if which < PORTS - 1 else f"{address.rpartition(':')[0]}:{names.AGENT_PORT}"
