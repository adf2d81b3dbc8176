"""Metrics that a program reports: bounded and harmless, whatever they are."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.protocol.metrics import (
    LOSS,
    MAX_CHARTED,
    MAX_METRICS,
    MAX_NAME,
    check_metrics,
    choose_charted,
    describe_metrics,
    select_evenly,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.state.statistics import Statistics

NODE = NodeRef(type="worker", id=0)
HOSTILE_NAMES = [
    "", "9x", "a b", "{{workflow.name}}", "{{=1}}", "$(id)", "a\nb", "a\n",
    "a\x1b[2J", "größe", "a" * (MAX_NAME + 1), "x" * 10_000,
]  # fmt: skip
_METRICS = st.dictionaries(st.from_regex(r"[a-z]{1,2}", fullmatch=True), st.floats(-1, 1), max_size=20)


def report(step: int, metrics: dict[str, Any]) -> StepReport:
    return StepReport(node=NODE, version=1, step=step, time=1.0, first_step_time=1.0, metrics=metrics)


class Scalar:
    """A tensor with one element."""

    def __float__(self) -> float:
        return 0.5


def test_numbers_of_any_type_are_taken() -> None:
    """Numbers that are not finite are left out, so that a diverged training continues."""
    given_metrics = {"a": 1, "b/c.d-e_f": Scalar(), "n": math.nan, "i": math.inf, "j": -math.inf}
    assert check_metrics(given_metrics) == {"a": 1.0, "b/c.d-e_f": 0.5}


@pytest.mark.parametrize("name", HOSTILE_NAMES, ids=range(len(HOSTILE_NAMES)))
def test_names_with_a_meaning_elsewhere_are_refused(name: str) -> None:
    """Both the program and the master, which does not trust the program, reject names of metrics that a
    shell, a terminal, or a template of Argo or Airflow could interpret."""
    with pytest.raises(InvalidError, match="letters, digits"):
        check_metrics({name: 1.0})
    with pytest.raises(ValidationError):
        report(1, {name: 1.0})


@pytest.mark.parametrize("value", ["high", None, [1], 10**400])
def test_what_is_no_number_is_refused(value: object) -> None:
    """A metric whose value is not a number is rejected with its name."""
    with pytest.raises(InvalidError, match="'loss' is no number"):
        check_metrics({"loss": value})


def test_too_many_are_refused() -> None:
    """A report with too many metrics is rejected."""
    many = {f"m{index}": 1.0 for index in range(10_000)}
    with pytest.raises(InvalidError, match=f"at most {MAX_METRICS}"):
        check_metrics(many)
    with pytest.raises(ValidationError, match=f"more than {MAX_METRICS}"):
        report(1, many)


@pytest.mark.parametrize("value", [math.nan, math.inf, "1e999", "x", None])
def test_the_master_takes_finite_numbers_only(value: object) -> None:
    """The master rejects metrics that are not finite numbers, since they can't be written to a status as
    JSON."""
    with pytest.raises(ValidationError):
        report(1, {"loss": value})


@given(st.lists(st.tuples(st.integers(0, 50), _METRICS), max_size=30))
def test_the_newest_values_stay_and_their_number_is_bounded(
    reports: list[tuple[int, dict[str, float]]],
) -> None:
    """The newest value of each metric is kept. Their number is bounded, however many names are reported and
    in whatever order reports arrive."""
    statistics = Statistics()
    expected: dict[str, tuple[int, float]] = {}
    for step, metrics in reports:
        statistics.record_step(report(step, metrics))
        for name, value in metrics.items():
            if (name in expected and step >= expected[name][0]) or (
                name not in expected and len(expected) < MAX_METRICS
            ):
                expected[name] = (step, value)

    assert statistics.metrics == {name: value for name, (_, value) in expected.items()}
    assert len(json.dumps(statistics.metrics)) < MAX_METRICS * (MAX_NAME + 30)


def test_steps_that_go_back_count_again() -> None:
    """After a restart from a checkpoint, the values of the new version replace later ones of the old
    version."""
    statistics = Statistics()
    statistics.record_step(report(100, {"accuracy": 0.9}))
    statistics.restart()
    assert statistics.metrics == {"accuracy": 0.9}
    statistics.record_step(report(50, {"accuracy": 0.8}))
    assert statistics.metrics == {"accuracy": 0.8}


def test_the_loss_of_steps_is_a_metric() -> None:
    """The loss is a metric beside as many others as a program may report. A metric named loss takes
    precedence."""
    statistics = Statistics()
    statistics.record_step(report(1, {f"m{index:02}": 1.0 for index in range(MAX_METRICS)}))
    statistics.record_step(report(2, {}).model_copy(update={"loss": 0.5}))
    assert statistics.metrics[LOSS] == 0.5
    assert len(statistics.metrics) == MAX_METRICS + 1

    statistics.record_step(report(3, {LOSS: 0.25}).model_copy(update={"loss": 0.5}))
    assert statistics.metrics[LOSS] == 0.25


@given(st.lists(_METRICS, max_size=30))
def test_a_history_has_few_metrics_and_keeps_their_names(reported: list[dict[str, float]]) -> None:
    """A metric that the history has stays in it, whatever is reported later, so that its curve has no
    gaps."""
    names: list[str] = []
    for metrics in reported:
        chosen = choose_charted(metrics, names)
        assert set(chosen) >= set(names) & set(metrics)
        assert all(abs(chosen[name] - metrics[name]) <= 1e-5 for name in chosen)
        names = list(dict.fromkeys((*names, *chosen)))
        assert len(names) <= MAX_CHARTED


def test_metrics_in_words() -> None:
    """In text, the loss comes first, and numbers have few digits. If there are too many metrics, only the
    number of the rest is given."""
    metrics = {"auc": 0.123456, "loss": 3.0, "z": -1e-9}
    assert describe_metrics(metrics) == "loss 3, auc 0.1235, z -1e-09"
    assert describe_metrics(metrics, 1) == "loss 3, 2 more"
    assert describe_metrics({}) == ""


def test_selection_keeps_the_ends() -> None:
    """The selected points are spread evenly, in order, with the first and the last."""
    found = select_evenly(range(1001), 11)

    assert found == list(range(0, 1001, 100))
    assert select_evenly([1, 2], 5) == [1, 2]
