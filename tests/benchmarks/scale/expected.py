"""The expected counts of a steady job's cost, and the gate: what costs more fails.

Counts do not depend on the machine's speed. `expected.json` has them a job and minute; it is changed on
purpose only. Some writes come once in the period that the controller publishes, which is longer where many
jobs share the budget of progress; others come as often in any case.
"""

import json
from collections.abc import Mapping
from pathlib import Path

from edl_workflows.core.write_budget import PROGRESS_SECONDS, WRITES_PER_SECOND, choose_period

TOLERANCE = 0.2
"""By how much a count may be above the expected one."""
LEAST = 0.6
"""The part of the expected count below which it needs to be recorded anew, or something was not measured."""
SLACK = 0.05
"""A count a job and minute that is no fault: single events at the edges of the time that is counted."""
_FILE = Path(__file__).with_name("expected.json")


def read_expected(jobs: int) -> dict[str, float]:
    """The expected counts of a job and minute, where there are so many jobs."""
    recorded: dict[str, dict[str, float]] = json.loads(_FILE.read_text())
    share = PROGRESS_SECONDS / choose_period(jobs, WRITES_PER_SECOND)
    always, shrinking = recorded["whatever the period"], recorded["with a period of a minute"]
    return {
        name: round(always.get(name, 0.0) + shrinking.get(name, 0.0) * share, 3)
        for name in always | shrinking
    }


def find_faults(counts: Mapping[str, float], jobs: int) -> list[str]:
    """A line for each count that is too large or too small; one that is not expected is expected to be 0."""
    expected = read_expected(jobs)
    return [
        f"{name}: {count} a job and minute; expected: {expected.get(name, 0.0)}, or {least:.3f} to {most:.3f}"
        for name, count in counts.items()
        for least, most in [_range_of(expected.get(name, 0.0))]
        if not least <= count <= most
    ]


def _range_of(expected: float) -> tuple[float, float]:
    return max(0.0, expected * LEAST - SLACK), max(expected * (1 + TOLERANCE), SLACK)
