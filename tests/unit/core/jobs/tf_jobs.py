"""TFJobs for tests of their state machine."""

import json
from typing import Any

from tests.unit.core.jobs.settled_job import SettledJob

NAME = "mnist"


def make_tf_job(*, policies: dict[str, Any] | None = None, compat: str = "", **types: Any) -> dict[str, Any]:
    """A job; `types` gives for each type its replicas, or (replicas, restart policy)."""
    container = {"name": "tensorflow", "image": "train:1"}
    specs = {}
    for kind, wanted in (types or {"PS": 1, "Worker": 2}).items():
        replicas, policy = wanted if isinstance(wanted, tuple) else (wanted, "Never")
        template = {"spec": {"containers": [dict(container)]}}
        specs[kind] = {"replicas": replicas, "restartPolicy": policy, "template": template}
    metadata: dict[str, Any] = {"name": NAME}
    if compat:
        metadata["annotations"] = {"elastic.iml.github.io/tfjob-compat": compat}
    spec = {"tfReplicaSpecs": specs, "runPolicy": policies or {}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": metadata, "spec": spec}


class Job(SettledJob):
    """One TFJob; see `make_tf_job` for the arguments."""

    def __init__(self, spec: dict[str, Any] | None = None, **kwargs: Any) -> None:
        manifest = make_tf_job(**kwargs)
        manifest["spec"] |= spec or {}
        super().__init__(manifest)

    def config(self, short: str) -> dict[str, Any]:
        """A pod's TF_CONFIG."""
        env = {v["name"]: v["value"] for v in self.pod(short)["spec"]["containers"][0].get("env", ())}
        found: dict[str, Any] = json.loads(env["TF_CONFIG"])
        return found
