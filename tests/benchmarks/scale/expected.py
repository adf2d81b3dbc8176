"""The expected counts of a steady job's cost, and the gate: what costs more fails.

Counts do not depend on the machine's speed. `expected.json` has them a minute; it is changed on purpose only.
"""

import json
from collections.abc import Mapping
from pathlib import Path

TOLERANCE = 0.2
"""By how much a count may be above the expected one."""
SLACK = 0.05
"""A count a job and minute that is no excess: single events at the edges of the time that is counted."""
_FILE = Path(__file__).with_name("expected.json")


def read_expected() -> dict[str, float]:
    """The expected counts of a job and minute."""
    counts: dict[str, float] = json.loads(_FILE.read_text())
    return counts


def find_excesses(counts: Mapping[str, float]) -> list[str]:
    """A line for each count that is too large; one that is not expected is expected to be 0."""
    expected = read_expected()
    most = {name: max(expected.get(name, 0.0) * (1 + TOLERANCE), SLACK) for name in counts}
    return [
        f"{name}: {count} a job and minute; at most {most[name]:.3f} ({expected.get(name, 0.0)} + 20 %)"
        for name, count in counts.items()
        if count > most[name]
    ]
