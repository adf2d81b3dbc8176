"""What the state machines of jobs of all kinds have in common: pods that disappear, and time that passes."""

from typing import Any, ClassVar

import hypothesis.strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from tests.jobs_namespace import JobsNamespace


class JobMachine(RuleBasedStateMachine):
    """One job, to which any event may happen in any order. The controller may die while it acts.

    Attributes:
        kind, name: the job's.
    """

    kind: ClassVar[str]
    name: ClassVar[str]

    def __init__(self) -> None:
        super().__init__()
        self.world = JobsNamespace()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.objects[self.kind, self.name].get("status", {})
        return found

    def pods(self) -> list[str]:
        return sorted(name for kind, name in self.world.objects if kind == "Pod")

    def live(self) -> list[str]:
        """The pods that have not ended."""
        phases = {name: self.world.objects["Pod", name]["status"]["phase"] for name in self.pods()}
        return [name for name, phase in phases.items() if phase in ("Pending", "Running")]

    @rule(which=st.integers(0, 10))
    def pod_deleted(self, which: int) -> None:
        if pods := self.pods():
            self.world.delete("Pod", pods[which % len(pods)])

    @rule()
    def deleted_pods_go(self) -> None:
        self.world.reap()

    @rule(seconds=st.sampled_from([1, 30, 400]))
    def time_passes(self, seconds: int) -> None:
        self.world.tick(seconds)
