"""PaddlePaddle EDL's experiment, shortened."""

import pytest

from edl_workflows.simulator.paddle import PaddleCase, run_case


def test_a_job_alone_grows_to_its_maximum() -> None:
    """A single job grows to ten parameter servers with 4 cores and sixty trainers with 5, of 2348 cores."""
    outcome = run_case(PaddleCase(jobs=1, trainers=None, seconds=10))
    assert outcome.pending == 2  # pods run a second and a half after they have a node
    assert outcome.cpu == pytest.approx((10 * 4 + 60 * 5) / 2348 * 8 / 10)


def test_fixed_jobs_fill_the_cluster_and_the_others_wait() -> None:
    """Not all of eight jobs of 340 cores fit; with autoscaling, all jobs run."""
    fixed, scaled = (run_case(PaddleCase(jobs=8, trainers=trainers, seconds=150)) for trainers in (60, None))
    assert fixed.running < scaled.running == 8
    assert scaled.pending < fixed.pending


def test_what_a_service_gives_back_is_used() -> None:
    """Trainers use the cores that Nginx releases."""
    nginx = ((0, 500), (40, 100))
    fixed, scaled = (run_case(PaddleCase(2, trainers, nginx, seconds=150)) for trainers in (4, None))
    assert scaled.cpu > fixed.cpu + 0.1
