"""The check of nodes before training: pairs, two rounds, who is faulty and who is slow."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.services.master.state.nodes.node_check import (
    JOIN_SECONDS,
    CheckResult,
    NodeCheck,
    NodeCheckRules,
    advance_check,
    first_groups,
    record_result,
    second_groups,
    slower_than_median,
)

RULES = NodeCheckRules(timeout=60.0, straggler_ratio=2.0)


def _measure(check: NodeCheck, broken: frozenset[str], speed: Mapping[str, float]) -> NodeCheck:
    """All nodes of the round report. The others of a group each go to the first, which is sound if it meets a
    sound one.
    """
    assert check.round is not None
    for group in check.round.groups:
        for node in group:
            partners = group[1:] if node == group[0] else group[:1]
            sound = node not in broken and (not partners or not broken.issuperset(partners))
            seconds = max(speed.get(other, 1.0) for other in (node, *partners))
            result = CheckResult(seconds) if sound else CheckResult(error="no way")
            check = record_result(check, node, check.round.number, result)
    return check


def _check(
    nodes: int, broken: frozenset[str], speed: Mapping[str, float]
) -> tuple[NodeCheck, dict[str, str], int]:
    """The check, what it found faulty, and how many rounds it took."""
    there = [f"worker-{index}" for index in range(nodes)]
    check, faulty = advance_check(NodeCheck(), there, complete=True, rules=RULES, now=0.0)
    while check.round is not None and not faulty:
        check, faulty = advance_check(
            _measure(check, broken, speed), there, complete=True, rules=RULES, now=1.0
        )
    return check, faulty, check.number


@pytest.mark.parametrize(
    ("nodes", "broken", "slow", "faulty", "late", "rounds"),
    [
        (1, [], {}, [], [], 1),
        (1, [0], {}, [0], [], 1),
        (4, [], {}, [], [], 1),
        (4, [0], {}, [0], [], 2),
        (5, [4], {}, [4], [], 2),
        (6, [], {3: 5.0}, [], [3], 2),
        (8, [1, 6], {}, [1, 6], [], 2),
        (2, [0], {}, [0, 1], [], 2),
    ],
    ids=[
        "a single node measures alone",
        "and fails alone",
        "a clean round is enough",
        "the partner of a faulty one is sound",
        "also in a group of three",
        "a slow node makes one partner slow, not both",
        "two faulty ones",
        "of two nobody can tell which",
    ],
)
def test_verdicts(
    nodes: int, broken: list[int], slow: dict[int, float], faulty: list[int], late: list[int], rounds: int
) -> None:
    """A node is faulty if it fails twice with different partners. A node is a straggler by the better of its
    two rounds."""
    name = "worker-{}".format
    check, found, took = _check(
        nodes, frozenset(map(name, broken)), {name(index): seconds for index, seconds in slow.items()}
    )
    assert sorted(found) == [name(index) for index in faulty]
    assert list(slower_than_median(check.passed, RULES.straggler_ratio)) == [name(index) for index in late]
    assert took == rounds


@given(st.integers(1, 40), st.data())
def test_every_node_has_a_partner_in_both_rounds(nodes: int, data: st.DataObject) -> None:
    """Each node is in exactly one group of each round, and with two nodes or more none is alone."""
    there = [f"worker-{index}" for index in range(nodes)]
    times = data.draw(st.lists(st.floats(0, 100), min_size=nodes, max_size=nodes))
    fails = data.draw(st.lists(st.booleans(), min_size=nodes, max_size=nodes))
    results = {
        node: CheckResult(seconds, "no way" if failed else "")
        for node, seconds, failed in zip(there, times, fails, strict=True)
    }
    for groups in (first_groups(there, {}), second_groups(results)):
        assert sorted(node for group in groups for node in group) == sorted(there)
        assert all(len(group) in (2, 3) for group in groups) or nodes == 1


@given(st.integers(3, 30), st.data())
def test_one_faulty_node_of_three_or_more_is_found_alone(nodes: int, data: st.DataObject) -> None:
    """Whichever node is faulty, and whatever its group was, exactly that node is found."""
    broken = f"worker-{data.draw(st.integers(0, nodes - 1))}"
    _, faulty, rounds = _check(nodes, frozenset({broken}), {})
    assert list(faulty) == [broken]
    assert rounds == 2


def test_waits_for_the_wanted_then_for_joins() -> None:
    """The check waits for missing nodes. If none has joined for a while, it starts with the nodes that are
    present."""
    check, _ = advance_check(NodeCheck(), ["worker-0", "worker-1"], complete=False, rules=RULES, now=0.0)
    check, _ = advance_check(
        check, ["worker-0", "worker-1"], complete=False, rules=RULES, now=JOIN_SECONDS - 1
    )
    assert check.round is None
    check, _ = advance_check(check, ["worker-0", "worker-1"], complete=False, rules=RULES, now=JOIN_SECONDS)
    assert check.round is not None


def test_who_says_nothing_has_failed() -> None:
    """A node that does not report within the time-out has failed the round; one that does so twice is
    faulty."""
    there = ["worker-0", "worker-1", "worker-2", "worker-3"]
    check, _ = advance_check(NodeCheck(), there, complete=True, rules=RULES, now=0.0)
    for now in (60.0, 120.0):
        assert check.round is not None
        for node in there[:3]:
            check = record_result(check, node, check.round.number, CheckResult(1.0))
        check, faulty = advance_check(check, there, complete=True, rules=RULES, now=now - 1)
        assert not faulty
        check, faulty = advance_check(check, there, complete=True, rules=RULES, now=now)
    assert faulty == {"worker-3": "no answer within 60 s"}
    assert set(check.passed) == set(there[:3])


def test_a_newcomer_is_checked_with_one_that_passed() -> None:
    """The replacement of a faulty node is checked with one that has passed, and the others are not checked
    again."""
    check, _, _ = _check(4, frozenset({"worker-0"}), {"worker-2": 0.5})
    there = ["worker-1", "worker-2", "worker-3", "worker-4"]
    check, _ = advance_check(check, there, complete=True, rules=RULES, now=5.0)
    assert check.round is not None
    (group,) = check.round.groups
    assert group[0] == "worker-4"
    assert group[1] in check.passed


def test_a_node_that_leaves_begins_the_round_anew() -> None:
    """The round starts again without the node. Its partner does not count as faulty, and late reports to the
    former round are ignored."""
    there = ["worker-0", "worker-1", "worker-2", "worker-3"]
    check, _ = advance_check(NodeCheck(), there, complete=True, rules=RULES, now=0.0)
    assert check.round is not None
    old = check.round.number
    check, faulty = advance_check(check, there[:3], complete=True, rules=RULES, now=1.0)
    assert check.round is not None
    assert check.round.number > old
    assert not faulty
    assert record_result(check, "worker-0", old, CheckResult(error="no way")) == check
