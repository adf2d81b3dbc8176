"""Runs, interval by interval."""

from dataclasses import replace

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.capacity import FAILURE, CapacityChange
from edl_workflows.simulator.cluster import JobResult, SimulationSettings, simulate
from edl_workflows.simulator.schedulers.scheduler import JobScheduler
from edl_workflows.simulator.workload import WorkloadJob
from tests.unit.simulator.builders import Scripted, always, application, job

N0, N1 = "node-000", "node-001"
TWO = SimulationSettings(nodes=2, node_gpus=2)


def results(
    scheduler: JobScheduler, *jobs: WorkloadJob, settings: SimulationSettings = TWO, epochs: int = 2
) -> list[JobResult]:
    """The results of jobs with two epochs of 100 s."""
    return list(simulate(jobs, {"digits": application(epochs=epochs)}, scheduler, settings).jobs)


def test_a_job_from_begin_to_end() -> None:
    """The scheduler sees a job at the end of an interval. The job starts once and trains for as long as its
    traces say."""
    [found] = results(always(a=[N0]), job("a", submitted=50))

    assert found == JobResult(
        "a", 50, started=60, finished=60 + 30 + 200, pending=10, attained_service=230, restarts=0
    )


def test_two_replicas_are_twice_as_fast() -> None:
    """Two replicas with twice the batch are twice as fast if gradient noise dominates."""
    [found] = results(always(a=[N0, N0]), job("a", replicas=2, batch_size=20))
    assert found.finished == 60 + 30 + 100


def test_a_job_without_places_waits() -> None:
    """A job without nodes is pending, and the run ends at its horizon."""
    [found] = results(always(), job("a"), settings=replace(TWO, horizon=600))
    assert (found.started, found.finished, found.pending) == (None, None, 600)


def test_another_place_is_a_restart() -> None:
    """A job that moves does not train during the restart penalty, and then continues where it was."""
    moves = Scripted(lambda jobs, nodes: {"a": [N0] if jobs[0].age < 120 else [N1]})
    [found] = results(moves, job("a"))
    assert (found.finished, found.restarts) == (60 + 30 + 200 + 30, 1)


def test_taken_places_are_pending_time() -> None:
    """A preempted job waits and continues with a restart."""
    pause = Scripted(lambda jobs, nodes: {} if 120 <= jobs[0].age < 240 else {"a": [N0]})
    [found] = results(pause, job("a"))
    assert (found.finished, found.pending, found.restarts) == (60 + 30 + 200 + 120 + 30, 60 + 120, 1)


@pytest.mark.parametrize(
    ("places", "slow"),
    [
        pytest.param({"a": [N0, N1], "b": [N0, N1]}, True, id="both on several nodes"),
        pytest.param({"a": [N0, N1], "b": [N0]}, False, id="one of them on one node"),
        pytest.param({"a": [N0, N0], "b": [N1, N1]}, False, id="apart"),
    ],
)
def test_interference(places: dict[str, list[str]], slow: bool) -> None:
    """Jobs on several nodes slow each other down if they share a node."""
    jobs = [job(name, replicas=2, batch_size=20) for name in "ab"]
    found = results(always(**places), *jobs, settings=replace(TWO, interference=0.5))
    assert found[0].finished == 60 + 30 + (200 if slow else 100)


def test_a_failure_undoes_what_no_checkpoint_holds() -> None:
    """After a failure, the job continues elsewhere from its last checkpoint, here from its beginning."""
    down = [CapacityChange(150, N0, FAILURE, 2)]
    spare = Scripted(lambda jobs, nodes: {"a": [min(nodes)]})

    [found] = results(spare, job("a"), settings=replace(TWO, changes=down))

    # The node is missed at 180 s, at the end of the interval.
    assert (found.finished, found.restarts) == (180 + 30 + 200, 1)


def test_checkpoints_limit_the_loss() -> None:
    """With a checkpoint per minute of training, only the beginning of the interval is repeated."""
    down = [CapacityChange(200, N0, FAILURE, 2)]
    spare = Scripted(lambda jobs, nodes: {"a": [min(nodes)]})

    [found] = results(spare, job("a"), settings=replace(TWO, changes=down, checkpoint_interval=60))

    # 30 s + 60 s + 60 s are trained until 240 s; checkpoints are looked at once an interval, the last one at
    # 180 s.
    assert found.finished == 240 + 30 + (200 - 90)


def test_a_node_that_comes_back_is_used() -> None:
    """The scheduler sees the nodes that are up."""
    changes = [CapacityChange(0, N0, FAILURE, 2), CapacityChange(100, N0, FAILURE, 0)]
    one = replace(TWO, nodes=1, changes=changes)
    patient = Scripted(lambda jobs, nodes: {"a": list(nodes)})

    assert results(patient, job("a"), settings=one)[0].started == 120


def test_a_service_takes_its_share() -> None:
    """The youngest job is evicted with a checkpoint, so none of its training is lost."""
    busy = [CapacityChange(100, N0, "web", 1), CapacityChange(240, N0, "web", 0)]
    fair = Scripted(lambda jobs, nodes: {one.spec.name: [N0] for one in jobs[: nodes.get(N0, 0)]})

    first, second = results(
        fair, job("a"), job("b", submitted=1), settings=replace(TWO, nodes=1, changes=busy), epochs=4
    )

    assert (first.restarts, first.finished) == (0, 60 + 30 + 400)
    assert (second.restarts, second.finished) == (1, 60 + 30 + 400 + (240 - 120) + 30)


def test_what_two_take_adds_up() -> None:
    """A failure and a service may take GPUs of the same node. The end of one gives back only what it took."""
    changes = [
        CapacityChange(0, N0, "web", 1),
        CapacityChange(0, N0, FAILURE, 2),
        CapacityChange(100, N0, FAILURE, 0),
    ]
    patient = Scripted(lambda jobs, nodes: {"a": [N0] * min(2, nodes.get(N0, 0))})

    [found] = results(patient, job("a"), settings=replace(TWO, nodes=1, changes=changes))

    assert (found.started, found.attained_service) == (120, 230)


def test_samples() -> None:
    """Each decision gives a sample with the available and used GPUs and the running and waiting jobs."""
    run = simulate([job("a"), job("b")], {"digits": application()}, always(a=[N0]), replace(TWO, horizon=120))
    assert [(one.time, one.gpus, one.used, one.running, one.waiting) for one in run.samples] == [
        (60, 4, 1, 1, 1),
        (120, 4, 1, 1, 1),
    ]


def test_the_order_of_the_workload_does_not_matter() -> None:
    """Jobs are admitted by their submission times."""
    jobs = [job("a", submitted=100), job("b", submitted=10)]
    places = always(a=[N0], b=[N1])
    assert results(places, *jobs) == results(places, *jobs[::-1])


def test_too_many_replicas_on_a_node() -> None:
    """An impossible decision of a scheduler is an error."""
    with pytest.raises(InvalidError, match="3 replicas on node-000, which has 2 GPUs"):
        results(always(a=[N0] * 3), job("a"))


@pytest.mark.parametrize(
    ("jobs", "message"),
    [
        ([job("a"), job("a")], "a: more than one job of this name"),
        ([replace(job("a"), application="unknown")], "no traces of the applications unknown"),
    ],
)
def test_bad_workloads(jobs: list[WorkloadJob], message: str) -> None:
    """Invalid workloads are rejected before the simulation starts."""
    with pytest.raises(InvalidError, match=message):
        results(always(), *jobs)


@pytest.mark.parametrize(
    "change",
    [
        {"interval": 0},
        {"interval": float("nan")},
        {"nodes": 0},
        {"restart_penalty": -1},
        {"interference": 2},
        {"changes": [CapacityChange(0, "elsewhere", FAILURE, 1)]},
        {"changes": [CapacityChange(float("nan"), N0, FAILURE, 1)]},
    ],
)
def test_bad_settings(change: dict[str, object]) -> None:
    """Settings with invalid numbers are rejected."""
    with pytest.raises(InvalidError):
        replace(TWO, **change)  # type: ignore[arg-type]
