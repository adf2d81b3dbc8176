"""DIJobs for tests of their state machine."""

import copy
from collections.abc import Mapping
from typing import Any

from tests.unit.core.jobs.settled_job import SettledJob

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


class Job(SettledJob):
    """One DIJob; see `make` for the arguments."""

    def __init__(self, *tasks: dict[str, Any], **spec: Any) -> None:
        super().__init__(make(*tasks, **spec))

    def env(self, short: str) -> dict[str, str]:
        """A pod's environment, as far as it is given by value."""
        variables = self.pod(short)["spec"]["containers"][0]["env"]
        return {v["name"]: v["value"] for v in variables if "value" in v}

    def rank(self, short: str) -> int:
        """A pod's."""
        return int(self.env(short)["DI_RANK"])

    def count(self) -> tuple[int, int, int]:
        """Restarts, reschedules, generation."""
        return self.status["restarts"], self.status["reschedules"], self.status["generation"]

    def run(self) -> None:
        """All pods run."""
        self.set(**{short.replace("-", "_"): "Running" for short in self.pods})

    def delete(self, short: str) -> None:
        """Delete a pod."""
        self.world.delete("Pod", f"{NAME}-{short}")
        self.world.settle()

    def settle(self) -> None:
        """The same, until nothing more happens."""
        for _ in range(3):
            super().settle()

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
