"""What a sensor that waits in a worker writes into its task's log."""

from typing import Any
from unittest.mock import Mock

import pytest

from edl_workflows.airflow.hooks.airflow_versions import TaskDeferred
from edl_workflows.pipelines.waiting import job_log
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from edl_workflows.sensors.elastic_job import ElasticJobSensor
from tests.airflow.support import IN_AIRFLOW, elastic_job
from tests.airflow.test_deferral import Store, context

pytestmark = IN_AIRFLOW


@pytest.fixture
def lines(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What sensors write about the job mnist, without its name."""
    written: list[str] = []
    name = f"ElasticJob {cluster.namespace}/mnist "

    def info(text: str, *arguments: Any) -> None:
        line = text % arguments if arguments else text
        if line.startswith(name):  # not that of the stage's beginning
            written.append(line.removeprefix(name))

    monkeypatch.setattr(ElasticJobSensor, "log", Mock(info=info))
    return written


def sensor(**arguments: Any) -> ElasticJobSensor:
    """As a worker makes it for one process."""
    return ElasticJobSensor(task_id="task", name="mnist", **{"deferrable": False, **arguments})


def train(cluster: Cluster, step: int, workers: int = 2) -> None:
    """Let the job be at this step."""
    status = {
        "phase": "Running",
        "reason": "JobRunning",
        "observedGeneration": 1,
        "replicaStatuses": {"worker": {"desired": 2, "ready": workers}},
        "progress": {"step": step, "records": 64 * step, "speed": 52.1, "metrics": {"loss": 0.25}},
        "checkpoint": {"uri": "/ck/1200", "step": 1200, "time": "2026-01-01T00:00:00Z"},
    }
    client.patch_status(cluster, ELASTIC_JOBS, "mnist", status)


def line_at(step: str, workers: int = 2) -> str:
    """The line of every wait about the job at this step."""
    return (
        f"is Running (JobRunning); ready: worker {workers}/2; step {step}, 52 steps/s, loss 0.25; "
        "checkpoint at step 1,200"
    )


def test_pokes_write_what_every_wait_writes(
    connection: None, cluster: Cluster, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task's log has a line for each change, with step, speed, metrics and checkpoint. A check that finds
    progress alone writes none, until a minute has passed."""
    waits = sensor()

    def poke() -> None:
        assert not waits.poke(context(Store())).is_done

    poke()
    client.create(cluster, elastic_job("mnist"))
    poke()
    train(cluster, 1240)
    poke()
    train(cluster, 1300)
    poke()
    assert lines == ["does not exist yet", "is Pending", line_at("1,240")]
    train(cluster, 1310, workers=1)
    poke()
    monkeypatch.setattr(job_log, "PROGRESS_SECONDS", 0.0)
    train(cluster, 1400, workers=1)
    poke()
    assert lines[3:] == [line_at("1,310", workers=1), line_at("1,400", workers=1)]


def test_each_poke_in_a_process_of_its_own_writes_the_state(
    connection: None, cluster: Cluster, lines: list[str]
) -> None:
    """In mode reschedule, each poke writes the state, since it knows nothing of the poke before."""
    client.create(cluster, elastic_job("mnist"))

    for step in (1240, 1300):
        train(cluster, step)
        sensor(mode="reschedule").poke(context(Store()))

    assert lines == [line_at("1,240"), line_at("1,300")]


def test_a_poke_names_a_controller_that_does_not_answer(
    connection: None, cluster: Cluster, lines: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Even the first poke of a process names a controller that does not answer, by the job's age."""
    client.create(cluster, elastic_job("mnist"))
    monkeypatch.setattr(job_log, "PROGRESS_SECONDS", 0.0)

    sensor(mode="reschedule").poke(context(Store()))

    (line,) = lines
    assert line.startswith("has no status: no controller has observed it in ")


def test_a_deferred_sensor_leaves_the_lines_to_its_trigger(
    connection: None, cluster: Cluster, lines: list[str]
) -> None:
    """A deferred sensor writes no state, since its trigger writes into the same log."""
    client.create(cluster, elastic_job("mnist"))

    with pytest.raises(TaskDeferred):
        sensor(deferrable=True).execute(context(Store()))

    assert lines == []
