"""Goodput, its fit, and speed-up tables by example."""

from dataclasses import astuple, replace
from math import inf, nan
from random import Random

import numpy as np
import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.pollux.goodput import (
    BatchLimits,
    GoodputModel,
    GradParams,
    PerfParams,
    grad_seconds,
    step_seconds,
    sync_seconds,
)
from edl_workflows.core.scaling.pollux.goodput_fit import StepMeasurement, fit_step_times
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable, SpeedupTables

PERF = PerfParams(0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14)
GRAD = GradParams(sqr=0.00136, var=0.000502)
LIMITS = BatchLimits(128, 1280, (64, 256))
MODEL = GoodputModel(PERF, GRAD, LIMITS)
PLACEMENTS = [(1, 1), (1, 2), (1, 4), (2, 2), (2, 8), (4, 16)]


def measured(
    perf: PerfParams, placements: list[tuple[int, int]], noise: float = 0.0
) -> list[StepMeasurement]:
    """Exact step times, each off by up to this part."""
    random = Random(1)
    found = []
    for nodes, replicas in placements:
        for atomic in (64, 128, 256):
            factor = 1 + random.uniform(-noise, noise)
            step = float(step_seconds(perf, nodes, replicas, atomic)) * factor
            found.append(
                StepMeasurement(nodes, replicas, atomic, step, float(grad_seconds(perf, atomic)) * factor)
            )
    return found


def largest_error(found: PerfParams, true: PerfParams, placements: list[tuple[int, int]]) -> float:
    """Of predicted step times, as a part."""
    return max(
        abs(float(step_seconds(found, *place, atomic) / step_seconds(true, *place, atomic)) - 1)
        for place in placements
        for atomic in (64, 100, 256)
    )


def test_a_step_by_hand() -> None:
    """With 2 replicas of 10 samples each on 2 nodes, a pass takes 0.1 + 0.01 · 10 s, and the exchange 0.3
    s."""
    perf = PerfParams(0.1, 0.01, 0.3, 0.05, 0.2, 0.05, 1.0)
    assert float(step_seconds(perf, 2, 2, 10)) == pytest.approx(0.5)
    assert float(step_seconds(perf, 1, 4, 10)) == pytest.approx(0.2 + 0.2 + 2 * 0.05)
    assert float(GoodputModel(perf, GRAD, LIMITS).throughput(2, 2, 10, 1)) == pytest.approx(40 / 0.7)


def test_one_replica_exchanges_nothing() -> None:
    """With one replica, a step takes as long as its passes."""
    assert float(sync_seconds(PERF, 1, 1)) == 0
    assert float(step_seconds(PERF, 1, 1, 64)) == float(grad_seconds(PERF, 64))


def test_perfect_overlap_hides_the_shorter() -> None:
    """With the largest gamma, a step takes little more than the longer of the two times."""
    perf = PerfParams(0.1, 0.0, 1.0, 0.0, 1.0, 0.0, 10.0)
    assert float(step_seconds(perf, 2, 2, 1)) == pytest.approx(1.0, rel=0.01)


def test_efficiency_at_its_ends() -> None:
    """The initial batch has an efficiency of 1. A tenfold batch has 0.1 without noise, and 1 with pure
    noise."""
    assert float(MODEL.efficiency(128)) == 1
    assert float(replace(MODEL, grad=GradParams(1, 0)).efficiency(1280)) == pytest.approx(0.1)
    assert float(replace(MODEL, grad=GradParams(0, 1)).efficiency(1280)) == 1
    assert float(replace(MODEL, grad=GradParams(0, 0)).efficiency(1280)) == pytest.approx(0.1)


def test_efficiency_is_the_noise_scales() -> None:
    """The efficiency is (φ + initial) / (φ + batch) with φ = initial · var / sqr."""
    scale = 128 * GRAD.var / GRAD.sqr
    assert float(MODEL.efficiency(512)) == pytest.approx((scale + 128) / (scale + 512))


def test_laws_of_efficiency() -> None:
    """Efficiency is between 0 and 1 and falls as the batch grows."""
    values = MODEL.efficiency(np.arange(1, 5000))
    assert ((values > 0) & (values <= 1)).all()
    assert (np.diff(values) <= 0).all()


def test_throughput_grows_less_than_linearly() -> None:
    """With the same atomic batch, more replicas have a higher throughput, but at most proportionally."""
    replicas = np.arange(1, 33)
    rates = MODEL.throughput(1, replicas, 128)
    assert (np.diff(rates) > 0).all()
    assert (rates <= rates[0] * replicas * (1 + 1e-9)).all()


def test_the_best_batch_is_within_its_limits() -> None:
    """For each placement, the batch and the size of each pass are within their limits."""
    replicas = np.arange(1, 21)
    found = MODEL.best(np.minimum(replicas, 4), replicas)
    batch = replicas * found.atomic * (found.accumulation + 1)
    possible = replicas * 64 <= 1280
    assert ((found.goodput > 0) == possible).all()
    assert ((found.atomic >= 64) & (found.atomic <= 256))[possible].all()
    assert ((batch > 128 - replicas) & (batch <= 1280))[possible].all()


def test_no_batch_tried_by_hand_is_better() -> None:
    """No size of a pass that is tried by hand is better than the chosen one by more than one percent, which
    the steps between candidates cost."""
    best = float(MODEL.best(2, 8).goodput)
    rates = [float(MODEL.goodput(2, 8, atomic)) for atomic in range(64, 161)]
    assert best >= 0.99 * max(rates)


def test_accumulation_makes_larger_batches() -> None:
    """A batch that memory does not hold is computed in several passes, unless accumulation is disabled."""
    noisy = replace(MODEL, grad=GradParams(1e-9, 1.0), limits=BatchLimits(128, 4096, (16, 64)))
    assert noisy.best(1, 4).accumulation > 0
    single = replace(noisy, limits=replace(noisy.limits, accumulation=False))
    assert single.best(1, 4).accumulation == 0
    assert single.best(1, 4).atomic <= 64


def test_one_replica_measures_noise_in_two_passes() -> None:
    """A single replica with more than the initial batch accumulates, though memory would hold it."""
    noisy = replace(MODEL, grad=GradParams(1e-9, 1.0), limits=BatchLimits(16, 256, (16, 256)))
    found = noisy.best(1, 1)
    assert found.atomic * (found.accumulation + 1) > 16
    assert found.accumulation >= 1


def test_a_fixed_batch_is_divided() -> None:
    """If the largest batch equals the initial one, replicas share it, rounded down."""
    found = replace(MODEL, limits=BatchLimits(128, 128, (1, 128))).best(1, 3)
    assert (int(found.atomic), int(found.accumulation)) == (42, 0)


def test_an_impossible_placement_is_refused() -> None:
    """A placement with more nodes than replicas is rejected."""
    with pytest.raises(InvalidError, match="at least as many replicas as nodes"):
        MODEL.best(3, 2)


@pytest.mark.parametrize(
    ("name", "value"),
    [("alpha_c", nan), ("beta_n", -1.0), ("alpha_r", inf), ("gamma", 0.5), ("gamma", 11.0)],
)
def test_absurd_parameters_are_refused(name: str, value: float) -> None:
    """The error for an absurd parameter names it."""
    with pytest.raises(InvalidError, match=name):
        replace(PERF, **{name: value})


def test_absurd_limits_are_refused() -> None:
    """Bounds in the wrong order, a batch of zero, no pass, or negative noise are rejected."""
    with pytest.raises(InvalidError, match="largest"):
        BatchLimits(128, 64, (1, 2))
    with pytest.raises(InvalidError, match="atomic"):
        BatchLimits(128, 256, (0, 2))
    with pytest.raises(InvalidError, match="alpha_c"):
        PerfParams(0, 0, 1, 1, 1, 1, 1)
    with pytest.raises(InvalidError, match="var"):
        GradParams(1, -1)


@pytest.mark.parametrize("gamma", [1.0, 1.14, 2.5, 8.0])
def test_exact_data_are_fitted_exactly(gamma: float) -> None:
    """Without noise, the fitted times are right within 1 %; residuals of 0 do not stop the search."""
    true = replace(PERF, gamma=gamma)
    assert largest_error(fit_step_times(measured(true, PLACEMENTS)), true, PLACEMENTS) < 0.01


def test_noise_is_averaged() -> None:
    """With noise of ±5 %, the fitted times are right within 5 %."""
    assert largest_error(fit_step_times(measured(PERF, PLACEMENTS, 0.05)), PERF, PLACEMENTS) < 0.05


def test_passes_need_not_be_measured() -> None:
    """Step times with several replicas and with one are enough to fit the times of passes, too."""
    steps = [replace(one, grad_seconds=None) for one in measured(PERF, PLACEMENTS)]
    assert largest_error(fit_step_times(steps), PERF, PLACEMENTS) < 0.02


def test_a_straggler_does_not_spoil_it() -> None:
    """A single step that took twenty times as long changes the fitted times by less than a tenth."""
    rows = measured(PERF, PLACEMENTS)
    slow = replace(rows[7], step_seconds=20 * rows[7].step_seconds)
    assert largest_error(fit_step_times([*rows[:7], slow, *rows[8:]]), PERF, PLACEMENTS) < 0.1


def test_useless_measurements_are_left_out() -> None:
    """Impossible measurements do not change the fit."""
    rows = measured(PERF, PLACEMENTS)
    absurd = [
        StepMeasurement(1, 2, 64, nan),
        StepMeasurement(1, 2, 64, -1.0),
        StepMeasurement(3, 2, 64, 1.0),
        StepMeasurement(0, 0, 64, 1.0),
        StepMeasurement(1, 1, 0, 1.0),
    ]
    assert fit_step_times([*absurd, *rows]) == fit_step_times(rows)
    with pytest.raises(InvalidError, match="no measurement"):
        fit_step_times(absurd)


def test_order_does_not_matter() -> None:
    """The fitted parameters do not depend on the order of measurements."""
    rows = measured(PERF, PLACEMENTS, 0.05)
    assert fit_step_times(rows[::-1]) == fit_step_times(rows)


@pytest.mark.parametrize(
    ("case", "placements", "pinned"),
    [
        ("one replica: the exchange takes no time", [(1, 1)], ("alpha_r", "beta_r")),
        ("two replicas: it does not grow with them", [(1, 1), (1, 2)], ("beta_r",)),
        ("only on several nodes: none within one", [(1, 1), (2, 4)], ("alpha_r", "beta_r")),
    ],
)
def test_what_was_never_seen_is_assumed(
    case: str, placements: list[tuple[int, int]], pinned: tuple[str, ...]
) -> None:
    """A parameter that no measurement determines is assumed to be close to zero, which is optimistic."""
    found = fit_step_times(measured(PERF, placements))
    assert all(getattr(found, name) == pytest.approx(1e-8) for name in pinned), case
    assert largest_error(found, PERF, placements) < 0.02


def test_between_nodes_is_assumed_slower_than_within() -> None:
    """Without a measurement on several nodes, the exchange between nodes is assumed to take a tenth longer
    than within one."""
    found = fit_step_times(measured(PERF, [(1, 1), (1, 2), (1, 4)]))
    assert found.alpha_n == pytest.approx(1.1 * found.alpha_r)
    assert found.beta_n == pytest.approx(1.1 * found.beta_r)


def test_one_batch_size_is_half_constant() -> None:
    """With a single measurement, half of the pass is assumed to be constant, and the predicted pass equals
    the measured one."""
    found = fit_step_times([StepMeasurement(1, 1, 100, 0.4)])
    assert found.alpha_c == pytest.approx(0.2)
    assert float(grad_seconds(found, 100)) == pytest.approx(0.4, rel=0.01)


def test_a_table_is_relative_to_one_replica() -> None:
    """The speed-up is 1 for one replica, and 0 for none and where no batch is allowed. On several nodes it is
    never higher than on one."""
    table = SpeedupTable.of(MODEL, 24)
    assert table.local[:2] == (0.0, 1.0)
    assert (table.local[21], table.spread[21]) == (0.0, 0.0)
    assert all(far <= near for near, far in zip(table.local, table.spread, strict=True))


def test_a_table_of_the_unknown_is_linear() -> None:
    """Without a model, each replica is assumed to be worth as much as the first."""
    assert SpeedupTable.linear(3) == SpeedupTable((0, 1, 2, 3), (0, 1, 2, 3))


def test_absurd_tables_are_refused() -> None:
    """A table with a value that is not a number, or with lists of different lengths, is rejected."""
    with pytest.raises(InvalidError, match="from 0 up"):
        SpeedupTable((0, nan), (0, 1))
    with pytest.raises(InvalidError, match="one node and on several"):
        SpeedupTable((0, 1), (0, 1, 2))


def test_tables_are_made_once() -> None:
    """A job's table is the same object until its model changes; a job that is gone is forgotten."""
    tables = SpeedupTables()
    first = tables.tables({"a": (MODEL, 4), "b": (MODEL, 4)})
    changed = replace(MODEL, grad=GradParams(1, 1))
    second = tables.tables({"a": (MODEL, 4), "b": (changed, 4)})
    assert second["a"] is first["a"]
    assert second["b"] == SpeedupTable.of(changed, 4)
    assert tables.tables({}) == {}
    assert tables.tables({"a": (MODEL, 4)})["a"] is not first["a"]


def test_parameters_are_a_tuple_of_their_formula() -> None:
    """The parameters are in the order in which AdaptDL lists them."""
    assert astuple(PERF) == (0.121, 0.00568, 0.0236, 0.00634, 0.0118, 0.00317, 1.14)


@pytest.mark.parametrize(
    ("placements", "place", "more"),
    [
        pytest.param([(1, 1), (1, 2), (1, 4), (2, 8)], (2, 8), (4, 16), id="on several nodes"),
        pytest.param([(1, 1), (1, 4)], (1, 4), (1, 8), id="on one node"),
    ],
)
def test_one_number_of_replicas_says_nothing_of_more(
    placements: list[tuple[int, int]], place: tuple[int, int], more: tuple[int, int]
) -> None:
    """Measurements with one number of replicas can't tell growth from noise. More replicas are assumed to
    take as long, so that the job tries them."""
    found = fit_step_times(measured(PERF, placements, noise=0.02))
    assert float(step_seconds(found, *more, 128)) == pytest.approx(
        float(step_seconds(found, *place, 128)), rel=1e-6
    )
