"""Who keeps the members of a training group waiting. Pure.

The members of a group take each step together, so one that does not come holds all others. A member's process
reports its steps, and between two reports that it lives and whether it waits for the others
(`edl_workflows.protocol.nodes.PresenceReport`). So a member for whom others wait is either *silent* (its
process is stopped, or cut off from the network) or *late*: it lives and computes, saves, or hangs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

FRESH_SECONDS = 8.0
"""A member that waits reports it every 2 s; an older report proves nothing."""


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
    """Members for whom others wait.

    Attributes:
        silent: seconds since the newest sign of each absent member, or since the others wait, if that is
            later; by node.
        waiting: the nodes that wait.
        since: Unix seconds since when they wait.
        step: the step in which they wait.
    """

    silent: Mapping[str, float]
    waiting: tuple[str, ...]
    since: float
    step: int


def find_absence(
    members: Sequence[str], version: int, signs: Mapping[str, MemberSign], listening_since: float, now: float
) -> Absence | None:
    """Who is waited for in the active version; None if nobody waits, or all wait for each other.

    Args:
        members: the nodes of the version.
        version: its number.
        signs: the newest of each node.
        listening_since: Unix seconds since when this master receives signs; what came before is unknown.
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
