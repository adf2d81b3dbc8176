"""Workloads drawn from a trace."""

import math

import pytest

from edl_workflows.exceptions import InvalidError
from edl_workflows.simulator.workload import Category, TraceJob, WorkloadJob, draw, tuned
from tests.unit.simulator.builders import application

APPLICATIONS = {"digits": application(), "long": application("long", epochs=20)}
CATEGORIES = [Category(100, ["digits"]), Category(1000, ["long"])]
TRACE = [TraceJob(second_of_day=hour * 3600.0, duration=60.0, gpu_time=hour * 50.0) for hour in range(24)]


def test_tuned() -> None:
    """A batch of 40 takes one replica 3.25 s, and six of them 1 s: each is worth 54 %. Two or four are worth more."""
    assert tuned(APPLICATIONS["digits"]) == [(6, 40)]


def test_drawn_jobs_are_like_the_trace() -> None:
    """Those of the wanted hours, in order, from the begin of these hours; small ones are the small application."""
    found = draw(TRACE, APPLICATIONS, CATEGORIES, jobs=3, hours=(0, 3), seed=0)

    assert [(job.name, job.submitted) for job in found] == [
        ("digits-0", 0),
        ("digits-1", 3600),
        ("long-2", 7200),
    ]


def test_draws_follow_the_seed() -> None:
    """The same seed gives the same workload."""
    first, again, other = (
        draw(TRACE, APPLICATIONS, CATEGORIES, jobs=5, hours=(0, 20), seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other


def test_too_few_jobs_in_the_trace() -> None:
    """Asking for more than there are says how many there are; those of no category don't count."""
    with pytest.raises(InvalidError, match="20 jobs in these hours, less than 24"):
        draw(TRACE, APPLICATIONS, CATEGORIES, jobs=24, hours=(0, 24), seed=0)


@pytest.mark.parametrize(
    ("submitted", "replicas", "batch_size"), [(math.nan, 1, 1), (-1, 1, 1), (0, 0, 1), (0, 1, 0)]
)
def test_bad_jobs(submitted: float, replicas: int, batch_size: int) -> None:
    """A job without a time, replicas or a batch is refused."""
    with pytest.raises(InvalidError, match="job a"):
        WorkloadJob("a", submitted, "digits", replicas, batch_size)
