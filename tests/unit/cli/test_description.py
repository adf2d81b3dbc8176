"""`edl describe`: what the job's optimizer says, and why plans were made."""

from edl_workflows.cli.description import Description, lines
from edl_workflows.cli.jobs import view_of
from edl_workflows.jobs.scale_plan.model import ScalePlan
from tests.airflow.support import elastic_job

AUTOSCALING = {
    "optimizer": "brain",
    "stage": "job_stage_running",
    "reasons": {"worker": "1 → 3 nodes: the busiest parameter server uses 30% of its cores"},
    "notes": ["no parameter server is hot"],
}


def test_reasons_are_told() -> None:
    """The newest plan with its reasons and notes, and of each ScalePlan why it was made."""
    manifest = elastic_job("mnist")
    manifest |= {"status": {"phase": "Running", "autoscaling": AUTOSCALING}}
    manifest["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    plan = ScalePlan.parse(
        {
            "apiVersion": manifest["apiVersion"],
            "kind": "ScalePlan",
            "metadata": {"name": "mnist-optimize-1"},
            "spec": {"ownerJob": "mnist", "reason": "worker: 1 → 3 nodes"},
        }
    )
    told = list(lines(Description(manifest, view_of("ElasticJob", manifest), (), (plan,), ())))
    start = told.index("Autoscaling: brain optimizer, job_stage_running")
    assert told[start + 1 : start + 3] == [
        "  worker: 1 → 3 nodes: the busiest parameter server uses 30% of its cores",
        "  no parameter server is hot",
    ]
    assert "    because worker: 1 → 3 nodes" in told


FAULTS = {
    "goodput": {"ratio": 0.873, "usefulSeconds": 131.0, "redoneSeconds": 9.6, "elapsedSeconds": 150.0},
    "restarts": {
        "counts": {"Killed": 2, "Recovery": 1},
        "recent": [{"time": "2026-01-01T00:01:00Z", "subject": "ps-1", "cause": "Killed", "message": "its pod was deleted"}],
    },
    "failure": {"reason": "CriticalNodeFailed", "pod": "mnist-edljob-worker-0", "lastLines": "Trace\nValueError: x\n"},
}  # fmt: skip


def test_faults_are_told() -> None:
    """How the time was spent, what was restarted and why, and what the failing pod printed last."""
    manifest = elastic_job("mnist")
    manifest |= {"status": {"phase": "Failed", **FAULTS}}
    manifest["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    told = list(lines(Description(manifest, view_of("ElasticJob", manifest), (), (), ())))
    start = told.index("Goodput:     87% (131 of 150 s, 10 s redone)")
    assert told[start + 1 : start + 6] == [
        "Restarts:    Killed 2, Recovery 1",
        "  2026-01-01T00:01:00Z  ps-1  Killed  its pod was deleted",
        "Last lines of mnist-edljob-worker-0:",
        "  Trace",
        "  ValueError: x",
    ]
