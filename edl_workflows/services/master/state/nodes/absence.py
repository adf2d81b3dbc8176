"""Finds the members of a training group for which the others wait. Pure.

The members of a group make each step together, so a member that does not take part blocks all others. A
member's process reports its steps. In between it reports that it is alive and whether it waits for the others
(`edl_workflows.core.protocol.nodes.PresenceReport`). So a member for which the others wait is either *silent*
(its process is stopped, or cut off from the network) or *late* (its process is alive and computes, saves or
hangs).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FRESH_SECONDS = 8.0
"""A waiting member reports every 2 s. After this many seconds, its last report no longer counts."""


@dataclass(frozen=True)
class MemberSign:
    """A sign of life of a member's process.

    Attributes:
        at: Unix seconds at which it arrived.
        version: cluster version of the process.
        step: the newest step that it has made.
        waits_since: Unix seconds since when it waits for other members; 0 if it does not.
    """

    at: float
    version: int
    step: int
    waits_since: float = 0.0


@dataclass(frozen=True)
class Absence:
    """Members for which others wait.

    Attributes:
        silent: for each absent member, by node, the seconds since its newest sign of life or since the others
            began to wait, whichever is less.
        waiting: the nodes that wait.
        since: when they began to wait, in Unix seconds.
        step: the step in which they wait.
    """

    silent: Mapping[str, float]
    waiting: tuple[str, ...]
    since: float
    step: int


def find_absence(
    members: Sequence[str], version: int, signs: Mapping[str, MemberSign], listening_since: float, now: float
) -> Absence | None:
    """The members of the active version for which others wait; None if no member waits, or all do.

    Args:
        members: the nodes of the version.
        version: number of the version.
        signs: the newest sign of life of each node.
        listening_since: since when this master receives signs of life, in Unix seconds; earlier ones are
            unknown.
        now: Unix seconds.
    """
    present = {node: signs[node] for node in members if node in signs and signs[node].version == version}
    waiting = {
        node: sign for node, sign in present.items() if sign.waits_since and now - sign.at <= FRESH_SECONDS
    }
    absent = [node for node in members if node not in waiting]
    if not waiting or not absent:
        return None
    since = max(listening_since, min(sign.waits_since for sign in waiting.values()))
    heard = {node: max(since, signs[node].at if node in signs else 0.0) for node in absent}
    step = 1 + max(sign.step for sign in waiting.values())
    return Absence({node: now - at for node, at in heard.items()}, tuple(waiting), since, step)
