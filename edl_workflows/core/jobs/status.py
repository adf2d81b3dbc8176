"""The common parts of the statuses of all job kinds: the outcome of a decision, its conditions, counters and
Events. Pure.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any, Self, get_args

from pydantic import BeforeValidator, Field, ModelWrapValidatorHandler, ValidationError, model_validator
from pydantic.alias_generators import to_snake

from edl_workflows.core.jobs.actions import Event
from edl_workflows.core.jobs.left_alone import LEFT_ALONE
from edl_workflows.core.jobs.replacements import Replacements
from edl_workflows.core.jobs.usage.model import UsageStatus
from edl_workflows.core.kubernetes.objects import Condition, Resource, Status, set_condition
from edl_workflows.core.protocol.reported_text import inert_text

CREATED = "Created"
"""The type of the condition that every job gets with its first decision."""


class KindPhase(StrEnum):
    """Base of each kind's phases, spelt as that kind's users know them."""

    @property
    def final(self) -> bool:
        """Whether the phase never changes again."""
        return self.capitalize() in ("Succeeded", "Failed")

    @property
    def condition(self) -> str:
        """The type of the condition that is True in this phase."""
        return self.capitalize()


def _selector_text(value: object) -> object:
    """training-operator writes a LabelSelector object here. It is read as "", and the next write replaces
    it."""
    return "" if isinstance(value, Mapping) else value


class ReplicaCounts(Status):
    """Counters of one role.

    Attributes:
        active: running pods.
        ready: those of them that are Ready.
        label_selector: selects the role's pods; the scale subresource needs it.
    """

    desired: int = 0
    active: int = 0
    ready: int = 0
    succeeded: int = 0
    failed: int = 0
    label_selector: Annotated[str, BeforeValidator(_selector_text)] = ""


class JobStatus(Status):
    """The fields of every job's status.

    A job may have been run by another operator of its kind before. Fields in a form that only that operator
    knows are read as absent. A job that it finished is finished, even where only the conditions say so: the
    newest of the conditions Succeeded and Failed that is True gives the phase.

    Attributes:
        reason, message: why the phase is what it is.
        replica_statuses: counters by role.
        replacements: by role and index, how often their pods were made anew lately.
        usage: what its pods have held of their nodes, and what for.
    """

    phase: KindPhase | None = None
    reason: str = ""
    message: str = ""
    observed_generation: int = 0
    conditions: list[Condition] = Field(default_factory=list)
    replica_statuses: Mapping[str, ReplicaCounts] = Field(default_factory=dict)
    start_time: datetime | None = None
    completion_time: datetime | None = None
    replacements: Mapping[str, Replacements] | None = None
    usage: UsageStatus | None = None

    @model_validator(mode="wrap")
    @classmethod
    def _without_unreadable_fields(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        try:
            return handler(data)
        except ValidationError as error:
            if not isinstance(data, Mapping):
                raise
            unreadable = {to_snake(str(problem["loc"][0])) for problem in error.errors()}
            return handler({key: value for key, value in data.items() if to_snake(key) not in unreadable})

    @model_validator(mode="after")
    def _finished_by_condition(self) -> Self:
        if self.phase is not None and self.phase.final:
            return self
        if self.phase is None:
            self._derive_from_other_operator()
        ends = {phase.condition: phase for phase in phases_of(type(self)) if phase.final}
        newest = next((c for c in reversed(self.conditions) if c.type in ends and c.status == "True"), None)
        if newest is not None:
            end_fields = {"phase": ends[newest.type], "reason": newest.reason, "message": newest.message}
            self._derive(end_fields)
        return self

    def _derive_from_other_operator(self) -> None:
        """Take the phase of a job that is left alone from its conditions, since Kubeflow's operator writes no
        phase, and the reason from the one that says that it is left alone."""
        holding = {c.type: c for c in self.conditions if c.status == "True"}  # the newest is the last
        if (left_alone := holding.get(LEFT_ALONE)) is None:
            return
        phases = {phase.condition: phase for phase in phases_of(type(self))}
        phase = next((phases[name] for name in reversed(holding) if name in phases), None)
        self._derive({"phase": phase, "reason": left_alone.reason, "message": left_alone.message})

    def _derive(self, fields: Mapping[str, Any]) -> None:
        """Set fields that the stored object does not have. `stored` leaves them out, so that the controller
        writes them."""
        self.__dict__ |= fields
        self.__pydantic_fields_set__.difference_update(fields)


def phases_of(status: Any) -> tuple[KindPhase, ...]:
    """The phases of a kind, from the model of its status."""
    phases: type[KindPhase] = get_args(status.model_fields["phase"].annotation)[0]
    return tuple(phases)


class Job(Resource):
    """Base of the job kinds."""

    status: JobStatus = Field(default_factory=JobStatus)

    @property
    def finished(self) -> bool:
        """Whether its phase is final."""
        return self.status.phase is not None and self.status.phase.final

    @property
    def ended_elsewhere(self) -> bool:
        """Whether it had ended, under another operator, before a controller of ours saw it."""
        return self.finished and not self.status.observed_generation

    @property
    def decided_generation(self) -> int:
        """The generation that a decision's status shows. A job that ended elsewhere stays recognizable by
        having none."""
        return 0 if self.ended_elsewhere else self.metadata.generation

    @property
    def time_to_live(self) -> int | None:
        """Seconds for which the job stays after its end; None if it is never deleted."""
        return None

    @property
    def managed_elsewhere(self) -> bool:
        """Whether another cluster's controller reconciles the job."""
        return False

    def seconds_to_live(self, now: datetime, default: int | None = None) -> float | None:
        """Seconds until the job is to be deleted; None if it has not ended, or is never deleted.

        Args:
            now: the time.
            default: seconds for which a job stays that does not say so itself.
        """
        end, ttl = self.status.completion_time, self.time_to_live
        if ttl is None and not self.managed_elsewhere:
            ttl = default
        return None if end is None or ttl is None or not self.finished else ttl - (now - end).total_seconds()


@dataclass(frozen=True)
class PhaseVerdict:
    """A job's phase, and the reason for it.

    Attributes:
        message: it may quote text from pods, so `inert_text` is applied to it.
    """

    phase: KindPhase
    reason: str
    message: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "message", inert_text(self.message))


def update_conditions(
    status: JobStatus,
    outcome: PhaseVerdict,
    created: Condition,
    now: datetime,
    other_true: Collection[str] = (),
) -> list[Condition]:
    """The conditions after `outcome`: the phase's is True, those of other phases turn False where they exist.

    Args:
        status: the status as it is.
        outcome: what was decided.
        created: the condition that every job gets with its first decision.
        now: the time.
        other_true: types that stay True besides the phase's own.
    """
    conditions: Sequence[Condition] = status.conditions
    if all(condition.type != CREATED for condition in conditions):
        conditions = set_condition(conditions, created, now)
    phases = {phase.condition for phase in type(outcome.phase)}
    for condition in conditions:
        over = condition.type in phases - {CREATED, outcome.phase.condition, *other_true}
        if over and condition.status == "True":
            end = Condition(type=condition.type, status="False", reason=outcome.reason)
            conditions = set_condition(conditions, end, now)
    if outcome.phase.condition == CREATED:
        return list(conditions)
    new = Condition(
        type=outcome.phase.condition, status="True", reason=outcome.reason, message=outcome.message
    )
    return set_condition(conditions, new, now)


def phase_event(
    status: JobStatus, outcome: PhaseVerdict, warnings: Collection[str], message: str
) -> tuple[Event, ...]:
    """One Event for each change of phase or reason.

    Args:
        status: the status as it is.
        outcome: what was decided.
        warnings: reasons whose Events are Warnings; those of failures always are.
        message: the Event's message if the outcome has none.
    """
    if (status.phase, status.reason) == (outcome.phase, outcome.reason):
        return ()
    bad = outcome.phase.condition == "Failed" or outcome.reason in warnings
    return (Event("Warning" if bad else "Normal", outcome.reason, outcome.message or message),)
