"""One TrainingJob in a world of its own, for tests of its state machine."""

from typing import Any

from edl_workflows.jobs.testing import JobsNamespace

NAME = "ctr"
FINAL = ("succeeded", "failed")


def make_training_job(
    *,
    master: bool = True,
    pservers: int = 2,
    trainers: tuple[int, int] = (2, 4),
    ft: bool = True,
    **spec: Any,
) -> dict[str, Any]:
    """A job; `trainers` are its bounds."""
    found: dict[str, Any] = {
        "image": "train:1",
        "fault_tolerant": ft,
        "trainer": {"entrypoint": "train", "min-instance": trainers[0], "max-instance": trainers[1]},
    }
    found |= {"master": {}} if master else {}
    found |= {"pserver": {"min-instance": pservers}} if pservers else {}
    spec = found | spec
    return {
        "apiVersion": "paddlepaddle.org/v1",
        "kind": "TrainingJob",
        "metadata": {"name": NAME},
        "spec": spec,
    }


class Job:
    """One job in a world of its own."""

    def __init__(self, world: JobsNamespace | None = None, **kwargs: Any) -> None:
        self.world = world or JobsNamespace()
        self.world.add(make_training_job(**kwargs))
        self.world.settle()

    @classmethod
    def running(cls, **kwargs: Any) -> "Job":
        """A job whose pods all run."""
        job = cls(**kwargs)
        job.run_all()
        assert job.phase == "running"
        return job

    def run_all(self) -> None:
        """Every pod runs, role by role."""
        for _ in range(4):
            for name in self.pods:
                if self.pod(name)["status"]["phase"] == "Pending":
                    self.world.set_pod(f"{NAME}-{name}", "Running")
            self.settle()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.objects["TrainingJob", NAME]["status"]
        return found

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def pods(self) -> list[str]:
        return sorted(name.removeprefix(f"{NAME}-") for kind, name in self.world.objects if kind == "Pod")

    @property
    def trainers(self) -> list[str]:
        return [name for name in self.pods if name.startswith("trainer")]

    @property
    def services(self) -> list[str]:
        return sorted(name.removeprefix(f"{NAME}-") for kind, name in self.world.objects if kind == "Service")

    def pod(self, short: str) -> dict[str, Any]:
        return self.world.objects["Pod", f"{NAME}-{short}"]

    def uid(self, short: str) -> str:
        return str(self.pod(short)["metadata"]["uid"])

    def report(self, **phases: Any) -> None:
        """Pods' phases, as ``trainer_0="Running"`` or ``trainer_0=("Failed", 137)``."""
        for short, value in phases.items():
            phase, code = value if isinstance(value, tuple) else (value, None)
            name = f"{NAME}-{short.replace('_', '-')}"
            self.world.set_pod(name, phase, 0 if phase == "Succeeded" else code)

    def set(self, **phases: Any) -> None:
        """The same, and what the controller makes of it."""
        self.report(**phases)
        self.world.settle()

    def settle(self) -> None:
        """Pods that are being deleted go, and the controller makes what it wants of it."""
        self.world.reap()
        self.world.settle()

    def edit(self, **spec: Any) -> None:
        self.world.edit("TrainingJob", NAME, {"spec": spec})
        self.world.settle()

    def scale(self, trainers: int) -> None:
        self.edit(trainer={"parallelism": trainers})

    def records(self) -> list[tuple[int, str]]:
        return [(r["additional"], r["status"]) for r in self.status.get("scale_records", ())]

    def failed(self) -> list[str]:
        return [f"{f['role']}-{f['index']}" for f in self.status.get("failures", ())]

    def counts(self, role: str) -> dict[str, Any]:
        found: dict[str, Any] = self.status["replicaStatuses"][role]
        return found

    def true_conditions(self) -> list[str]:
        return sorted(c["type"] for c in self.status["conditions"] if c["status"] == "True")
