"""A job in a namespace of its own, with the controller's `reconcile`, for tests of a kind's state machine."""

from typing import Any

from tests.jobs_namespace import JobsNamespace


class SettledJob:
    """One job, settled.

    Args:
        manifest: of the job.
        world: the namespace; by default a new one.
    """

    def __init__(self, manifest: dict[str, Any], world: JobsNamespace | None = None) -> None:
        self.kind = str(manifest["kind"])
        self.name = str(manifest["metadata"]["name"])
        self.world = world or JobsNamespace()
        self.world.add(manifest)
        self.world.settle()

    @property
    def status(self) -> dict[str, Any]:
        """The job's."""
        found: dict[str, Any] = self.world.objects[self.kind, self.name]["status"]
        return found

    @property
    def phase(self) -> str:
        """The job's."""
        return str(self.status["phase"])

    @property
    def pods(self) -> list[str]:
        """Names of the pods, without the job's."""
        return self._names("Pod")

    @property
    def services(self) -> list[str]:
        """Names of the Services, without the job's."""
        return self._names("Service")

    def _names(self, kind: str) -> list[str]:
        return sorted(
            name.removeprefix(f"{self.name}-") for found, name in self.world.objects if found == kind
        )

    def pod(self, short: str) -> dict[str, Any]:
        """A pod by its name without the job's."""
        return self.world.objects["Pod", f"{self.name}-{short}"]

    def uid(self, short: str) -> str:
        """A pod's."""
        return str(self.pod(short)["metadata"]["uid"])

    def report(self, **phases: Any) -> None:
        """Pods' phases, as ``worker_0="Running"``, ``("Failed", 137)`` or ``("Failed", None, "Evicted")``."""
        for short, value in phases.items():
            phase, code, reason = (*value, "", "")[:3] if isinstance(value, tuple) else (value, None, "")
            code = 0 if phase == "Succeeded" else code
            self.world.set_pod(f"{self.name}-{short.replace('_', '-')}", phase, code, reason)

    def set(self, **phases: Any) -> None:
        """The same, and what the controller makes of it."""
        self.report(**phases)
        self.world.settle()

    def settle(self) -> None:
        """Pods that are being deleted go, and the controller makes what it wants of it."""
        self.world.reap()
        self.world.settle()

    def edit(self, **spec: Any) -> None:
        """Change fields of the spec."""
        self.world.edit(self.kind, self.name, {"spec": spec})
        self.world.settle()

    def true_conditions(self) -> list[str]:
        """Types of the conditions that hold, in the order of the status."""
        return [one["type"] for one in self.status["conditions"] if one["status"] == "True"]
