"""TFJobs for tests, in a namespace of their own with the controller's `reconcile`."""

import json
from typing import Any

from edl_workflows.jobs.testing import JobsNamespace

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


class Job:
    """One job in a world of its own."""

    def __init__(self, spec: dict[str, Any] | None = None, **kwargs: Any) -> None:
        manifest = make_tf_job(**kwargs)
        manifest["spec"] |= spec or {}
        self.world = JobsNamespace()
        self.world.add(manifest)
        self.world.settle()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.objects["TFJob", NAME]["status"]
        return found

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def pods(self) -> list[str]:
        return sorted(name.removeprefix(f"{NAME}-") for kind, name in self.world.objects if kind == "Pod")

    @property
    def services(self) -> list[str]:
        return sorted(name.removeprefix(f"{NAME}-") for kind, name in self.world.objects if kind == "Service")

    def pod(self, short: str) -> dict[str, Any]:
        return self.world.objects["Pod", f"{NAME}-{short}"]

    def set(self, **phases: Any) -> None:
        """Pods' phases, as ``worker_0="Running"`` or ``worker_0=("Failed", 137)``, and what the controller
        makes of it.
        """
        for short, value in phases.items():
            phase, code = value if isinstance(value, tuple) else (value, None)
            name = f"{NAME}-{short.replace('_', '-')}"
            self.world.set_pod(name, phase, 0 if phase == "Succeeded" else code)
        self.world.settle()

    def settle(self) -> None:
        """Pods that are being deleted go, and the controller makes what it wants of it."""
        self.world.reap()
        self.world.settle()

    def edit(self, **spec: Any) -> None:
        self.world.edit("TFJob", NAME, {"spec": spec})
        self.world.settle()

    def config(self, short: str) -> dict[str, Any]:
        env = {v["name"]: v["value"] for v in self.pod(short)["spec"]["containers"][0].get("env", ())}
        found: dict[str, Any] = json.loads(env["TF_CONFIG"])
        return found

    def true_conditions(self) -> list[str]:
        return [c["type"] for c in self.status["conditions"] if c["status"] == "True"]
