"""The steps of a job that somebody waits for: annotations of the job, one for each waiter.

A job's master writes mere progress rarely, but it writes the status as soon as such a step has been made.
Each waiter has an annotation of its own, so two pipelines never overwrite each other.
"""

import hashlib
import re
from collections.abc import Mapping
from typing import Any

from edl_workflows.core.kubernetes import names

MAX_WAITERS = 32
"""So many annotations are read; a waiter that finds more relies on the rare writes."""
_STEP = re.compile(r"[0-9]{1,15}")


def annotation_of(owner: str) -> str:
    """The annotation of a waiter.

    Args:
        owner: identifies the waiter, and stays the same if it starts again.
    """
    return f"{names.AWAITED_STEP_PREFIX}{hashlib.sha256(owner.encode()).hexdigest()[:16]}"


def read_waiters(annotations: Mapping[str, str]) -> dict[str, int]:
    """The step of each waiter by its annotation; at most `MAX_WAITERS`, and only readable ones."""
    waiters = {
        name: int(step)
        for name, step in sorted(annotations.items())
        if name.startswith(names.AWAITED_STEP_PREFIX) and _STEP.fullmatch(step)
    }
    return dict(list(waiters.items())[:MAX_WAITERS])


def awaited_steps(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """The steps that somebody waits for, in order."""
    return tuple(sorted(set(read_waiters(annotations).values())))


def next_awaited(step: int, steps: tuple[int, ...]) -> int:
    """The next of these steps, in order, after a step; 0 for none."""
    return next((later for later in steps if later > step), 0)


def without_waiters(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """A job without the annotations of its waiters: they concern its master alone."""
    metadata = job["metadata"]
    annotations = metadata.get("annotations")
    if annotations is None:
        return job
    kept = {
        name: text for name, text in annotations.items() if not name.startswith(names.AWAITED_STEP_PREFIX)
    }
    rest = {key: field for key, field in metadata.items() if key != "annotations"}
    # The last waiter that leaves may leave an empty map.
    return {**job, "metadata": rest | ({"annotations": kept} if kept else {})}


def has_passed(before: int, after: int, steps: tuple[int, ...]) -> bool:
    """Whether one of these steps was made between two others."""
    return any(before < step <= after for step in steps)
