"""Saves one part of a checkpoint to storage, and publishes the checkpoint when all parts have been saved.

Each member of a cluster version saves its own part. The chief, which saves part 0, publishes the checkpoint.
Until then nobody sees the checkpoint, whichever member dies, and the previous one stays valid.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints.checkpoint_parts import Part
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import Layout

if TYPE_CHECKING:
    from edl_workflows.training.checkpoints.tensors import Loaded, State

LOOK_SECONDS = 0.1
LOST_PART_SECONDS, LOST_PART_FACTOR = 8.0, 2.0
"""After a loss, the chief waits for the other parts for this many seconds plus this many times the time that
its own part took."""


@runtime_checkable
class PartFramework(Protocol):
    """What an adapter implements, in addition to `edl_workflows.training.collective.framework.Framework`, so
    that all members save checkpoints together."""

    def part_state(self, step: int, metadata: Mapping[str, str], part: Part) -> "State":
        """This member's part of the state of model and optimizer to save."""
        ...

    def load_parts(self, parts: Iterable["Loaded"], where: str) -> None:
        """Load this member's share of the state from the parts of a checkpoint, if several members hold the
        model together.

        Args:
            parts: all parts of the checkpoint.
            where: place of the checkpoint, for error messages.

        Raises:
            CheckpointError: the checkpoint belongs to another model, or a part is damaged.
        """
        ...


class SavedAs(NamedTuple):
    """The checkpoint to which a part belongs.

    Attributes:
        name: name of the checkpoint; the same in all members.
        step: global step.
        part: which part.
        position: the data consumed at that step; only the chief knows it.
        variables: variables of the model, for the manifest.
    """

    name: str
    step: int
    part: Part
    position: Mapping[str, Any] | None = None
    variables: Layout | None = None


def save_part(
    store: CheckpointStore,
    saved_as: SavedAs,
    write: Callable[[Path], object],
    writer: str,
    stop: threading.Event,
    *,
    lost: bool = False,
) -> None:
    """Save a part. The chief then also waits for the other parts, and publishes the checkpoint.

    Args:
        store: where the checkpoint is saved.
        saved_as: the checkpoint to which the part belongs.
        write: writes the part's file at the given path.
        writer: unique name of the writer.
        stop: ends the wait when set.
        lost: whether a training process was lost. If the other processes continue, their parts will not come,
            while the next process waits for this checkpoint. So the chief waits only for a time that depends
            on how long its own part took.

    Raises:
        CheckpointError: the storage failed, or the other parts did not come.
    """
    name, part, began = saved_as.name, saved_as.part, time.monotonic()
    try:
        if part.index in store.missing_parts(name, part.count)[0]:
            store.put_part(name, part, write, writer)
        if part.index == 0:
            took = time.monotonic() - began
            patience = LOST_PART_SECONDS + LOST_PART_FACTOR * took if lost else store.part_seconds
            _wait_for_others(store, saved_as, stop, patience)
            store.publish_parts(
                saved_as.step, part.count, name=name, position=saved_as.position, variables=saved_as.variables
            )
    except CheckpointError:
        if part.index == 0 and not stop.is_set():  # the next agent of this node may publish it after a stop
            store.discard_parts(name)
        raise


def _wait_for_others(
    store: CheckpointStore, saved_as: SavedAs, stop: threading.Event, patience: float
) -> None:
    seen = store.missing_parts(saved_as.name, saved_as.part.count)
    deadline = time.monotonic() + patience
    while seen[0]:
        if stop.wait(LOOK_SECONDS) or time.monotonic() >= deadline:
            numbers = ", ".join(str(index + 1) for index in seen[0][:10])
            raise CheckpointError(
                f"{store.place}/{saved_as.name}: of {saved_as.part.count} parts some are missing: {numbers}; "
                "each member saves one, and a member may have been lost"
            )
        now = store.missing_parts(saved_as.name, saved_as.part.count)
        if now != seen:
            seen, deadline = now, time.monotonic() + patience


def is_published(store: CheckpointStore, ref: CheckpointRef) -> bool:
    """Whether a checkpoint is on storage, complete and unchanged."""
    with contextlib.suppress(CheckpointError):
        store.verify(ref)
        return True
    return False
