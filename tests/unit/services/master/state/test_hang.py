"""Training that stands still: when it counts as a hang, and what follows."""

import pytest

from edl_workflows.core.jobs.elastic_job.policies import HangAction
from edl_workflows.services.master.state.nodes.hang import (
    DUMP_SECONDS,
    HangRules,
    Hangs,
    HangStep,
    LastMove,
    watch_progress,
)

RULES = HangRules(timeout=100.0, action=HangAction.RESTART, max_restarts=2)


def _run(rules: HangRules, looks: list[tuple[float, int | None]]) -> tuple[Hangs, list[str]]:
    """What is done at each look; None: nothing is expected to move. The marker is the number."""
    hangs, moved, steps = Hangs(), None, []
    last: LastMove | None = moved
    for now, number in looks:
        marker = None if number is None else (number,)
        hangs, last, step = watch_progress(hangs, last, marker, rules, now)
        steps.append(step.value)
    return hangs, steps


@pytest.mark.parametrize(
    ("action", "steps", "failed"),
    [
        (HangAction.LOG, ["", "", "found", "", "", ""], False),
        (HangAction.RESTART, ["", "", "found", "", "restart", "restart"], False),
        (HangAction.FAIL, ["", "", "found", "", "fail", ""], True),
    ],
)
def test_stacks_first_then_the_action(action: HangAction, steps: list[str], failed: bool) -> None:
    """Nothing happens before the time-out. Then stacks are requested, and the action follows when there was
    time to collect them."""
    found = 100.0
    looks = [0.0, found - 1, found, found + 1, found + DUMP_SECONDS, found + DUMP_SECONDS + 1]
    hangs, done = _run(HangRules(100.0, action, 2), [(now, 1) for now in looks])
    assert done == steps
    assert bool(hangs.failure) is failed
    assert hangs.dump == "hang-1"


@pytest.mark.parametrize(
    "looks",
    [
        [(0.0, 1), (99.0, 2), (198.0, 3)],
        [(0.0, 1), (50.0, None), (100.0, 1), (199.0, 1)],
    ],
    ids=["something moves", "a change of the cluster is no hang"],
)
def test_no_hang(looks: list[tuple[float, int | None]]) -> None:
    """The time of a hang counts from the last step, and only while training is expected to make steps."""
    assert _run(RULES, looks)[1] == [""] * len(looks)


def test_nobody_looks_without_a_time_out() -> None:
    """With ``hangTimeoutSeconds: 0``, nothing is detected as a hang."""
    assert _run(HangRules(timeout=0.0), [(0.0, 1), (1e9, 1)])[1] == ["", ""]


def test_restarts_are_counted_and_end() -> None:
    """A step ends the hang and its request for stacks, but keeps the count of restarts. When the count is
    used up, the job fails and says why."""
    looks: list[tuple[float, int | None]] = []
    for hang in range(3):
        start = hang * 1000.0
        looks += [(start, hang), (start + 100, hang), (start + 100 + DUMP_SECONDS, hang), (start + 120, None)]
    hangs, done = _run(RULES, looks)
    assert [step for step in done if step] == ["found", "restart", "found", "restart", "found", "fail"]
    assert hangs.restarts == 2
    assert hangs.dump == ""
    assert "maxRestarts" in hangs.failure


def test_a_new_master_counts_anew() -> None:
    """A new master starts to count when it begins to watch; time before that does not count as a hang."""
    hangs, moved, step = watch_progress(Hangs(number=1, since=90.0), None, (1,), RULES, 1000.0)
    assert (hangs.dump, moved, step) == ("", LastMove((1,), 1000.0), HangStep.NONE)
