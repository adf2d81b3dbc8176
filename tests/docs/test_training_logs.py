"""The snippet about logs in docs/how-to/write-a-training-program.md runs."""

import json
import os
import subprocess
import sys
from pathlib import Path

from edl_workflows.core.kubernetes import names

ROOT = Path(__file__).parents[2]
PROGRAM = """
from types import SimpleNamespace
from edl_workflows.training.environment import NodeEnvironment
from tests.docs.training_logs import train

train(SimpleNamespace(environment=NodeEnvironment.read(), version=3))
"""
"""Trains without a master."""


def test_a_programs_lines_say_whose_they_are() -> None:
    """A log line is JSON with the event, job, pod, node, rank and cluster version."""
    pod = {
        names.ENV_MASTER_ADDR: "127.0.0.1:1",
        names.ENV_JOB_TOKEN: "t",
        names.ENV_JOB_NAME: "digits",
        names.ENV_NAMESPACE: "default",
        names.ENV_POD_NAME: "digits-edljob-worker-4",
        names.ENV_NODE_TYPE: "worker",
        names.ENV_NODE_ID: "4",
        names.ENV_NODE_RANK: "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=ROOT,
        env={**os.environ, **pod},
        capture_output=True,
        text=True,
        timeout=60,
    )
    line = json.loads(run.stderr)
    assert (
        line.items()
        >= {
            "event": "epoch 2",
            "job": "digits",
            "node": "worker-4",
            "rank": 1,
            "version": 3,
        }.items()
    )
