"""What a wait writes about its object, as a table of states before and after."""

from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job.faults import RestartRecord
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.jobs.view import Checkpoint, JobPhase, JobView, Progress, Replicas
from edl_workflows.pipelines.waiting.job_log import PROGRESS_SECONDS, StateReporter, describe_changes

_NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
_RUNNING = JobView(
    "ElasticJob",
    "mnist",
    "default",
    "uid-1",
    1,
    1,
    JobPhase.RUNNING,
    replicas={"worker": Replicas(desired=2, ready=2), "ps": Replicas(desired=1, ready=1)},
    progress=Progress(step=1240, records=3000, speed=52.1, records_per_second=100.0, records_total=12_000),
    checkpoint=Checkpoint("/ck/1200", 1200),
)
_RUNNING_LINE = (
    "is Running; ready: ps 1/1, worker 2/2; "
    "step 1,240 (25% of the data), 52 steps/s, 100 records/s, about 90 s left; checkpoint at step 1,200"
)
_OOM = RestartRecord(time=_NOON, subject="worker-1", cause="OOMKilled", message="exit code 137")
_FATAL = RestartRecord(
    time=_NOON, subject="worker-0", cause="FatalError", message="ValueError: no data", replaced=False
)
_LOST = RestartRecord(time=_NOON, subject="ps-0", cause="NodeLost")
_PLANNED = AutoscalingStatus.model_validate(
    {
        "replicaResourceSpecs": {"worker": {"replicas": 4}},
        "migratePods": [{"name": "mnist-edljob-ps-0"}],
        "reasons": {"worker": "speed grows with workers"},
    }
)


def _job(**changes: Any) -> JobView:
    return replace(_RUNNING, **changes)


def _autoscale(value: str) -> dict[str, str]:
    return {"elastic.iml.github.io/autoscale": value}


def _plan(phase: str, reason: str = "", message: str = "", stall_seconds: float | None = None) -> ScalePlan:
    manifest = {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {"name": "p", "namespace": "default"},
        "spec": {"ownerJob": "mnist", "reason": reason},
        "status": {"phase": phase, "message": message, "stallSeconds": stall_seconds} if phase else {},
    }
    return ScalePlan.read_stored(manifest)[0]


_PENDING = _job(
    phase=JobPhase.PENDING,
    reason="JobPending",
    message="0/3 nodes are available",
    replicas={"worker": Replicas(desired=2)},
    progress=Progress(),
    checkpoint=None,
)
_PENDING_LINE = "is Pending (JobPending: 0/3 nodes are available); ready: worker 0/2"

ROWS: dict[str, tuple[JobView | ScalePlan | None, JobView | ScalePlan, list[str]]] = {
    "first state": (None, _PENDING, [_PENDING_LINE]),
    "in a queue of Kueue": (
        None,
        _job(
            phase=JobPhase.SUSPENDED,
            reason="PyTorchJobSuspended",
            labels={"kueue.x-k8s.io/queue-name": "team-a"},
            replicas={},
            progress=Progress(),
            checkpoint=None,
        ),
        ["is Suspended (PyTorchJobSuspended; in the queue team-a of Kueue)"],
    ),
    "it runs": (_PENDING, _RUNNING, [_RUNNING_LINE]),
    "an early stop": (
        _RUNNING,
        _job(phase=JobPhase.SUCCEEDED),
        ["is Succeeded; step 1,240 (25% of the data), 52 steps/s, 100 records/s; checkpoint at step 1,200"],
    ),
    "progress alone": (_RUNNING, _job(progress=Progress(step=2000), checkpoint=None), []),
    "a reason": (
        _PENDING,
        replace(_PENDING, message="image can't be pulled"),
        ["is Pending (JobPending: image can't be pulled); ready: worker 0/2"],
    ),
    "a node is lost": (
        _RUNNING,
        _job(replicas={"worker": Replicas(desired=2, ready=1)}),
        [_RUNNING_LINE.replace("ps 1/1, worker 2/2", "worker 1/2")],
    ),
    "a plan begins": (
        _RUNNING,
        _job(phase=JobPhase.SCALING, plan="mnist-optimize-3"),
        [
            _RUNNING_LINE.replace("Running", "Scaling").replace(
                "step 1,240", "carries out mnist-optimize-3; step 1,240"
            )
        ],
    ),
    "restarts": (
        _job(restarts=(_OOM,)),
        _job(restarts=(_OOM, _LOST)),
        ["restarts ps-0: NodeLost"],
    ),
    "restarts with a message": (
        _RUNNING,
        _job(restarts=(_OOM,)),
        ["restarts worker-1: OOMKilled, exit code 137"],
    ),
    "a node that is not replaced": (
        _job(restarts=(_OOM,)),
        _job(restarts=(_OOM, _FATAL)),
        ["does not replace worker-0, which failed: FatalError, ValueError: no data"],
    ),
    "a node that was not replaced before the wait": (
        None,
        _job(restarts=(_OOM, _FATAL)),
        [
            _RUNNING_LINE,
            "had restarts before (1); the newest: worker-1, OOMKilled",
            "did not replace nodes before (1); the newest: worker-0, FatalError",
        ],
    ),
    "restarts before the wait": (
        None,
        _job(restarts=(_OOM, _LOST)),
        [_RUNNING_LINE, "had restarts before (2); the newest: ps-0, NodeLost"],
    ),
    "as many restarts as a status keeps": (
        None,
        _job(restarts=(_OOM,) * 20),
        [_RUNNING_LINE, "had restarts before (20 or more); the newest: worker-1, OOMKilled"],
    ),
    "a plan with its reason": (
        _RUNNING,
        _job(planned=_PLANNED),
        [
            (
                "has advice of its optimizer: worker 4, mnist-edljob-ps-0 replaced (worker: speed grows with "
                "workers); autoscaling is off, so nothing changes: `edl autoscale mnist` lets its master "
                "apply its plans, the stage apply-plan applies one"
            )
        ],
    ),
    "a plan of a job whose scaling a stage has switched off": (
        _RUNNING,
        _job(planned=_PLANNED.model_copy(update={"reasons": {}}), annotations=_autoscale("false")),
        [
            (
                "has advice of its optimizer: worker 4, mnist-edljob-ps-0 replaced; autoscaling is off, so "
                "nothing changes: `edl autoscale mnist` lets its master apply its plans, the stage "
                "apply-plan applies one"
            )
        ],
    ),
    "a plan that the master applies": (
        _RUNNING,
        _job(planned=_PLANNED, annotations=_autoscale("2-8")),
        [
            (
                "has a new proposal of its optimizer: worker 4, mnist-edljob-ps-0 replaced "
                "(worker: speed grows with workers)"
            )
        ],
    ),
    "the same plan again": (
        _job(planned=_PLANNED),
        _job(planned=_PLANNED.model_copy(update={"time": _NOON})),
        [],
    ),
    "a plan of a job that has ended": (
        _job(phase=JobPhase.SUCCEEDED),
        _job(phase=JobPhase.SUCCEEDED, planned=_PLANNED),
        [],
    ),
    "a plan without a change": (_RUNNING, _job(planned=AutoscalingStatus()), []),
    "a warning": (
        _job(warnings=("the disk is full",)),
        _job(warnings=("the disk is full", "ps-0 is slow")),
        ["warns: ps-0 is slow"],
    ),
    "a warning that returns": (_RUNNING, _job(warnings=("the disk is full",)), ["warns: the disk is full"]),
    "slow training": (
        None,
        _job(
            progress=Progress(step=3, records=96, speed=0.034, records_per_second=1.1, records_total=50_000)
        ),
        [
            (
                "is Running; ready: ps 1/1, worker 2/2; step 3 (0% of the data), 0.034 steps/s, "
                "1.1 records/s, about 12 h 36 min left; checkpoint at step 1,200"
            )
        ],
    ),
    "metrics": (
        None,
        _job(progress=Progress(step=3, metrics={"accuracy": 0.98125, "loss": 12_345.6}), replicas={}),
        ["is Running; step 3, loss 1.235e+04, accuracy 0.9812; checkpoint at step 1,200"],
    ),
    "more metrics than a line has room for": (
        None,
        _job(progress=Progress(step=3, metrics={f"m{n:02}": n for n in range(20)}), replicas={}),
        ["is Running; step 3, m00 0, m01 1, m02 2, m03 3, m04 4, 15 more; checkpoint at step 1,200"],
    ),
    "it has ended": (
        _RUNNING,
        _job(phase=JobPhase.SUCCEEDED, reason="JobSucceeded", progress=Progress(step=4960)),
        ["is Succeeded (JobSucceeded); step 4,960; checkpoint at step 1,200"],
    ),
    "endless data": (
        None,
        _job(progress=Progress(step=3, records=96), replicas={}, checkpoint=None),
        ["is Running; step 3"],
    ),
    "a plan of its own is new": (None, _plan(""), ["is Pending"]),
    "its next phase": (
        _plan("Pending", "the nightly pipeline"),
        _plan("Migrating", "the nightly pipeline"),
        ["is Migrating: the nightly pipeline"],
    ),
    "another plan goes before": (
        _plan("Pending", "the nightly pipeline"),
        _plan("Pending", "the nightly pipeline", "waits for ScalePlan p-1, which goes before"),
        ["is Pending: the nightly pipeline; waits for ScalePlan p-1, which goes before"],
    ),
    "the same phase": (_plan("Migrating"), _plan("Migrating"), []),
    "a plan that has paused the training": (
        _plan("Restarting"),
        _plan("Succeeded", stall_seconds=0.42),
        ["is Succeeded; training paused for 0.4 s"],
    ),
}


@pytest.mark.parametrize("row", ROWS)
def test_changes(row: str) -> None:
    """Each change gives a line, and progress alone gives none."""
    before, now, lines = ROWS[row]

    assert describe_changes(before, now) == lines


@pytest.mark.parametrize("row", ROWS)
def test_no_change_has_no_line(row: str) -> None:
    """A state that does not change is written once, even if the master writes its status again."""
    _before, now, _lines = ROWS[row]

    assert describe_changes(now, now) == []


def test_progress_is_written_once_a_minute() -> None:
    """A line on progress is written once a minute, whether the status changes often or not at all."""
    reporter = StateReporter()
    moving = [_job(progress=Progress(step=step)) for step in range(3)]

    assert len(reporter.report_state(moving[0], 1000.0)) == 1
    assert reporter.report_state(moving[1], 1001.0) == []
    assert reporter.seconds_left(1001.0) == PROGRESS_SECONDS - 1
    assert len(reporter.report_state(moving[2], 1000.0 + PROGRESS_SECONDS)) == 1
    assert reporter.remind(1001.0 + PROGRESS_SECONDS) == []
    assert len(reporter.remind(1000.0 + 2 * PROGRESS_SECONDS)) == 1


_UNSEEN = _job(
    phase=JobPhase.PENDING, observed_generation=0, replicas={}, progress=Progress(), checkpoint=None
)


@pytest.mark.parametrize("unseen", [_UNSEEN, _plan("")], ids=["job", "plan"])
def test_an_object_that_no_controller_observes_is_named(unseen: JobView | ScalePlan) -> None:
    """The first line is that of any new object. A minute later, and each minute, the line says for how long
    no controller has observed it, and what to do."""
    reporter = StateReporter()

    assert reporter.report_state(unseen, 1000.0) == ["is Pending"]
    assert reporter.remind(1000.0 + PROGRESS_SECONDS - 1) == []
    (first,) = reporter.remind(1000.0 + PROGRESS_SECONDS)
    (second,) = reporter.report_state(unseen, 1000.0 + 2 * PROGRESS_SECONDS)
    assert first.startswith("has no status: no controller has observed it in 60 s; is the controller running")
    assert "in 120 s;" in second
    assert "edl controller run" in second


@pytest.mark.parametrize("unseen", [_UNSEEN, _plan("")], ids=["job", "plan"])
def test_an_old_object_that_no_controller_observes_is_named_at_once(unseen: JobView | ScalePlan) -> None:
    """A wait that begins late, as each look of a sensor does, knows the age of the object."""
    reporter = StateReporter()

    (first,) = reporter.report_state(unseen, 1000.0, age=300.0)
    (second,) = reporter.report_state(unseen, 1000.0 + PROGRESS_SECONDS, age=300.0 + PROGRESS_SECONDS)

    assert "in 300 s;" in first
    assert "in 360 s;" in second
    assert StateReporter().report_state(unseen, 1000.0, age=PROGRESS_SECONDS - 1) == ["is Pending"]


def test_an_object_that_a_controller_observed_late_is_described_as_any_other() -> None:
    """As soon as a controller has observed the object, its state is written, and reminders repeat that
    state."""
    reporter = StateReporter()
    reporter.report_state(_UNSEEN, 1000.0)
    reporter.remind(1000.0 + PROGRESS_SECONDS)

    assert reporter.report_state(_PENDING, 1061.0) == [_PENDING_LINE]
    assert reporter.remind(1061.0 + PROGRESS_SECONDS) == [_PENDING_LINE]


def test_an_object_that_does_not_exist_is_named_once_a_minute() -> None:
    """A missing object is named once a minute, whether it is looked for again and again or its watch is
    silent. Then its first state is written."""
    reporter = StateReporter()

    assert reporter.report_line("does not exist yet", 1000.0) == ["does not exist yet"]
    assert reporter.report_line("does not exist yet", 1001.0) == []
    assert reporter.seconds_left(1001.0) == PROGRESS_SECONDS - 1
    assert reporter.remind(1000.0 + PROGRESS_SECONDS) == ["does not exist yet"]
    assert reporter.report_line("does not exist yet", 1000.0 + 2 * PROGRESS_SECONDS) == ["does not exist yet"]
    assert reporter.report_state(_PENDING, 1001.0 + 2 * PROGRESS_SECONDS) == [_PENDING_LINE]


def test_an_object_that_was_not_seen_is_not_described() -> None:
    """Before the first state there is nothing to remind of."""
    assert StateReporter().remind(10**6) == []
