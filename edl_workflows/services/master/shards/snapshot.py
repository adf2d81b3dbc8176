"""The stored state of the shards: small JSON documents. Sets of numbers are packed into intervals.

A *position* says which shards are done. It is recorded when a save of the model begins, and a job can return
to it. A *snapshot* is a position together with the leases; a restarted master continues from it.
"""

from collections.abc import Iterable, Iterator
from typing import Annotated, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from edl_workflows.core.protocol.datasets import DatasetParams


def _ordered(interval: tuple[int, int]) -> tuple[int, int]:
    start, end = interval
    if not 0 <= start < end:
        raise ValueError(f"{start} to {end} is not an interval of shards")
    return interval


Interval = Annotated[tuple[int, int], AfterValidator(_ordered)]
"""The numbers `start <= n < end`."""


def to_intervals(numbers: Iterable[int]) -> list[Interval]:
    """Pack distinct numbers, in any order, into the fewest intervals, in order."""
    intervals: list[Interval] = []
    start = end = -1
    for number in sorted(numbers):
        if number != end:
            if end > start:
                intervals.append((start, end))
            start = number
        end = number + 1
    if end > start:
        intervals.append((start, end))
    return intervals


def numbers_of(intervals: Iterable[Interval]) -> Iterator[int]:
    for start, end in intervals:
        yield from range(start, end)


class _Stored(BaseModel):
    """A stored document. Unknown fields are an error: `StoredState.from_json` then leaves them out."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class SequencePosition(_Stored):
    """One open epoch or partition.

    Attributes:
        cursor: all ordinals below it have been leased.
        outstanding: ordinals below the cursor that are not done.
        ahead: ordinals at or above the cursor that are done (answers to leases that the previous master did
            not store).
        partial: number of done records of outstanding shards, by ordinal.
        retries: failures and time-outs of outstanding shards, by ordinal.
    """

    epoch: int = 1
    partition: str = ""
    cursor: int = Field(ge=0)
    outstanding: list[Interval] = Field(default_factory=list)
    ahead: list[Interval] = Field(default_factory=list)
    partial: dict[int, int] = Field(default_factory=dict)
    retries: dict[int, int] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if any(end > self.cursor for _, end in self.outstanding):
            raise ValueError(
                f"outstanding: shards at or above the cursor {self.cursor} were never handed out"
            )
        return self


class DatasetPosition(_Stored):
    """Which records of a data set are done.

    Attributes:
        epoch: the newest open epoch; all epochs before it that `sequences` does not list are complete.
        digest: digest of the parameters that determine a shard's records; "" for the beginning, which fits
            every data set.
    """

    epoch: int = Field(default=0, ge=0)
    digest: str = Field(default="", max_length=64)
    sequences: list[SequencePosition] = Field(default_factory=list)
    records_done: int = Field(default=0, ge=0)
    completed_steps: int = Field(default=0, ge=0)

    @property
    def listed(self) -> int:
        """Number of shards in `outstanding` and `ahead`."""
        intervals = [i for sequence in self.sequences for i in (*sequence.outstanding, *sequence.ahead)]
        return sum(end - start for start, end in intervals)

    def forgiven(self) -> "DatasetPosition":
        """The position without retries, so that a job that is submitted again starts with all its retries."""
        return self.model_copy(
            update={"sequences": [s.model_copy(update={"retries": {}}) for s in self.sequences]}
        )


class JobPosition(_Stored):
    """The position of each training data set of a job, by name."""

    datasets: dict[str, DatasetPosition] = Field(default_factory=dict)

    def forgiven(self) -> "JobPosition":
        return JobPosition(datasets={name: position.forgiven() for name, position in self.datasets.items()})


class LeaseSnapshot(_Stored):
    """A worker's lease. `shards` has items `(epoch, partition, intervals of ordinals)`."""

    number: int
    node: str
    deadline: float
    shards: list[tuple[int, str, list[Interval]]]


class DatasetSnapshot(_Stored):
    """One data set with its leases; a stream's `params` have its present offsets.

    Attributes:
        keepers: nodes that keep acknowledgements until these are stored. The next master grants no lease
            before they have reported what they hold.
    """

    params: DatasetParams
    position: DatasetPosition
    leases: list[LeaseSnapshot] = Field(default_factory=list)
    next_lease: int = 1
    void_before: int = 0
    keepers: list[str] = Field(default_factory=list)
    reason: str = ""
    failures: int = 0
    timeouts: int = 0


class ResumedData(_Stored):
    """The checkpoint of an earlier job from which this one started.

    Attributes:
        uri: of the checkpoint.
        silent: whether the checkpoint has no data position.
        later: positions of data sets that are not registered yet, by name.
        notes: notes for people about the data, by data set.
    """

    uri: str = ""
    silent: bool = False
    later: dict[str, DatasetPosition] = Field(default_factory=dict)
    notes: dict[str, str] = Field(default_factory=dict)


class ShardsSnapshot(_Stored):
    """All data sets of a job, in the order of their registration."""

    datasets: list[DatasetSnapshot] = Field(default_factory=list)
    resumed: ResumedData = Field(default_factory=ResumedData)

    def to_json(self) -> str:
        """The compact text to store, without default values."""
        return self.model_dump_json(exclude_defaults=True)
