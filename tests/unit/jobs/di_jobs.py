"""One DIJob in a world of its own, for tests of its state machine."""

import copy
from collections.abc import Mapping
from typing import Any

from edl_workflows.jobs.testing import JobsNamespace

NAME = "atari"
API_VERSION = "diengine.opendilab.org/v2alpha1"


def task(kind: str, replicas: int = 1, **fields: Any) -> dict[str, Any]:
    """A task of one container."""
    template = {"spec": {"containers": [{"name": "di-container", "image": "ding:1"}]}}
    return {"type": kind, "replicas": replicas, "template": template, **fields}


def make(*tasks: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """A job of these tasks; without any a learner, an evaluator and two collectors."""
    chosen = tasks or (task("learner"), task("collector", 2), task("evaluator"))
    spec = {"tasks": copy.deepcopy(list(chosen)), **spec}
    return {"apiVersion": API_VERSION, "kind": "DIJob", "metadata": {"name": NAME}, "spec": spec}


def node_asked_for(pod: Mapping[str, Any]) -> str:
    """The one node that a pod's affinity names."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (name,) = [value for field in term["matchFields"] for value in field["values"]]
    return str(name)


class Job:
    """The job in its world."""

    def __init__(self, *tasks: dict[str, Any], **spec: Any) -> None:
        self.world = JobsNamespace()
        self.world.add(make(*tasks, **spec))
        self.world.settle()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.objects["DIJob", NAME]["status"]
        return found

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def pods(self) -> list[str]:
        return sorted(name.removeprefix(f"{NAME}-") for kind, name in self.world.objects if kind == "Pod")

    def pod(self, short: str) -> dict[str, Any]:
        return self.world.objects["Pod", f"{NAME}-{short}"]

    def uid(self, short: str) -> str:
        return str(self.pod(short)["metadata"]["uid"])

    def env(self, short: str) -> dict[str, str]:
        variables = self.pod(short)["spec"]["containers"][0]["env"]
        return {v["name"]: v["value"] for v in variables if "value" in v}

    def rank(self, short: str) -> int:
        return int(self.env(short)["DI_RANK"])

    def count(self) -> tuple[int, int, int]:
        """Restarts, reschedules, generation."""
        return self.status["restarts"], self.status["reschedules"], self.status["generation"]

    def set(self, **phases: Any) -> None:
        """Pods' phases, as ``collector_0="Running"``, ``=("Failed", 137)`` or ``=("Failed", None,
        "Evicted")``, and what the controller makes of it."""
        for short, value in phases.items():
            phase, code, reason = (*value, "", "")[:3] if isinstance(value, tuple) else (value, None, "")
            code = 0 if phase == "Succeeded" else code
            self.world.set_pod(f"{NAME}-{short.replace('_', '-')}", phase, code, reason)
        self.world.settle()

    def run(self) -> None:
        """All pods run."""
        self.set(**{short.replace("-", "_"): "Running" for short in self.pods})

    def delete(self, short: str) -> None:
        self.world.delete("Pod", f"{NAME}-{short}")
        self.world.settle()

    def settle(self) -> None:
        """Pods that are being deleted go, and the controller makes what it wants of it, until nothing more
        happens.
        """
        for _ in range(3):
            self.world.reap()
            self.world.settle()

    def edit(self, **spec: Any) -> None:
        self.world.edit("DIJob", NAME, {"spec": spec})
        self.world.settle()

    def resize(self, **replicas: int) -> None:
        """Other replicas by type of task."""
        tasks = copy.deepcopy(self.world.objects["DIJob", NAME]["spec"]["tasks"])
        for one in tasks:
            one["replicas"] = replicas.get(one["type"], one["replicas"])
        self.edit(tasks=tasks)

    def allocate(self, *nodes: str) -> None:
        """What the allocator writes."""
        self.world.edit("DIJob", NAME, {"status": {"allocation": list(nodes)}})
        self.world.settle()

    def true_conditions(self) -> list[str]:
        return [c["type"] for c in self.status["conditions"] if c["status"] == "True"]
