"""The live view of a training: what it shows, where, and that hostile texts stay texts."""

import io
import sys
from dataclasses import replace
from datetime import UTC, datetime
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from edl_workflows.core.jobs.view import Checkpoint, JobPhase, JobView, Progress, Replicas
from edl_workflows.pipelines.cli.jobs.listing import format_replicas
from edl_workflows.pipelines.client.live_view import (
    KEPT_LINES,
    Lines,
    LiveView,
    Notebook,
    Terminal,
    describe,
    open_screen,
    render_html,
    share_done,
)

RUNNING = JobView(
    "ElasticJob",
    "mnist",
    "default",
    "uid-1",
    1,
    1,
    JobPhase.RUNNING,
    "JobRunning",
    replicas={"worker": Replicas(desired=3, ready=2)},
    progress=Progress(1240, 3000, 52.1, 100.0, 12_000, {"loss": 0.25}),
    checkpoint=Checkpoint("/ck/1200", 1200),
    warnings=("the disk is nearly full",),
)
HOSTILE = "<script>alert(1)</script>\x1b[2J"


def noon() -> datetime:
    """The time that stands before each line."""
    return datetime(2026, 1, 1, 12, tzinfo=UTC)


def test_a_training_is_described_by_what_people_ask() -> None:
    """The view shows the phase with its reason, nodes, step, speed with the time left, metrics, checkpoint
    and warnings."""
    assert describe(RUNNING) == {
        "job": "default/mnist",
        "phase": "Running: JobRunning",
        "nodes": "worker 2/3",
        "step": "1,240 (25% of the data)",
        "speed": "52 steps/s, 100 records/s, about 90 s left",
        "metrics": "loss 0.25",
        "checkpoint": "step 1,200: /ck/1200",
        "warnings": "the disk is nearly full",
    }


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_job_that_has_ended_needs_no_nodes(phase: JobPhase) -> None:
    """The pods of a job that has ended are gone, so "0 of 3 nodes" would look like a failure. No time is
    left, even if not all data was trained."""
    ended = replace(RUNNING, phase=phase, replicas={"worker": Replicas(desired=3, ready=0)})

    assert "nodes" not in describe(ended)
    assert describe(ended)["speed"] == "52 steps/s, 100 records/s"
    assert format_replicas(ended) == ""
    assert format_replicas(RUNNING) == "worker 2/3"
    assert share_done(RUNNING.progress) == 0.25


def test_what_is_not_known_is_left_out() -> None:
    """A job that was just created is shown with its name and phase. Without a known end of the data there is
    no bar."""
    new = JobView("ElasticJob", "mnist", "default", "uid-1", 1, 0, JobPhase.PENDING)

    assert list(describe(new)) == ["job", "phase"]
    assert share_done(new.progress) is None


def test_a_notebook_replaces_its_table() -> None:
    """A notebook updates a single output with the newest state, a bar, and the latest changes."""
    shown: list[str] = []

    def update(table: Any) -> None:
        shown.append(table._repr_html_())

    def display(table: Any, *, display_id: bool) -> Any:
        assert display_id
        update(table)
        return SimpleNamespace(update=update)

    with LiveView(Notebook(display), noon) as view:
        view.show(None)
        view.show(RUNNING)
        view.show(replace(RUNNING, phase=JobPhase.SUCCEEDED, reason="Done"))

    assert len(shown) == 2
    assert '<progress value="0.2500" max="1"' in shown[0]
    assert "12:00:00 is Running (JobRunning)" in shown[1]
    assert "color: #1a7f37" in shown[1]
    assert "Succeeded: Done" in shown[1]


def test_a_terminal_rewrites_its_table() -> None:
    """On a terminal the table is rewritten in place, and the last one stays with the warnings."""
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=120, color_system=None)
    with LiveView(Terminal(console), noon) as view:
        view.show(RUNNING)
        view.show(replace(RUNNING, progress=replace(RUNNING.progress, step=1300)))

    written = text.getvalue()
    assert written.index("1,240 (25% of the data)") < written.rindex("1,300 (25% of the data)")
    assert "the disk is nearly full" in written


def test_output_that_is_no_terminal_has_a_line_for_each_change() -> None:
    """Each change gives a line; progress alone does not."""
    lines: list[str] = []
    with LiveView(Lines(lines.append), noon) as view:
        view.show(replace(RUNNING, warnings=()))
        view.show(replace(RUNNING, warnings=(), progress=Progress(1300)))
        view.show(RUNNING)

    assert [line.partition(";")[0] for line in lines] == [
        "12:00:00 is Running (JobRunning)",
        "12:00:00 warns: the disk is nearly full",
    ]


@pytest.mark.parametrize("field", ["message", "reason"])
def test_hostile_texts_are_texts(field: str) -> None:
    """Hostile text is shown without HTML and without control sequences of a terminal."""
    texts: dict[str, Any] = {field: HOSTILE}
    hostile = replace(RUNNING, **texts, warnings=(HOSTILE,), checkpoint=Checkpoint(HOSTILE, 1))
    text = io.StringIO()
    with LiveView(Terminal(Console(file=text, force_terminal=True, width=200, color_system=None))) as view:
        view.show(hostile)
    html = render_html(describe(hostile), None, [HOSTILE])

    assert "<script>" not in html
    assert "\x1b[2J" not in text.getvalue()


def test_only_the_latest_changes_are_kept() -> None:
    """Only the latest changes are shown, so that a job with thousands of restarts does not fill the
    screen."""
    kept: list[int] = []
    screen = SimpleNamespace(
        draw=lambda _rows, _share, lines: kept.append(len(lines)), add=lambda _line: None, close=lambda: None
    )
    with LiveView(screen) as view:
        for number in range(50):
            view.show(replace(RUNNING, message=f"change {number}"))

    assert max(kept) == KEPT_LINES


def test_the_screen_is_that_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a notebook's kernel the view is HTML; in IPython on a terminal and on a pipe it is not."""
    ipython: Any = ModuleType("IPython")
    ipython.display = SimpleNamespace(display=lambda *_given, **_more: None)
    monkeypatch.setitem(sys.modules, "IPython", ipython)

    ipython.get_ipython = lambda: SimpleNamespace(kernel=object())
    assert isinstance(open_screen(), Notebook)
    ipython.get_ipython = SimpleNamespace
    assert isinstance(open_screen(), Lines)
    monkeypatch.delitem(sys.modules, "IPython")
    assert isinstance(open_screen(), Lines)
