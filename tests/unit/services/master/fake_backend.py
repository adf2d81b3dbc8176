"""A backend of a master that remembers what it was asked for, and a clock."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.core.scaling.dlrover.ps_stages import StageProgress
from edl_workflows.runtime.kube.events import EventNote
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.autoscale import autoscale_state
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest
from edl_workflows.services.master.state.nodes.registry import JobNode
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.stores.file import FileStore

SPEC = ScalePlanSpec(owner_job="job", replica_resource_specs={"worker": ReplicaResourceSpec(replicas=2)})


class FakeBackend:
    """Remembers what it was asked for; plans are refused with `errors`, in their order, and whatever is in
    `refusing` always.
    """

    def __init__(self, *errors: EdlError) -> None:
        self.errors = list(errors)
        self.asked: list[int] = []
        self.made: list[str] = []
        self.reported: list[dict[str, Any]] = []
        self.away = False
        self.refusing: dict[object, EdlError] = {}
        self.warned: list[tuple[str, str]] = []
        self.announced: list[tuple[str, str]] = []
        self.plans: list[tuple[str, dict[str, Any]]] = []

    def ask_for_pods(self, request: PodRequest, nodes: dict[tuple[str, int], JobNode]) -> None:
        self.asked.append(request.number)
        self._refuse(request.number)

    def _refuse(self, what: object) -> None:
        if what in self.refusing:
            raise self.refusing[what]

    def make_plan(self, name: str, spec: ScalePlanSpec) -> None:
        assert spec == SPEC
        if self.errors:
            raise self.errors.pop(0)
        self.made.append(name)

    def is_job_deleted(self) -> bool:
        return False

    def report_plan(self, rollout: Rollout, status: dict[str, Any]) -> None:
        self._refuse(rollout.name)
        self.plans.append((rollout.name, status))

    def record_event(self, event: EventNote) -> None:
        self._refuse("events")
        (self.warned if event.type == "Warning" else self.announced).append((event.reason, event.message))

    def report_job(self, status: dict[str, Any]) -> None:
        self._refuse("the job")
        if self.away:
            raise UnavailableError("the API server is away")
        self.reported.append(status)


@dataclass
class Clock:
    """Monotonic seconds that a test sets."""

    now: float = 100.0

    def __call__(self) -> float:
        return self.now


def make_decided_master(folder: Path) -> Master:
    """A master that has decided on a plan of its own, which is not made yet."""
    master = Master(
        JobState(JobSettings("job", "default", parse_nodes("ps=1,worker=1"))), FileStore(folder / "state")
    )
    master.state.autoscaling = autoscale_state.open_plan(
        master.state.autoscaling, SPEC, StageProgress(), master.clock()
    )
    return master
