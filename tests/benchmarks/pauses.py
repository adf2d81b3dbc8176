"""How long members of a training stood still when others were killed or joined, from what they noted
(`tests.e2e.turns`)."""

import os
import statistics
from dataclasses import dataclass, field
from itertools import pairwise

from tests.e2e.turns import Turns


@dataclass
class Kills:
    """The kills of a run.

    Attributes:
        times: Unix seconds of each.
        processes: that were killed.
        hangs: how often training did not go on within `SECONDS`; the run ends with the first.
    """

    times: list[float] = field(default_factory=list)
    processes: set[int] = field(default_factory=set)
    hangs: int = 0


@dataclass
class Pauses:
    """How long members stood still: seconds from the last step before an event to the end of the first step
    after it, less the rest between two steps.

    Attributes:
        kills: of each survivor of a kill.
        joins: of each member that a newcomer joined.
        steps: of all other steps.
    """

    kills: list[float] = field(default_factory=list)
    joins: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)


def measure_pauses(turns: Turns, kills: Kills) -> Pauses:
    """From what the members noted.

    A step that has begun may still end after a kill. So a kill's pause is the longest between it and the
    first step with fewer members.
    """
    pauses = Pauses()
    for process in turns.processes():
        made = [turn for turn in turns.of(process) if turn[3]]
        killed = 0.0
        for before, after in pairwise(made):
            gap = after[0] - before[0] - before[6]
            if killed or any(before[0] < at < after[0] for at in kills.times):
                killed = max(killed, gap)
                if after[2] < before[2]:
                    pauses.kills.append(killed)
                    killed = 0.0
            else:
                (pauses.joins if after[2] > before[2] else pauses.steps).append(gap)
    return pauses


def lost_steps(turns: Turns) -> int:
    """How often a member made a step that it had made before."""
    made = [[turn[4] for turn in turns.of(process) if turn[3]] for process in turns.processes()]
    return sum(after <= before for steps in made for before, after in pairwise(steps))


def percentiles(seconds: list[float]) -> str:
    """Median, 99th percentile and maximum."""
    if len(seconds) < 2:
        return "too few to say"
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return f"p50 {cuts[49]:6.3f} s   p99 {cuts[98]:6.3f} s   max {max(seconds):6.3f} s   of {len(seconds)}"


def describe_load() -> str:
    """How busy the machine is."""
    one, five, fifteen = os.getloadavg()
    return f"{os.cpu_count()} cores, load average {one:.1f} {five:.1f} {fifteen:.1f}"
