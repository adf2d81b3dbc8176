"""Which training processes an agent starts and ends."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.protocol.nodes import Directive, NodeRef
from edl_workflows.services.agent.process_choice import ProcessChoice, choose_processes
from tests.unit.training.fake_master import cluster, world

WORKER = NodeRef(type="worker", id=0)
PS0, PS2 = NodeRef(type="ps", id=0), NodeRef(type="ps", id=2)
V1, V2, V3 = cluster(1, ps=2), cluster(2, ps=3), cluster(3, ps=2)
W1, W2 = world(1, (0, 1)), world(2, (1, 2))
IN_PLACE = world(3, (0, 2)).model_copy(
    update={
        "workers": [
            member.model_copy(update={"process": process})
            for member, process in zip(world(3, (0, 2)).workers, (1, 0), strict=True)
        ]
    }
)
RETURNED = cluster(3, ps=2)
RETURNED = RETURNED.model_copy(
    update={"ps": [server.model_copy(update={"process": 1}) for server in RETURNED.ps]}
)
NEWCOMER, EVALUATOR = NodeRef(type="worker", id=2), NodeRef(type="evaluator", id=0)


def said(**fields: Any) -> Directive:
    return Directive(revision=1, **fields)


ROWS = {
    "nothing is active": (said(), WORKER, set(), ProcessChoice()),
    "first version": (said(active=V1), WORKER, set(), ProcessChoice(start=(V1,))),
    "runs already": (said(active=V1), WORKER, {1}, ProcessChoice()),
    "successor is prepared beside": (
        said(active=V1, next=V2, trained=1),
        WORKER,
        {1},
        ProcessChoice(start=(V2,)),
    ),
    "new server serves the next version only": (
        said(active=V1, next=V2),
        PS2,
        set(),
        ProcessChoice(start=(V2,)),
    ),
    "server outside of both": (said(active=V1, next=V3), PS2, set(), ProcessChoice()),
    "successor is called off": (said(active=V1, trained=1), WORKER, {1, 2}, ProcessChoice(end=(2,))),
    "old one stays until the new one trains": (said(active=V2, trained=1), WORKER, {1, 2}, ProcessChoice()),
    "old one ends when the new one trains": (
        said(active=V2, trained=2),
        WORKER,
        {1, 2},
        ProcessChoice(end=(1,)),
    ),
    "removed server ends too": (said(active=V3, trained=3), PS2, {2}, ProcessChoice(end=(2,))),
    "port is freed first": (said(active=V2, next=V3, trained=1), WORKER, {1, 2}, ProcessChoice(end=(1,))),
    "then taken": (said(active=V2, next=V3, trained=1), WORKER, {2}, ProcessChoice(start=(V3,))),
    "both missing": (said(active=V1, next=V2), WORKER, set(), ProcessChoice(start=(V1, V2))),
    "lost one is not started": (
        said(active=V1, next=V2, lost=True),
        WORKER,
        set(),
        ProcessChoice(start=(V2,)),
    ),
    "a worker takes part in worlds that name it": (
        said(active=W1, next=W2),
        NEWCOMER,
        set(),
        ProcessChoice(start=(W2,)),
    ),
    "a process goes on in the next world": (said(active=W1, next=IN_PLACE), WORKER, {1}, ProcessChoice()),
    "and in the active one": (said(active=IN_PLACE, trained=3), WORKER, {1}, ProcessChoice()),
    "one that has ended can't go on": (said(active=IN_PLACE, trained=1), WORKER, set(), ProcessChoice()),
    "a newcomer starts its process": (
        said(active=W1, next=IN_PLACE),
        NEWCOMER,
        set(),
        ProcessChoice(start=(IN_PLACE,)),
    ),
    "it waits for more members": (said(active=W1, broken=True, trained=1), WORKER, {1}, ProcessChoice()),
    "nobody holds the model": (
        said(active=IN_PLACE, lost=True, trained=1),
        WORKER,
        {1},
        ProcessChoice(end=(1,)),
    ),
    "one that leaves prepares nothing": (said(active=W1, next=W2, trained=1), WORKER, {1}, ProcessChoice()),
    "one that left ends": (said(active=W2, trained=2), WORKER, {1}, ProcessChoice(end=(1,))),
    "an evaluator is in every world": (
        said(active=W1, next=W2),
        EVALUATOR,
        set(),
        ProcessChoice(start=(W1, W2)),
    ),
    "a broken world ends at once": (said(active=W1, lost=True), WORKER, {1}, ProcessChoice(end=(1,))),
    "and another begins beside it": (
        said(active=W1, next=world(2, (0,)), lost=True),
        WORKER,
        {1},
        ProcessChoice(start=(world(2, (0,)),), end=(1,)),
    ),
    "an old server goes on after a rollback": (
        said(active=V2, next=RETURNED, lost=True, trained=1),
        PS0,
        {1, 2},
        ProcessChoice(),
    ),
    "and ends that of the version that never trained": (
        said(active=RETURNED, trained=3),
        PS0,
        {1, 2},
        ProcessChoice(end=(2,)),
    ),
    "its worker is started anew": (
        said(active=V2, next=RETURNED, lost=True, trained=1),
        WORKER,
        {1, 2},
        ProcessChoice(end=(1,)),
    ),
    "lost one stays where it runs": (
        said(active=V1, next=V2, lost=True),
        WORKER,
        {1},
        ProcessChoice(start=(V2,)),
    ),
}


@pytest.mark.parametrize(
    ("directive", "node", "running", "expected"), [pytest.param(*row, id=name) for name, row in ROWS.items()]
)
def test_choice(directive: Directive, node: NodeRef, running: set[int], expected: ProcessChoice) -> None:
    """In each situation, the choice has the processes that the protocol promises."""
    assert expected == choose_processes(directive, node, running, set())


def test_ended_version_is_not_started_again() -> None:
    """A process that ended, and whose exit was excused, is started again with the next version only."""
    assert ProcessChoice() == choose_processes(said(active=V1), WORKER, set(), {1})
    assert ProcessChoice(start=(V2,)) == choose_processes(said(active=V1, next=V2), WORKER, set(), {1})


versions = st.one_of(
    st.none(),
    st.integers(1, 6).map(lambda v: cluster(v, ps=v % 3)),
    st.integers(1, 6).map(lambda v: world(v, (v % 2, 2))),
)


@given(
    active=versions,
    following=versions,
    trained=st.integers(0, 6),
    node=st.sampled_from([WORKER, NEWCOMER, PS0, PS2]),
    lost=st.booleans(),
    running=st.sets(st.integers(1, 6), max_size=3),
)
def test_choices_come_to_rest(
    active: Any, following: Any, trained: int, node: NodeRef, lost: bool, running: set[int]
) -> None:
    """After a choice is carried out, the following ones become empty within two rounds. A choice never starts
    a version on a port in use."""
    directive = said(active=active, next=following, trained=trained, lost=lost)
    for _ in range(2):
        decided = choose_processes(directive, node, running, set())
        assert not {c.version % 2 for c in decided.start} & {v % 2 for v in running}
        running = running - set(decided.end) | {c.version for c in decided.start}
    settled = choose_processes(directive, node, running, set())
    same_port = active is not None and following is not None and active.version % 2 == following.version % 2
    assert settled == ProcessChoice() or same_port
