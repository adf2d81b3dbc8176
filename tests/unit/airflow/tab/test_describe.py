"""The tab's document of a job: what it says, by state; and its bounds."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from edl_workflows.airflow.tab.describe import (
    REJECTED_ANNOTATION,
    add_figures,
    add_history,
    describe_history,
    describe_job,
    find_proposal,
    without_output,
)
from edl_workflows.airflow.tab.document import MAX_PLANS, MAX_POINTS, MAX_TEXT, FiguresDocument, JobDocument
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.protocol.training import LiveFigures
from edl_workflows.pipelines.live import Measurement
from edl_workflows.services.brain.page.messages import JobAnswer
from tests.airflow.support import elastic_job
from tests.cases.kinds import KIND_CASES
from tests.unit.airflow.tab.crowded import RESTARTS, SPENT, crowded_plans, crowded_status
from tests.unit.core.jobs.examples import make_example

NOW = datetime(2026, 1, 2, 12, tzinfo=UTC)
PROPOSAL = {"replicaResourceSpecs": {"worker": {"replicas": 4}}, "reasons": {"worker": "it pays"}}


def describe(
    status: dict[str, Any],
    plans: list[dict[str, Any]] | None = None,
    annotations: dict[str, str] | None = None,
) -> JobDocument:
    """The document of an ElasticJob with a status."""
    manifest = elastic_job("mnist") | {"status": status}
    manifest["metadata"] |= {"namespace": "team", "uid": "u-1", "annotations": annotations or {}}
    job = ElasticJob.parse(manifest)
    parsed = [ScalePlan.parse(plan) for plan in plans or []]
    return describe_job(kind_of("ElasticJob").view_stored(manifest), job, parsed, NOW.timestamp())


def test_without_output_only_the_messages_are_missing() -> None:
    """What quotes the program's output is empty: the messages of the job, its restarts and its plans, and its
    warnings. All else stays."""
    said = "RuntimeError: password=hunter2"
    restart = {"time": "2026-01-01T00:00:00Z", "subject": "worker-0", "cause": "error", "message": said}
    status = {
        "phase": "Failed",
        "reason": "WorkerFailed",
        "message": said,
        "warnings": [said],
        "restarts": {"counts": {"error": 1}, "recent": [restart]},
    }
    plan = crowded_plans("mnist", NOW)[0]
    full = describe(status, [plan | {"status": plan.get("status", {}) | {"message": said}}])
    limited = without_output(full)

    assert full.model_dump_json().count(said) == 4
    restored = limited.model_copy(
        update={
            "message": said,
            "warnings": [said],
            "restarts": full.restarts,
            "plans": [one.model_copy(update={"message": said}) for one in limited.plans],
        }
    )
    assert "hunter2" not in limited.model_dump_json()
    assert restored == full
    assert limited.restarts.counts == {"error": 1}


def test_the_figures_of_a_master_are_newer_than_the_status() -> None:
    """Goodput and memory come from the master, too; those that it has not given leave the status' figures,
    with their time and the obstacle. Who may not see output does not see the obstacle either."""
    document = describe(crowded_status(NOW))
    figures = LiveFigures(time=NOW.timestamp(), goodput=0.9, memory=512.0)

    live = add_figures(document, Measurement(figures))
    old = add_figures(document, Measurement(figures, "its master said hunter2"))
    none = add_figures(document, Measurement(None, "no answer"))

    assert live.figures == FiguresDocument(live=True, time=NOW.timestamp(), memory=512.0)
    assert (live.goodput and live.goodput.ratio, old.goodput and old.goodput.ratio) == (0.9, 0.83)
    assert old.figures is not None
    assert (old.figures.live, old.figures.obstacle) == (False, "its master said hunter2")
    assert none.figures == FiguresDocument(live=False, obstacle="no answer")
    assert "hunter2" not in without_output(old).model_dump_json()
    assert without_output(live).figures == live.figures


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ({"step": 0}, (None, None, None)),
        ({"step": 50, "records": 500}, (None, None, None)),
        (
            {"step": 50, "records": 500, "recordsTotal": 2000, "recordsPerSecond": 10.0},
            (200, 0.25, pytest.approx(150.0)),
        ),
        ({"step": 50, "records": 500, "recordsTotal": 2000}, (200, 0.25, None)),
        ({"step": 200, "records": 2000, "recordsTotal": 2000, "recordsPerSecond": 9.0}, (None, 1.0, None)),
        ({"step": 200, "records": 2100, "recordsTotal": 2000}, (None, 1.0, None)),
    ],
    ids=["not begun", "endless data", "half way", "speed unknown", "all data", "more than all data"],
)
def test_progress(progress: dict[str, Any], expected: tuple[Any, ...]) -> None:
    """The steps of the whole and the time left are estimated where the data's size and speed are known."""
    found = describe({"phase": "Running", "progress": progress}).progress

    assert (found.steps_total, found.fraction, found.eta_seconds) == expected


def test_a_finished_job_has_no_time_left() -> None:
    """A job that failed half way shows no remaining time."""
    progress = {"step": 50, "records": 500, "recordsTotal": 2000, "recordsPerSecond": 10.0}

    assert describe({"phase": "Failed", "progress": progress}).progress.eta_seconds is None


@pytest.mark.parametrize(
    ("status", "annotations", "plans", "state"),
    [
        ({"autoscaling": PROPOSAL}, {}, [], "open"),
        ({"autoscaling": PROPOSAL}, {"elastic.iml.github.io/autoscale": "true"}, [], "automatic"),
        ({"autoscaling": PROPOSAL}, {"elastic.iml.github.io/autoscale": "false"}, [], "open"),
        ({"autoscaling": {"notes": ["all is well"]}}, {}, [], None),
        ({"autoscaling": PROPOSAL, "phase": "Succeeded"}, {}, [], None),
        ({"autoscaling": PROPOSAL}, {}, ["Pending"], None),
        ({"autoscaling": PROPOSAL, "replicaStatuses": {"worker": {"desired": 4}}}, {}, ["Succeeded"], None),
        ({"autoscaling": PROPOSAL}, {}, ["Succeeded", "Failed"], "open"),
        ({}, {}, [], None),
    ],
    ids=[
        "new",
        "autoscaled",
        "not autoscaled",
        "no change",
        "ended",
        "a plan waits",
        "done already",
        "old plans",
        "none",
    ],
)
def test_when_a_proposal_can_be_decided(
    status: dict[str, Any], annotations: dict[str, str], plans: list[str], state: str | None
) -> None:
    """A proposal is open only if it changes something, and if no plan is being carried out."""
    made = [crowded_plans("mnist", NOW)[0] | {"status": {"phase": phase}} for phase in plans]

    found = describe({"phase": "Running", **status}, made, annotations).proposal

    assert (found.state if found else None) == state


def test_a_rejection_holds_for_what_was_rejected() -> None:
    """A rejection does not apply to another proposal, or to an equal one after the job was changed. A
    proposal of which only the reasons differ stays rejected."""
    job = ElasticJob.parse(elastic_job("mnist") | {"status": {"autoscaling": PROPOSAL}})
    found = find_proposal(job, [])
    assert found is not None
    said = {REJECTED_ANNOTATION: f"{found[0]} by ann, 2026-01-01"}

    same = describe({"autoscaling": PROPOSAL}, annotations=said).proposal
    reworded = describe(
        {"autoscaling": PROPOSAL | {"reasons": {"worker": "still"}}}, annotations=said
    ).proposal
    changed = {"replicaResourceSpecs": {"worker": {"replicas": 5}}}
    other = describe({"autoscaling": changed}, annotations=said).proposal

    later = describe({"autoscaling": PROPOSAL}, crowded_plans("mnist", NOW)[:3], said).proposal

    states = [one.state for one in (same, reworded, other, later) if one]
    assert states == ["rejected", "rejected", "open", "open"]
    assert same is not None
    assert same.decided == "by ann, 2026-01-01"


def test_a_long_life_is_bounded() -> None:
    """The document of a job of 10,000 steps and 200 restarts, or far more, stays small: it has the first and
    the last point, and counts what it does not list."""
    status, plans = crowded_status(NOW), crowded_plans("mnist", NOW)
    first = describe(status, plans)
    status["history"] *= 40
    status["history"].sort(key=lambda point: point["time"])
    status["warnings"] = ["w" * 5000] * 100
    status["restarts"]["counts"] |= {f"cause-{n}": 1 for n in range(500)}
    status["replicaStatuses"] = {f"role-{n}": {"desired": 1} for n in range(300)}
    status["progress"]["metrics"] |= {f"metric-{n}": float(n) for n in range(300)}
    many = [
        plan | {"metadata": plan["metadata"] | {"name": f"mnist-{index}"}}
        for index, plan in enumerate(plans * 20)
    ]
    bounded = describe(status, many)

    assert first.restarts.total == RESTARTS
    assert sum(first.restarts.counts.values()) == RESTARTS
    assert first.goodput is not None
    assert {one.cause: one.seconds for one in first.goodput.spent} == SPENT
    assert first.points[-1].step == 6_804
    assert [point.speed is None for point in first.points[:2]] == [True, False]
    assert len(bounded.points) <= MAX_POINTS
    assert (bounded.points[0].time, bounded.points[-1].step) == (first.points[0].time, 6_804)
    assert len(bounded.plans) == MAX_PLANS
    assert max(map(len, bounded.warnings)) <= MAX_TEXT
    assert len(json.dumps(bounded.model_dump(mode="json"))) < 150_000


def test_only_a_plan_that_has_not_begun_can_be_rejected() -> None:
    """A plan that has begun can't be rejected, since it ends by itself."""
    found = describe(crowded_status(NOW), crowded_plans("mnist", NOW))

    assert [plan.phase for plan in found.plans if plan.may_be_rejected] == ["Pending"]
    assert found.proposal is None


@pytest.mark.parametrize("kind", KIND_CASES)
def test_every_kind_has_a_document(kind: str) -> None:
    """A job of each kind has a document with its kind and phase."""
    row = kind_of(kind)
    manifest = make_example(kind)

    found = describe_job(row.view_stored(manifest), None, [], NOW.timestamp())

    assert (found.kind, found.phase) == (kind, "Pending")


def test_brain_adds_what_the_cluster_forgot() -> None:
    """Points from before the history in the status, and deleted plans, come from Brain, each once. A job that
    only Brain knows has a document of its own."""
    begin = (NOW - timedelta(hours=8)).timestamp()
    answer = JobAnswer.model_validate(
        {
            "now": NOW.timestamp(),
            "job": {
                "uid": "u-1", "kind": "ElasticJob", "namespace": "team", "name": "mnist", "phase": "Running",
                "replicas": {"worker": {"desired": 2}}, "step": 7, "seen": NOW.timestamp(),
            },
            "points": [{"time": begin + index, "step": index, "speed": 1.0} for index in range(900)],
            "plans": [
                {"id": "1", "namespace": "team", "job": "mnist", "name": name, "phase": "Succeeded"}
                for name in ("mnist-scale-3", "mnist-forgotten")
            ],
        }
    )  # fmt: skip
    former = describe_history(answer)
    known = describe(crowded_status(NOW), crowded_plans("mnist", NOW))

    both = add_history(known, former)

    assert (former.source, former.name, former.progress.step) == ("brain", "mnist", 7)
    assert (both.points[0].time, both.points[-1].step) == (begin, 6_804)
    assert len(both.points) <= MAX_POINTS
    names = [plan.name for plan in both.plans]
    assert names.count("mnist-scale-3") == 1
    assert "mnist-forgotten" in names
