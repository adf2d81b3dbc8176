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
