"""`edl` as tests call it, and a job of another kind."""

from collections.abc import Callable
from typing import Any

Edl = Callable[..., tuple[int, str, str]]
"""Runs the command with these arguments. Returns exit code, stdout and stderr."""


def tf_job(name: str, gang: int = 1) -> dict[str, Any]:
    """A TFJob with one worker. A larger gang makes it invalid, which the API server does not detect."""
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": name},
        "spec": {
            "tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}},
            "runPolicy": {"schedulingPolicy": {"minAvailable": gang}},
        },
    }
