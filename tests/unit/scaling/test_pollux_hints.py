"""What jobs report to Pollux, and what former jobs of a scenario add to it."""

from dataclasses import replace
from math import inf, nan
from typing import Any

import pytest

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.goodput import GradParams
from edl_workflows.scaling.policies import policy_of
from edl_workflows.scaling.policy import JobInfo, NodeInfo
from edl_workflows.scaling.pollux_hints import Hints, best_measured, hints_of
from tests.unit.scaling.hints import HINTS


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
        ({"remainingSamples": inf}, "remainingSamples"),
        ({"remainingSamples": -1}, "remainingSamples"),
    ],
)
def test_nonsense_is_named(change: dict[str, Any], field: str) -> None:
    """The error tells which field, so that it can be shown."""
    with pytest.raises(InvalidError, match=field):
        hints_of(HINTS | change)


def test_what_is_not_reported_is_as_upstream_has_it() -> None:
    """Without a largest batch the batch is fixed; without bounds a pass may be of any size."""
    hints = hints_of({name: HINTS[name] for name in ("initBatchSize", "gradParams", "perfParams")})
    assert hints.model is not None
    assert (hints.model.limits.initial, hints.model.limits.largest, hints.model.limits.atomic) == (
        128,
        128,
        (1, 128),
    )
    assert hints_of({}).model is None


FORMER = HINTS | {"maxProfiledReplicas": 6, "perfParams": HINTS["perfParams"] | {"alpha_c": 0.2}}
"""Of a job that was measured with more replicas."""


def test_step_times_come_from_who_was_measured_with_more() -> None:
    """The gradients, which depend on how far the training is, stay the job's own."""
    own, former = hints_of(HINTS | {"gradParams": {"norm": 1.0, "var": 2.0}}), hints_of(FORMER)
    found = own.after(former)
    assert own.model is not None
    assert found.model is not None
    assert former.model is not None
    assert (found.model.perf, found.model.grad, found.profiled) == (former.model.perf, own.model.grad, 6)
    assert former.after(own) == former


def test_a_new_job_counts_on_no_larger_batch() -> None:
    """Nothing is known of its gradients yet, so that a larger batch is worth nothing."""
    former = hints_of(FORMER)
    found = Hints(remaining=9.0).after(former)
    assert found.model is not None
    assert former.model is not None
    assert found.model == replace(former.model, grad=GradParams(1.0, 0.0))
    assert (found.profiled, found.remaining) == (6, 9.0)


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
    """The job's own hints stay as they are."""
    own = hints_of(HINTS)
    assert own.after(hints_of(former)) == own


def test_the_best_measured_has_a_model() -> None:
    """Of equals the first, which is the newest; none is no hint."""
    few, many = hints_of(HINTS), hints_of(FORMER)
    assert best_measured([few, many, replace(many, remaining=1.0), Hints(profiled=99)]) is many
    assert best_measured([Hints(profiled=99)]) == Hints()


def test_what_is_left_in_seconds() -> None:
    """By the goodput of one replica; unknown without a model or without a report."""
    hints = hints_of(HINTS | {"remainingSamples": 1000})
    assert hints.model is not None
    assert hints.remaining_seconds == pytest.approx(1000 / float(hints.model.best(1, 1).goodput))
    assert hints_of(HINTS).remaining_seconds is None
    assert hints_of({"remainingSamples": 1000}).remaining_seconds is None


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


def asked(policy: str, *jobs: JobInfo) -> dict[str, int]:
    """How many replicas they get on two nodes with four GPUs."""
    there = {name: NodeInfo(name, {"gpu": 4.0}) for name in ("a", "b")}
    answer = policy_of(policy).optimize({one.key: one for one in jobs}, there, {})
    return {key: len(places) for key, places in answer.items()}


def test_a_job_that_is_trained_again_starts_with_more_than_one() -> None:
    """It need not find out once more how its steps scale; nonsense that another reported changes nothing."""
    nonsense = {"maxProfiledReplicas": 10**9, "perfParams": 1, "gradParams": 2}
    assert asked("pollux", job("new")) == {"new": 1}
    assert asked("pollux", job("new", nonsense)) == {"new": 1}
    alone = asked("pollux", job("new", nonsense, FORMER))["new"]
    assert alone > 1
    there = {name: NodeInfo(name, {"gpu": 4.0}) for name in ("a", "b")}
    assert len(policy_of("pollux").allocate(job("new", FORMER), there)) == alone, "and at once"


def test_the_one_with_least_left_is_the_fastest() -> None:
    """With the policy `shortest`, by what the jobs say is left of them; `pollux` doesn't ask."""
    known = FORMER | {"maxProfiledReplicas": 8}
    jobs = job("short", **known, remainingSamples=10**3), job("long", **known, remainingSamples=10**9)
    fair, shortest = asked("pollux", *jobs), asked("shortest", *jobs)
    assert fair["short"] == fair["long"]
    assert shortest["short"] > shortest["long"]
