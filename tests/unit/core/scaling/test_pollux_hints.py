"""What jobs report to Pollux, and what former jobs of a scenario add to it."""

from collections.abc import Mapping
from dataclasses import replace
from math import inf, nan
from random import Random
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policies import policy_of
from edl_workflows.core.scaling.policy import JobInfo, NodeInfo
from edl_workflows.core.scaling.pollux.goodput import GradParams
from edl_workflows.core.scaling.pollux.hints import SchedulingHints, best_measured, read_hints
from tests.unit.core.scaling.hints import HINTS


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"perfParams": [1]}, "perfParams"),
        ({"perfParams": {"alpha_c": 1}}, "perfParams.beta_c"),
        ({"gradParams": {"norm": nan, "var": 1}}, "gradParams.norm"),
        ({"gradParams": {"norm": -1, "var": 1}}, "sqr"),
        ({"initBatchSize": None}, "initBatchSize"),
        ({"initBatchSize": True}, "initBatchSize"),
        ({"maxBatchSize": 1.5}, "maxBatchSize"),
        ({"maxBatchSize": 100}, "largest"),
        ({"localBszBounds": [1]}, "localBszBounds"),
        ({"localBszBounds": [9, 2]}, "atomic"),
        ({"maxProfiledReplicas": "2"}, "maxProfiledReplicas"),
    ],
)
def test_nonsense_is_named(change: dict[str, Any], field: str) -> None:
    """The error for an invalid hint names the field."""
    with pytest.raises(InvalidError, match=field):
        read_hints(HINTS | change)


def test_what_is_not_reported_is_as_upstream_has_it() -> None:
    """Missing hints have upstream's defaults: without a largest batch the batch is fixed, and without bounds
    a pass may have any size."""
    hints = read_hints({name: HINTS[name] for name in ("initBatchSize", "gradParams", "perfParams")})
    assert hints.model is not None
    assert (hints.model.limits.initial, hints.model.limits.largest, hints.model.limits.atomic) == (
        128,
        128,
        (1, 128),
    )
    assert read_hints({}).model is None


FORMER = HINTS | {"maxProfiledReplicas": 6, "perfParams": HINTS["perfParams"] | {"alpha_c": 0.2}}
"""Of a job that was measured with more replicas."""


def after(own: SchedulingHints, *former: dict[str, Any], most: int = 99) -> SchedulingHints:
    """What is known with what others reported, the newest first."""
    return own.after(best_measured(map(read_hints, former)), most)


def test_step_times_come_from_who_was_measured_with_more() -> None:
    """Step times come from the job that was measured with more replicas. The gradients, which depend on the
    progress of training, and the remaining work stay the job's own."""
    own = read_hints(HINTS | {"gradParams": {"norm": 1.0, "var": 2.0}, "remainingSamples": 9})
    former = read_hints(FORMER).model
    assert own.model is not None
    assert former is not None
    expected = replace(own, model=replace(former, grad=own.model.grad), profiled=6)
    assert after(own, FORMER) == expected
    assert after(own, HINTS, FORMER, HINTS | {"maxProfiledReplicas": 5}) == expected, "in any order"


def test_a_new_job_counts_on_no_larger_batch() -> None:
    """Nothing is known of a new job's gradients, so a larger batch counts as no gain."""
    former = read_hints(FORMER).model
    assert former is not None
    found = after(SchedulingHints(remaining=9.0), FORMER)
    assert found == SchedulingHints(replace(former, grad=GradParams(1.0, 0.0)), 6, 9.0)


@pytest.mark.parametrize(
    "former",
    [
        pytest.param({}, id="nothing"),
        pytest.param({"maxProfiledReplicas": 64}, id="no model"),
        pytest.param(FORMER | {"maxProfiledReplicas": 2}, id="not more replicas"),
        pytest.param(FORMER | {"maxBatchSize": 9999}, id="another batch"),
    ],
)
def test_what_a_former_job_cannot_tell(former: dict[str, Any]) -> None:
    """A former job without usable hints leaves the job's own hints as they are."""
    own = read_hints(HINTS)
    assert after(own, former) == own


def test_a_job_that_knows_all_of_its_own_replicas_asks_nobody() -> None:
    """Hints of other jobs about more replicas than the job may have are not used, since they may be wrong."""
    own = read_hints(HINTS)
    assert after(own, FORMER, most=2) == own
    assert after(own, FORMER, most=3) != own


def test_a_larger_run_with_another_batch_hides_nothing() -> None:
    """Hints of a run with other batch limits do not hide older ones that match the job's limits. A job
    without limits is taken to have those of the newest hints."""
    other = FORMER | {"maxProfiledReplicas": 9, "maxBatchSize": 9999}
    assert after(read_hints(HINTS), other, FORMER).profiled == 6
    silent = read_hints({"initBatchSize": 128, "maxBatchSize": 1280, "localBszBounds": [64, 256]})
    assert after(silent, other, FORMER).profiled == 0, "its batch is not accumulated"
    assert after(replace(silent, limits=read_hints(HINTS).limits), other, FORMER).profiled == 6
    assert after(SchedulingHints(), other, FORMER).profiled == 9
    assert after(SchedulingHints(), FORMER, other).profiled == 6


def test_what_is_left_in_seconds() -> None:
    """The remaining seconds follow from the goodput of one replica. They are unknown without a model or a
    report."""
    hints = read_hints(HINTS | {"remainingSamples": 1000})
    assert hints.model is not None
    assert hints.remaining_seconds == pytest.approx(1000 / float(hints.model.best(1, 1).goodput))
    assert read_hints(HINTS).remaining_seconds is None
    assert read_hints({"remainingSamples": 1000}).remaining_seconds is None


@pytest.mark.parametrize("said", [nan, inf, "9", True, [1], 10**400])
def test_a_rest_that_is_no_number_is_not_said(said: Any) -> None:
    """If the remaining work is not a number, it is ignored, and the rest of the report counts."""
    assert read_hints(HINTS | {"remainingSamples": said}) == read_hints(HINTS)


def test_who_trains_more_than_declared_has_nothing_left() -> None:
    """A job that has trained more than it declared has nothing left to train: it may end at any time."""
    assert read_hints(HINTS | {"remainingSamples": -1}).remaining == 0.0


def job(key: str, *former: dict[str, Any], scenario: str = "nightly", **reported: Any) -> JobInfo:
    """A job of one GPU a replica that has reported this, and others of its scenario that."""
    return JobInfo(
        key,
        {"gpu": 1},
        max_replicas=8,
        age=3600,
        profilings=reported,
        scenario=scenario,
        reported=former,
    )


def asked(policy: str, *jobs: JobInfo, held: Mapping[str, list[str]] | None = None) -> dict[str, list[str]]:
    """What they get of four nodes with four GPUs."""
    there = {name: NodeInfo(name, {"gpu": 4.0}) for name in "abcd"}
    return policy_of(policy).optimize({one.key: one for one in jobs}, there, held or {})


def counts(policy: str, *jobs: JobInfo) -> dict[str, int]:
    """How many replicas that is."""
    return {key: len(places) for key, places in asked(policy, *jobs).items()}


def test_a_job_that_is_trained_again_starts_with_more_than_one() -> None:
    """A job with hints of its scenario starts with more than one replica, since its scaling is known. Invalid
    hints are ignored."""
    nonsense = {"maxProfiledReplicas": 10**9, "perfParams": 1, "gradParams": 2}
    assert counts("pollux", job("new")) == {"new": 1}
    assert counts("pollux", job("new", nonsense)) == {"new": 1}
    assert counts("pollux", job("new", nonsense, FORMER))["new"] > 1


@pytest.mark.parametrize(
    "wild",
    [
        {"maxBatchSize": 1e30},
        {"initBatchSize": 1e30, "maxBatchSize": 1e30},
        {"perfParams": HINTS["perfParams"] | {"alpha_c": 1e308, "beta_c": 1e308}},
        {"perfParams": dict.fromkeys(HINTS["perfParams"], 0.0) | {"alpha_c": 1e-320, "gamma": 1.0}},
        {"gradParams": {"norm": 1e308, "var": 1e308}},
        {"perfParams": HINTS["perfParams"] | {"alpha_c": 1e3}, "remainingSamples": 1e308},
        {"maxProfiledReplicas": 10**400},
    ],
)
@pytest.mark.parametrize("policy", ["pollux", "shortest"])
def test_a_wild_report_disturbs_nobody_else(policy: str, wild: dict[str, Any]) -> None:
    """Absurd numbers from a job or from others of its scenario change nothing for other jobs."""
    report = FORMER | wild
    good = job("good", scenario="", **FORMER)
    alone = asked(policy, good)["good"]
    assert alone
    found = asked(policy, good, job("bad", report, **report), held={"good": alone})
    assert found["good"] == alone
    assert found["bad"]


def test_the_one_with_least_left_is_the_fastest() -> None:
    """The policy `shortest` prefers the job that reports the least remaining work; `pollux` ignores it."""
    known = FORMER | {"maxProfiledReplicas": 8, "gradParams": {"norm": 0.001, "var": 1.0}}
    jobs = [job(f"job-{left}", **known, remainingSamples=10**left) for left in range(2, 8)]
    fair, shortest = counts("pollux", *jobs), counts("shortest", *jobs)
    assert max(fair.values()) - min(fair.values()) <= 1
    assert shortest["job-2"] > shortest["job-7"] > 0


def test_jobs_that_have_about_as_much_left_stay_where_they_are() -> None:
    """Reports of the remaining work vary by some per cent. Such variation does not move replicas."""
    random, held = Random(1), dict[str, list[str]]()
    moved = 0
    for _ in range(10):
        jobs = [
            job(f"job-{n}", **FORMER, remainingSamples=1e6 * random.uniform(0.95, 1.05)) for n in range(8)
        ]
        answer = asked("shortest", *jobs, held=held)
        moved += sum(answer[key] != held[key] for key in held)
        held = answer
    assert moved == 0
