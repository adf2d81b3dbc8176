"""Timelines: speeds from samples, spans from plans, the picture."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.pipelines.timeline import (
    PhaseSpan,
    Timeline,
    TimelineRestart,
    TimelineSample,
    draw_timeline,
    of_job,
    plan_spans,
    speed_curve,
)
from tests.airflow.support import elastic_job

BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def _sample(time: float, step: int) -> TimelineSample:
    return TimelineSample(time, "Running", step, 0.0, {"worker": 1})


def _plan(name: str, scale_type: str, *steps: tuple[str, int, int | None]) -> ScalePlan:
    def at(seconds: int) -> str:
        return (BEGAN + timedelta(seconds=seconds)).isoformat()

    recorded = [
        {"phase": phase, "startTime": at(start), **({"finishTime": at(end)} if end is not None else {})}
        for phase, start, end in steps
    ]
    return ScalePlan.parse(
        {
            "metadata": {"name": name, "labels": {"scale-type": scale_type}},
            "spec": {"ownerJob": "j"},
            "status": {"steps": recorded},
        }
    )


def test_speed_is_measured_over_what_is_news() -> None:
    """A step that a status repeats does not count as a stop of training."""
    samples = [
        _sample(time / 2, 20 * (time // 4)) for time in range(100)
    ]  # a new step each 2 s, seen each 0.5 s

    late = [speed for time, speed in speed_curve(samples) if time > 10]
    assert late == pytest.approx([10.0] * len(late))


def test_going_back_is_standing_still() -> None:
    """After a restore of an earlier step, the speed is never negative."""
    samples = [_sample(0, 100), _sample(10, 50), _sample(20, 60)]

    assert all(speed >= 0 for _, speed in speed_curve(samples))


def test_spans_are_of_manual_plans() -> None:
    """Each step of a manual plan is a span, and a running one ends now. Auto plans and waiting are left
    out."""
    plans = [
        _plan("b", "manual", ("Pending", 0, 5), ("Scaling", 5, None)),
        _plan("a", "auto", ("Scaling", 1, 2)),
    ]
    now = BEGAN.timestamp() + 60

    assert plan_spans(plans, now) == (PhaseSpan("b", ScalePlanPhase.SCALING, BEGAN.timestamp() + 5, now),)


def test_restarts_goodput_and_data_are_the_status() -> None:
    """Restarts with their times, the share of useful time and the records of each point are those in the
    status."""
    manifest = elastic_job("j")
    manifest["status"] = {
        "phase": "Running",
        "history": [
            {"time": BEGAN.isoformat(), "step": 5, "records": 40, "nodes": {"worker": 2}, "metrics": {"a": 1}}
        ],
        "goodput": {"ratio": 0.9, "seconds": {"training": 8}},
        "restarts": {
            "counts": {"Killed": 1},
            "recent": [{"time": BEGAN.isoformat(), "subject": "ps-1", "cause": "Killed"}],
        },
    }
    line = of_job(ElasticJob.parse(manifest), (), 0.0)
    assert line.restarts == (TimelineRestart(BEGAN.timestamp(), "ps-1", "Killed"),)
    assert line.goodput == 0.9
    assert line.seconds == {"training": 8}
    assert line.samples[0].records == 40
    assert line.samples[0].metrics == {"a": 1.0}


def test_picture_is_written(tmp_path: Path) -> None:
    """The picture is a PNG of some size, in a file and in a notebook."""
    path = tmp_path / "timeline.png"
    line = Timeline(
        "default/j",
        tuple(_sample(t, t) for t in range(30)),
        (PhaseSpan("j-scale-1", ScalePlanPhase.SCALING, 3, 9),),
        (TimelineRestart(4.0, "ps-1", "Killed"), TimelineRestart(5.0, "version 1", "Recovery")),
        0.9,
    )
    draw_timeline(line, path)

    assert path.read_bytes()[:4] == b"\x89PNG"
    assert path.stat().st_size > 10_000
    assert (line._repr_png_() or b"").startswith(b"\x89PNG")


def test_each_metric_has_a_curve(tmp_path: Path) -> None:
    """Each metric has a curve with its name and newest value, the loss first. Names are shown as text, not as
    formulas of the drawing library."""
    path = tmp_path / "timeline.svg"
    samples = [replace(_sample(t, t), metrics={"$x^$": 0.5, "loss": 3.0 - t} if t else {}) for t in range(3)]
    line = Timeline("default/j", tuple(samples), ())
    draw_timeline(line, path)
    drawn = path.read_text()

    assert line.metric_names == ["loss", "$x^$"]
    assert drawn.index("<!-- loss 1 -->") < drawn.index("<!-- $x^$ 0.5 -->")


@pytest.mark.parametrize("values", [(1.7e308, 1.7e308), (-1.7e308, 1.7e308), (5e-324, 0.0)])
def test_extreme_metrics_are_drawn(tmp_path: Path, values: tuple[float, float]) -> None:
    """A timeline is drawn whatever finite numbers a training program reports."""
    samples = [replace(_sample(time, 1), metrics={"loss": value}) for time, value in enumerate(values)]

    draw_timeline(Timeline("ns/j", tuple(samples), ()), tmp_path / "timeline.svg")

    assert "loss" in (tmp_path / "timeline.svg").read_text()


def test_nothing_to_draw_is_said(tmp_path: Path) -> None:
    """A timeline without samples is an error with the likely reason; a notebook shows it as text."""
    line = Timeline("default/j", (), ())
    assert (line._repr_png_(), repr(line)) == (None, "Timeline(job='default/j', 0 samples)")
    with pytest.raises(ValueError, match="was the job watched"):
        draw_timeline(line, tmp_path / "x.png")
