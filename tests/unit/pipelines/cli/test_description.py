"""`edl describe`: the state of the job's optimizer, and the reasons of plans."""

import pytest

from edl_workflows.core.jobs.autoscaling import ANNOTATION
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.pipelines.cli.jobs.description import Description, description_lines
from tests.airflow.support import elastic_job

AUTOSCALING = {
    "optimizer": "brain",
    "stage": "job_stage_running",
    "reasons": {"worker": "1 → 3 nodes: the busiest parameter server uses 30% of its cores"},
    "notes": ["no parameter server is hot"],
}


def test_verification_and_allowed_changes_are_told() -> None:
    """The description has the model's values before and after a switch, and which changes of parameter
    servers the program allows."""
    manifest = elastic_job("mnist")
    servers = {"changes": "SameCount", "reason": "a table for each server"}
    manifest |= {"status": {"phase": "Running", "parameterServers": servers}}
    manifest["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    plan = {
        "apiVersion": manifest["apiVersion"],
        "kind": "ScalePlan",
        "metadata": {"name": "more"},
        "spec": {"ownerJob": "mnist"},
    }
    compared = {"result": "Different", "before": 0.551, "after": 0.823, "message": ""}
    nothing = {"result": "NotCompared", "message": "the program gives nothing to compare"}
    plans = tuple(
        ScalePlan.parse({**plan, "status": {"phase": "Failed", "verification": v}})
        for v in (compared, nothing)
    )
    told = list(description_lines(Description(manifest, ELASTIC_JOB.view_stored(manifest), (), plans, ())))
    assert "Servers:     changes SameCount: a table for each server" in told
    assert "    verification: Different  0.551 -> 0.823" in told
    assert "    verification: NotCompared    the program gives nothing to compare" in told


@pytest.mark.parametrize(
    ("annotations", "phase", "first"),
    [
        pytest.param(
            {ANNOTATION: "true"}, "Running", "Autoscaling: brain optimizer, job_stage_running", id="on"
        ),
        pytest.param(
            {ANNOTATION: "2-8"}, "Running", "Autoscaling: brain optimizer, job_stage_running", id="bounds"
        ),
        pytest.param(
            {ANNOTATION: "false"},
            "Running",
            "Autoscaling: off, so nothing changes; advice of the brain optimizer, job_stage_running "
            "(`edl autoscale mnist` lets the job's master apply its plans):",
            id="off",
        ),
        pytest.param(
            {},
            "Succeeded",
            "Autoscaling: off, so nothing changes; advice of the brain optimizer, job_stage_running:",
            id="ended",
        ),
        pytest.param(
            {},
            "Running",
            "Autoscaling: off, so nothing changes; advice of the brain optimizer, job_stage_running "
            "(`edl autoscale mnist` lets the job's master apply its plans):",
            id="not-set",
        ),
    ],
)
def test_reasons_are_told(annotations: dict[str, str], phase: str, first: str) -> None:
    """The description has the optimizer's newest plan with its reasons and notes, and the reason of each
    ScalePlan. If autoscaling is off, it says that the optimizer's plan is advice, and while the job runs how
    to have it applied."""
    manifest = elastic_job("mnist")
    manifest |= {"status": {"phase": phase, "autoscaling": AUTOSCALING}}
    manifest["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    manifest["metadata"]["annotations"] = annotations
    plan = ScalePlan.parse(
        {
            "apiVersion": manifest["apiVersion"],
            "kind": "ScalePlan",
            "metadata": {"name": "mnist-optimize-1"},
            "spec": {"ownerJob": "mnist", "reason": "worker: 1 → 3 nodes"},
        }
    )
    told = list(description_lines(Description(manifest, ELASTIC_JOB.view_stored(manifest), (), (plan,), ())))
    start = told.index(first)
    assert told[start + 1 : start + 3] == [
        "  worker: 1 → 3 nodes: the busiest parameter server uses 30% of its cores",
        "  no parameter server is hot",
    ]
    assert "    because worker: 1 → 3 nodes" in told


FAULTS = {
    "completionTime": "2026-01-01T00:02:40Z",
    "goodput": {"ratio": 0.873, "usefulSeconds": 131.0, "redoneSeconds": 9.6, "elapsedSeconds": 150.0,
                "seconds": {"training": 131, "redone": 10, "queued": 9, "later": 1},
                "cause": "queued", "time": "2026-01-01T00:02:30Z"},
    "restarts": {
        "counts": {"Killed": 2, "Recovery": 1},
        "recent": [
            {"time": "2026-01-01T00:01:00Z", "subject": "ps-1", "cause": "Killed",
             "message": "its pod was deleted"}
        ],
    },
    "hang": {
        "time": "2026-01-01T00:02:00Z",
        "stacks": [
            {"nodes": ["worker-2"], "count": 1, "recordings": ["worker-2:/tmp/nccl_trace_rank_2"],
             "stack": '  File "train.py", line 5 in load\n  File "train.py", line 9 in main'},
            {"nodes": ["worker-0", "worker-1"], "count": 3, "stack": ""},
        ],
    },
    "failure": {"reason": "CriticalNodeFailed", "pod": "mnist-edljob-worker-0",
    "lastLines": "Trace\nValueError: x\n"},
}  # fmt: skip


def test_faults_are_told() -> None:
    """The description has the use of time, the restarts with causes, the stacks of the newest hang, and the
    last output of the failed pod."""
    manifest = elastic_job("mnist")
    manifest |= {"status": {"phase": "Failed", **FAULTS}}
    manifest["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": "2026-01-01T00:00:00Z"}
    told = list(description_lines(Description(manifest, ELASTIC_JOB.view_stored(manifest), (), (), ())))
    start = told.index("Goodput:     87% (131 of 150 s, 10 s repeated)")
    assert told[start + 1 : start + 17] == [
        "Time:        0:02:40 since the job was created",
        "  training            0:02:11   82%  steps that last",
        "  queued              0:00:19   12%  no training pod runs",
        "  redone              0:00:10    6%  steps that were lost",
        "Restarts:    Killed 2, Recovery 1",
        "  2026-01-01T00:01:00Z  ps-1  Killed  its pod was deleted",
        "Hang:        found at 2026-01-01T00:02:00Z; each stack once, the rarest first",
        "  worker-2:",
        '    File "train.py", line 5 in load',
        '    File "train.py", line 9 in main',
        "    NCCL's flight recorder: worker-2:/tmp/nccl_trace_rank_2",
        "  worker-0, worker-1 and 1 more:",
        "    no stack",
        "Last lines of mnist-edljob-worker-0:",
        "  Trace",
        "  ValueError: x",
    ]


BEGAN, ENDED = "2026-01-01T00:00:00Z", "2026-01-01T00:05:00Z"


@pytest.mark.parametrize(
    ("status", "told"),
    [
        pytest.param({"phase": "Succeeded", "startTime": BEGAN, "completionTime": ENDED}, "Ran for:     5m",
            id="over"),
        pytest.param({"phase": "Succeeded", "startTime": BEGAN}, "", id="end not said"),
        pytest.param({"phase": "Suspended", "startTime": BEGAN}, "", id="suspended"),
        pytest.param({"phase": "Pending"}, "", id="not begun"),
    ],
)  # fmt: skip
def test_how_long_it_ran_is_told_as_it_is(status: dict[str, str], told: str) -> None:
    """The run time of a job that has ended or is suspended does not grow."""
    manifest = elastic_job("mnist") | {"status": status}
    manifest["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": BEGAN}

    found = list(description_lines(Description(manifest, ELASTIC_JOB.view_stored(manifest), (), (), ())))

    assert [line for line in found if line.startswith(("Ran for", "Running for"))] == ([told] if told else [])
    assert any(line.startswith("Age: ") for line in found)


def test_a_job_that_runs_tells_for_how_long() -> None:
    """The description of a running job has the time since its start."""
    manifest = elastic_job("mnist") | {"status": {"phase": "Running", "startTime": BEGAN}}
    manifest["metadata"] |= {"uid": "u", "namespace": "default", "creationTimestamp": BEGAN}

    found = list(description_lines(Description(manifest, ELASTIC_JOB.view_stored(manifest), (), (), ())))

    assert any(line.startswith("Running for: ") for line in found)
