"""What the hot paths cost, against the recorded costs in `hot_paths.json`. Rewrite with --update-golden.

The file has the costs with each version of Python that was recorded; with another one, the comparison is
skipped.
"""

import asyncio
import json
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.golden.hot_paths import HOT_PATHS, Cost, measure_cost
from tests.golden.hot_paths import Path as HotPath

FILE = Path(__file__).parent / "hot_paths.json"
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
MOST_INCREASE = 0.05
MOST_DECREASE = 0.20
"""A path that became cheaper must be recorded anew: otherwise it could become dearer again unnoticed."""
ROUNDING = 1
"""Calls or kilobytes that make no difference."""


def read_costs() -> dict[str, Cost]:
    """The recorded costs of this version of Python, by path."""
    recorded = json.loads(FILE.read_text(encoding="utf-8")).get(PYTHON, {})
    return {path: Cost(**cost) for path, cost in recorded.items()}


def find_differences(path: str, cost: Cost, recorded: Cost) -> list[str]:
    """In words, which counts of a path differ too much from the recorded ones."""
    differences = []
    counts = asdict(cost)
    for count, before in asdict(recorded).items():
        change = counts[count] - before
        if -max(MOST_DECREASE * before, ROUNDING) <= change <= max(MOST_INCREASE * before, ROUNDING):
            continue
        advice = "find out why, or record it" if change > 0 else "record the gain"
        differences.append(f"{path}: {counts[count]} {count}, not {before}: {advice} with `make golden`")
    return differences


def test_hot_paths_cost_what_is_recorded(update_golden: bool) -> None:
    """No hot path calls over 5 % more functions than recorded, or needs over 5 % more memory."""
    costs = {name: measure_cost(make()) for name, make in HOT_PATHS.items()}
    if update_golden:
        versions = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
        versions[PYTHON] = {name: asdict(cost) for name, cost in costs.items()}
        FILE.write_text(json.dumps(versions, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    recorded = read_costs()
    if not recorded:
        pytest.skip(f"no costs are recorded for Python {PYTHON}: `make golden` with it adds them")

    assert costs.keys() == recorded.keys()
    assert [text for name in costs for text in find_differences(name, costs[name], recorded[name])] == []


@pytest.mark.parametrize("name", HOT_PATHS)
def test_a_slowdown_of_a_tenth_is_found(name: str) -> None:
    """A path that calls a tenth more functions than before fails the comparison, as does one that needs a
    tenth more memory."""
    path = HOT_PATHS[name]()
    before = measure_cost(path)

    assert find_differences(name, measure_cost(path), before) == []
    assert find_differences(name, measure_cost(with_calls(path, before.calls)), before)
    assert find_differences(name, measure_cost(with_memory(path, before.kilobytes)), before)


@pytest.mark.parametrize("name", [name for name in HOT_PATHS if name.startswith("answer ")])
def test_tasks_of_other_tests_cost_nothing(name: str) -> None:
    """A path costs the same whether or not other tests of the process left tasks and event loops behind."""
    path = HOT_PATHS[name]()
    before = measure_cost(path)
    loop = asyncio.new_event_loop()
    tasks = [loop.create_task(asyncio.sleep(0)) for _ in range(before.calls // 10)]

    try:
        assert measure_cost(path).calls == before.calls
    finally:
        loop.run_until_complete(asyncio.wait(tasks))
        loop.close()


def with_calls(path: HotPath, calls: int) -> HotPath:
    """The path with a tenth more calls."""

    def slower() -> None:
        for _ in range(-(-calls // 10)):
            _do_nothing()
        path()

    return slower


def with_memory(path: HotPath, kilobytes: int) -> HotPath:
    """The path with a tenth more memory, and at least more than is rounded."""

    def larger() -> None:
        held = bytes(1024 * (kilobytes // 10 + 3 * ROUNDING))
        path()
        del held

    return larger


def _do_nothing() -> None:
    """A call."""


def test_a_gain_must_be_recorded() -> None:
    """A path that became a quarter cheaper fails, too, so that the gain can't be lost again unnoticed."""
    (difference,) = find_differences("a path", Cost(75, 10), Cost(100, 10))

    assert difference == "a path: 75 calls, not 100: record the gain with `make golden`"
    assert find_differences("a path", Cost(95, 11), Cost(100, 10)) == []
