"""How pipelines see a job."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.kind import view
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.view import Checkpoint, JobPhase, Progress, Replicas
from tests.unit.core.jobs.examples import make_example

Make = Callable[..., dict[str, Any]]


def test_view_of_a_running_job(job: Make) -> None:
    """Everything that a stage reads of a running job comes from the status."""
    manifest = job()
    manifest["metadata"] |= {"uid": "u", "generation": 2, "labels": {"a": "b"}}
    manifest["status"] = {
        "phase": "Scaling",
        "reason": "JobScaling",
        "message": "m",
        "observedGeneration": 1,
        "startTime": "2026-01-01T00:00:00Z",
        "progress": {"step": 120, "records": 6000, "speed": 2.5},
        "checkpoint": {"uri": "file:///ckpt/100", "step": 100, "time": "2026-01-01T00:01:00Z"},
        "replicaStatuses": {
            "worker": {"desired": 3, "active": 3, "ready": 2, "succeeded": 1, "failed": 1},
            "dlrover-master": {"desired": 1, "ready": 1},
        },
    }
    found = view(ElasticJob.parse(manifest))

    assert found.phase is JobPhase.SCALING
    assert not found.current
    assert found.progress == Progress(120, 6000, 2.5)
    assert found.checkpoint == Checkpoint("file:///ckpt/100", 100)
    assert found.replicas == {"worker": Replicas(3, 2, 1, 1)}
    assert found.started == datetime(2026, 1, 1, tzinfo=UTC)
    assert (found.name, found.namespace, found.uid, found.labels) == ("digits", "default", "u", {"a": "b"})


@pytest.mark.parametrize(
    ("progress", "has_run"),
    [(None, False), ({"step": 0}, False), ({"clusterVersion": 1}, True), ({"records": 64}, True)],
)
def test_an_elastic_job_has_run_when_its_workers_have(
    job: Make, progress: dict[str, int] | None, has_run: bool
) -> None:
    """An ElasticJob is Running as soon as its master runs, but it counts as having run only once its workers
    report progress."""
    running = {"type": "Running", "status": "True"}
    status = {"phase": "Running", "conditions": [running], "progress": progress}

    assert view(ElasticJob.parse(job() | {"status": status})).has_run is has_run


@pytest.mark.parametrize(
    ("conditions", "has_run"),
    [({}, False), ({"Created": "True"}, False), ({"Running": "True"}, True), ({"Running": "False"}, True)],
    ids=str,
)
def test_other_jobs_have_run_when_their_conditions_say_so(conditions: dict[str, str], has_run: bool) -> None:
    """A job counts as having run once its conditions say so, even if it restarts or is suspended now."""
    kind = kind_of("PyTorchJob")
    manifest = make_example("PyTorchJob")
    manifest["status"] = {"conditions": [{"type": key, "status": value} for key, value in conditions.items()]}

    assert kind.view_stored(manifest).has_run is has_run


def test_unseen_job_is_pending(job: Make) -> None:
    """A job that no controller has looked at is Pending."""
    assert view(ElasticJob.parse(job())).phase is JobPhase.PENDING


@pytest.mark.parametrize("phase", list(ElasticJobPhase))
def test_every_phase_has_its_view(job: Make, phase: ElasticJobPhase) -> None:
    """Each phase of an ElasticJob has a view, which is final if the phase is."""
    found = view(ElasticJob.parse(job() | {"status": {"phase": phase.value}}))

    assert found.phase.final == phase.final
