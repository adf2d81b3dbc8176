"""The fake master and the pod's environment of the library's tests, and agents as processes."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.services.agent.agent_process import AGENT, Agent, Start
from tests.unit.training.conftest import connected, environment, master, pod_env

__all__ = ["connected", "environment", "master", "pod_env"]


@pytest.fixture
def start(pod_env: dict[str, str], tmp_path: Path) -> Iterator[Start]:
    """Starts agents with a Python program; killed at the end."""
    agents: list[Agent] = []

    def run(program: str, *options: str, **env: str) -> Agent:
        agent = subprocess.Popen(
            [*AGENT, *options, "--", sys.executable, "-u", "-c", program, str(tmp_path)],
            env={**os.environ, **pod_env, **env},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        agents.append(agent)
        return agent

    yield run
    for agent in agents:
        agent.kill()
        agent.communicate(timeout=240)
