"""Who belongs to the next world of a collective job: from who has joined, who trained before, and what the job allows.

Values in, a verdict out; nothing is remembered here, so that joins, leaves and repetitions may come in any order.
`world_steps` asks, and makes a cluster version of each world.

As DLRover's rendezvous manager (and torch's elastic agents): at least and at most so many nodes, in units, with a time-out
after the last join. Other than upstream's: ranks go by age, as its design says and its code no longer does; the unit never
rounds below the minimum; a world is made anew only when its members really change.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class RendezvousLimits:
    """What a world may look like.

    Attributes:
        min_nodes, max_nodes: the fewest and the most members.
        node_unit: their number is a multiple of it where that is not below `min_nodes`.
        waiting_timeout: seconds after the last join, before a world smaller than wanted is made.
        join_timeout: seconds with fewer than `min_nodes` joined, after which the job fails.
    """

    min_nodes: int = 1
    max_nodes: int = 1
    node_unit: int = 1
    waiting_timeout: float = 30.0
    join_timeout: float = 600.0


@dataclass(frozen=True)
class WaitingWorkers:
    """Who is there.

    Attributes:
        present: members by rank of the world that trains, or trained last.
        intact: it still trains.
        joined: when each node joined that can be a member (Unix seconds), by id; also those of `present` that live.
        wanted: how many members the job asks for.
        expected: Unix seconds at which the newest worker was made that has not joined yet, where it is waited for; else 0.
    """

    present: tuple[int, ...]
    intact: bool
    joined: Mapping[int, float]
    wanted: int
    expected: float = 0.0


@dataclass(frozen=True)
class RendezvousVerdict:
    """The next world, or why there is none.

    Attributes:
        members: node ids by rank; None: there is no next world.
        why: in words.
        until: Unix seconds at which waiting ends if nothing else happens; None where only a join helps, or nothing is awaited.
    """

    members: tuple[int, ...] | None
    why: str
    until: float | None = None


def next_group(waiting: WaitingWorkers, parameters: RendezvousLimits, now: float) -> RendezvousVerdict:
    """The members of the next world.

    1. In line stand the survivors of the present world in their order, then newcomers by the time they joined: rank 0 is the
       oldest, which has the model.
    2. Enough for all that are wanted, in units: that is the world.
    3. The present world is broken, and its survivors are enough: they go on at once, with whom they find.
    4. Enough, and nobody has joined for the waiting time: so many as there are, in units.
    5. Else wait; without the fewest, for joins.

    A world of the present members is none if they still train.
    """
    line = order_members(waiting.present, waiting.joined)
    wanted = max(parameters.min_nodes, min(waiting.wanted, parameters.max_nodes))
    size = round_to_units(min(len(line), wanted), parameters)
    if size < parameters.min_nodes:
        return RendezvousVerdict(None, f"{len(line)} of at least {parameters.min_nodes} workers have joined")
    members = line[:size]
    if waiting.intact and members == waiting.present:
        return RendezvousVerdict(None, "the members of the present world are the right ones")
    survivors = [node for node in waiting.present if node in waiting.joined]
    go_on = not waiting.intact and len(survivors) >= parameters.min_nodes
    if size >= round_to_units(wanted, parameters) or go_on:
        return RendezvousVerdict(members, f"{size} of {wanted} wanted workers")
    newest = max(waiting.expected, *(waiting.joined[node] for node in line))
    until = newest + parameters.waiting_timeout
    if now >= until:
        why = f"nobody joined {size} workers for {parameters.waiting_timeout:g} s; {wanted} are wanted"
        return RendezvousVerdict(members, why)
    return RendezvousVerdict(None, f"{len(line)} of {wanted} wanted workers have joined", until)


def order_members(present: tuple[int, ...], joined: Mapping[int, float]) -> tuple[int, ...]:
    """All that have joined: survivors as they stood, then newcomers by the time they joined, then by id."""
    survivors = [node for node in present if node in joined]
    newcomers = sorted(joined.keys() - set(present), key=lambda node: (joined[node], node))
    return (*survivors, *newcomers)


def round_to_units(count: int, parameters: RendezvousLimits) -> int:
    """The largest number of members that `count` nodes can make; 0 if they are too few."""
    if count < parameters.min_nodes:
        return 0
    return max(count // parameters.node_unit * parameters.node_unit, parameters.min_nodes)
