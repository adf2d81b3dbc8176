"""DIJobs for tests of their state machine."""

import copy
from collections.abc import Mapping
from typing import Any

from tests.cases.kinds.di_job import CASES, make_di_job
from tests.unit.core.jobs.settled_job import SettledJob

NAME: str = CASES.example["metadata"]["name"]


def node_asked_for(pod: Mapping[str, Any]) -> str:
    """The one node that a pod's affinity names."""
    required = pod["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (term,) = required["nodeSelectorTerms"]
    (name,) = [value for field in term["matchFields"] for value in field["values"]]
    return str(name)


class Job(SettledJob):
    """One DIJob; see `make_di_job` for the arguments."""

    def __init__(self, *tasks: dict[str, Any], **spec: Any) -> None:
        super().__init__(make_di_job(*tasks, **spec))

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
