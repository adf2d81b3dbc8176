"""TrainingJobs for tests of their state machine."""

from typing import Any

from tests.cases.kinds.training_job import CASES, make_training_job
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.settled_job import SettledJob

NAME: str = CASES.example["metadata"]["name"]
FINAL = ("succeeded", "failed")


class Job(SettledJob):
    """One TrainingJob; see `make_training_job` for the arguments."""

    def __init__(self, world: JobsNamespace | None = None, **kwargs: Any) -> None:
        super().__init__(make_training_job(**kwargs), world)

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
    def trainers(self) -> list[str]:
        """Names of the trainers' pods, without the job's."""
        return [name for name in self.pods if name.startswith("trainer")]

    def scale(self, trainers: int) -> None:
        """Ask for another number of trainers."""
        self.edit(trainer={"parallelism": trainers})

    def records(self) -> list[tuple[int, str]]:
        """Additional trainers and status of each record of a scaling."""
        return [(r["additional"], r["status"]) for r in self.status.get("scale_records", ())]

    def failed(self) -> list[str]:
        """The failures in the status, as role and index."""
        return [f"{f['role']}-{f['index']}" for f in self.status.get("failures", ())]

    def counts(self, role: str) -> dict[str, Any]:
        """The status of a role's replicas."""
        found: dict[str, Any] = self.status["replicaStatuses"][role]
        return found

    def true_conditions(self) -> list[str]:
        """Types of the conditions that hold, sorted."""
        return sorted(super().true_conditions())
