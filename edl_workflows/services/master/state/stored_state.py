"""What is stored of a job: one small JSON document. Each durable field is declared here, and only here.

A restarted master continues from it. What it measures or is told again is `job.VolatileState`. The fields of
the document and their meaning stay the same from one version to the next: masters are upgraded, and put back
to the version before, while their jobs run. So a new field needs a default with which documents of earlier
versions keep their meaning, and earlier versions ignore it. A change with which they must not go on, such as
a new value of an enumeration or another meaning of a field, needs a new `FORMAT`.
"""

from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, fields
from functools import cache
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, GetCoreSchemaHandler, TypeAdapter, ValidationError
from pydantic_core import CoreSchema, core_schema, from_json, to_json

from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes.objects import Count
from edl_workflows.core.protocol.nodes import Directive, ServerReport
from edl_workflows.services.master.shards.manager import ShardManager
from edl_workflows.services.master.shards.snapshot import ShardsSnapshot
from edl_workflows.services.master.state.autoscale.autoscale_state import AutoscalingState
from edl_workflows.services.master.state.checkpoints import Checkpoints, SavedCheckpoint
from edl_workflows.services.master.state.goodput import Goodput
from edl_workflows.services.master.state.history import History
from edl_workflows.services.master.state.job_result import TrainingResult
from edl_workflows.services.master.state.nodes.hang import Hangs
from edl_workflows.services.master.state.nodes.node_check import NodeCheck
from edl_workflows.services.master.state.nodes.pod_requests import PodRequests
from edl_workflows.services.master.state.nodes.registry import JobNode, NodeRegistry
from edl_workflows.services.master.state.nodes.relaunch import Restarts
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.sync import SyncGroups
from edl_workflows.services.master.state.versions.cluster_versions import ClusterVersions

FORMAT = 2
"""The format of the document. A master reads its own format only."""
_UNKNOWN = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
"""Types of pydantic's errors for a field that the type does not have."""
_PROGRESS = frozenset({"steps", "goodput", "history"})
"""What changes all the time while a job trains."""


@dataclass(frozen=True)
class _StoredAs:
    """Annotates a field that is kept as an object with an index, and stored as plain data.

    Attributes:
        data: type of the stored data.
        load: makes the object from the data; raises ValueError if the data contradicts itself.
        dump: the data of the object.
    """

    data: Any
    load: Callable[[Any], Any]
    dump: Callable[[Any], Any]

    def __get_pydantic_core_schema__(self, _source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        data = handler.generate_schema(self.data)
        stored = core_schema.plain_serializer_function_ser_schema(self.dump, return_schema=data)
        return core_schema.no_info_after_validator_function(self.load, data, serialization=stored)


@dataclass(frozen=True)
class StepProgress:
    """The global step of the active version, and when it was made.

    Attributes:
        step: the newest step.
        time: Unix seconds at the worker that made it.
        first, first_time: the first reported step, and when it was made.
        records: records processed so far in a collective job, as counted by its members. Other jobs don't use
            it: their workers acknowledge each shard of records to the master.
    """

    step: int = 0
    time: float = 0.0
    first: int = 0
    first_time: float = 0.0
    records: int = 0


@dataclass(frozen=True)
class FunctionResult:
    """What the training function returned.

    Attributes:
        rank: of the worker that reported it.
        text: the value as JSON.
    """

    rank: int
    text: str


@dataclass(frozen=True)
class Announcement:
    """What the nodes were told last: the directive, and which nodes must stop."""

    directive: Directive = field(default_factory=lambda: Directive(revision=0))
    stopping: tuple[str, ...] = ()


@dataclass(eq=False)
class JobRecord:
    """What is stored of a job, apart from its data sets. Effects outside the master follow a copy of it."""

    counts: dict[str, Count]
    """Desired nodes by role; after the start only ScalePlans change them."""
    sizes: dict[str, NodeResource] = field(default_factory=dict)
    """Size of new nodes by role, where it differs from the template's."""
    nodes: Annotated[NodeRegistry, _StoredAs(tuple[JobNode, ...], NodeRegistry, tuple)] = field(
        default_factory=NodeRegistry
    )
    """The nodes that matter; see `NodeRegistry`."""
    next_ids: dict[str, int] = field(default_factory=dict)
    """Next free node id by type; ids are never reused. The registry increments it."""
    versions: ClusterVersions = field(default_factory=ClusterVersions)
    """The active cluster version, and the next one while it is prepared."""
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    """Saved, begun, failed and damaged checkpoints, with the data position of each."""
    sync: SyncGroups = field(default_factory=SyncGroups)
    """Groups of workers that wait for each other, and barriers."""
    plan: Rollout | None = None
    """The manual ScalePlan in progress, or one that has ended but whose status does not show that yet."""
    finished_plans: tuple[str, ...] = ()
    """Uids of the newest manual plans that have ended."""
    pod_plans: PodRequests = field(default_factory=PodRequests)
    """Requests for pods, until they are carried out."""
    steps: StepProgress = field(default_factory=StepProgress)
    """The global step."""
    outcome: TrainingResult | None = None
    """How the job ended; None while it runs."""
    said: Announcement = field(default_factory=Announcement)
    """What the nodes were told last."""
    history: Annotated[History, _StoredAs(History, lambda kept: kept, lambda whole: whole.stored)] = field(
        default_factory=History
    )
    """Progress over time; a sample of it is stored."""
    autoscaling: AutoscalingState = field(default_factory=AutoscalingState)
    """The ScalePlans that the master makes for its own job, and the optimizer's progress."""
    max_workers: int = 0
    """Of a collective job: the most workers of a training group, as of the start; else 0."""
    goodput: Goodput = field(default_factory=Goodput)
    """How the job's time was spent."""
    restarts: Restarts = field(default_factory=Restarts)
    """Nodes that ended without success, and restarts of all training processes."""
    hangs: Hangs = field(default_factory=Hangs)
    """How often training stood still, and what was done about it."""
    node_check: NodeCheck = field(default_factory=NodeCheck)
    """The check of the nodes before training."""
    servers: ServerReport | None = None
    """Which changes of its parameter servers the program allows; None if it did not say."""
    in_place: bool = False
    """Whether the program's processes can change their group while they run."""
    replica_size: int = 1
    """Number of processes of a replica group, which together hold one copy of the model."""
    connected: bool = False
    """Whether a training process has reported to the master, so that the program uses the library."""
    own_copies: tuple[str, ...] = ()
    """Roles and ranks of nodes whose newest process trains a copy of the model of its own, which nothing
    combines with the others."""
    left_at: SavedCheckpoint | None = None
    """The checkpoint that was saved for the newest switch: of the step and the data position at which the
    previous parameter servers stopped, whose variables they still hold."""
    result: FunctionResult | None = None
    """What the training function returned; None for a script, and until a function has returned."""

    def __post_init__(self) -> None:
        self.nodes.next_ids = self.next_ids

    def copy_record(self) -> "JobRecord":
        """A copy that is not affected by later changes of the state."""
        values = {field.name: getattr(self, field.name) for field in fields(JobRecord)}
        mutable = {name: value for name, value in values.items() if isinstance(value, dict | NodeRegistry)}
        return JobRecord(**values | {name: copy(value) for name, value in mutable.items()})

    def has_changed_since(self, earlier: "JobRecord") -> bool:
        """Whether more has changed than the progress of training."""
        if self.goodput.cause is not earlier.goodput.cause:
            return True
        names = (field.name for field in fields(JobRecord) if field.name not in _PROGRESS)
        return any(getattr(self, name) != getattr(earlier, name) for name in names)


@dataclass(eq=False)
class StoredState(JobRecord):
    """All that is stored.

    Attributes:
        shards: the data sets of the job, and their leases.
        format: of the document.
        newer_fields: fields of the document that a newer version stored. They are stored again as they are,
            for when that version continues. Unknown fields of values inside the document are ignored.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    shards: Annotated[ShardManager, _StoredAs(ShardsSnapshot, ShardManager, ShardManager.snapshot)] = field(
        default_factory=ShardManager
    )
    format: int = FORMAT
    newer_fields: Annotated[dict[str, Any], Field(exclude=True)] = field(default_factory=dict)

    def to_json(self) -> bytes:
        text = _adapter().dump_json(self, exclude_defaults=True)
        return to_json(from_json(text) | self.newer_fields) if self.newer_fields else text

    @classmethod
    def from_json(cls, text: bytes | str) -> "StoredState":
        """Parse the text of `to_json`, also that of a newer version with the same format.

        Raises:
            ValueError: it is not such a document.
        """
        try:
            document = from_json(text)
        except ValueError as error:
            raise ValueError(f"the document: Invalid JSON: {error}") from error
        stored_format = document.get("format", FORMAT) if isinstance(document, dict) else FORMAT
        if stored_format != FORMAT:
            raise ValueError(
                f"format: it is {stored_format}, this version reads {FORMAT}: run the version that wrote it"
            )
        newer_fields: dict[str, Any] = {}
        while True:
            try:
                stored = _adapter().validate_json(to_json(document))
            except ValidationError as error:
                unknown = [problem["loc"] for problem in error.errors() if problem["type"] in _UNKNOWN]
                if not unknown:
                    raise
                newer_fields |= {str(path[0]): document[path[0]] for path in unknown if len(path) == 1}
                for path in unknown:
                    _remove_field(document, path)
            else:
                stored.newer_fields = newer_fields
                return stored


def _remove_field(document: Any, path: tuple[str | int, ...]) -> None:
    for key in path[:-1]:
        document = document[key]
    del document[path[-1]]


@cache
def _adapter() -> TypeAdapter[StoredState]:
    return TypeAdapter(StoredState)
