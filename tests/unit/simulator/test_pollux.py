"""Pollux in the simulator: agents that learn, and the optimizer."""

from edl_workflows.core.scaling.pollux.goodput_fit import FitCache
from edl_workflows.simulator.application import BatchSplit, GradientNoise
from edl_workflows.simulator.cluster import SimulationSettings, simulate
from edl_workflows.simulator.job import FixedBatch, TrainingMeasurement
from edl_workflows.simulator.schedulers.pollux import AdaptiveBatch, PolluxScheduler
from edl_workflows.simulator.schedulers.scheduler import JobScheduler, SchedulerInputs
from edl_workflows.simulator.throughput import Placement, StepTime
from tests.unit.simulator.builders import always, application, job

DIGITS = application(epochs=20)


def seen(placement: Placement = (1,), local_bsz: int = 10, *, noise: float = 1.0) -> TrainingMeasurement:
    """A step of one second."""
    return TrainingMeasurement(
        placement, BatchSplit(local_bsz, 0), StepTime(1.0, 0.0), GradientNoise(0.0, noise)
    )


def test_a_new_job_has_the_initial_batch() -> None:
    """Before the first measurement, the batch is the initial one or the smallest for the replicas."""
    agent = AdaptiveBatch(DIGITS, FitCache())
    assert agent.model is None
    assert agent.split((1,)) == BatchSplit(10, 0)
    assert agent.split((4,)) == BatchSplit(5, 0)


def test_what_was_measured_changes_the_batch() -> None:
    """If the gradient is pure noise, the value of a batch is proportional to its size."""
    agent = AdaptiveBatch(DIGITS, FitCache())
    agent.observe(seen())
    assert agent.split((2,)).batch_size(2) > 10
    assert agent.profiled == 1


def test_the_gradient_is_followed() -> None:
    """If a job's gradient changes, its model changes; with an equal gradient it keeps its model."""
    agent = AdaptiveBatch(DIGITS, FitCache())
    agent.observe(seen())
    before = agent.model
    agent.observe(seen())
    same = agent.model
    agent.observe(seen(noise=2.0))

    assert before is same
    assert agent.model != before


def test_limited_applications_keep_their_batch() -> None:
    """An application that can't be distributed trains with the user's batch."""
    scheduler = PolluxScheduler(SchedulerInputs({"digits": 1}))
    assert scheduler.agent(job("a", batch_size=40), DIGITS) == FixedBatch(DIGITS, 40)


def finished(scheduler: JobScheduler, *names: str) -> list[float]:
    """When jobs of 2000 s on one GPU complete, on one node with four GPUs."""
    settings = SimulationSettings(nodes=1, horizon=100_000)
    run = simulate([job(name) for name in names], {"digits": DIGITS}, scheduler, settings)
    return [one.finished or 0.0 for one in run.jobs]


def test_a_job_grows_by_what_it_has_seen() -> None:
    """A Pollux job starts with one GPU and doubles, which is faster than one GPU throughout."""
    [fixed] = finished(always(a=["node-000"]), "a")
    [adaptive] = finished(PolluxScheduler(), "a")
    assert adaptive < 0.7 * fixed


def test_jobs_that_are_alike_are_served_alike() -> None:
    """Of two equal jobs none waits until the other is complete, and a second run has the same results."""
    first = finished(PolluxScheduler(), "a", "b")
    assert max(first) < 1.3 * min(first)
    assert first == finished(PolluxScheduler(), "a", "b")
