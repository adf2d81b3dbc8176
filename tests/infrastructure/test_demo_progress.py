"""What `make demo` shows of its jobs while they run."""

import time

from rich.console import Console

from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.protocol.training import LiveFigures
from edl_workflows.pipelines.live import Measurement
from tests.airflow.support import elastic_job
from tests.demo.progress import FIGURES, JobState, LineDisplay, LiveDisplay, Moment

FIGURES_NOW = LiveFigures(
    time=time.time(), step=413, speed=18.3, records=10, records_total=64, records_per_second=1.0,
    goodput=0.83, memory=1340.0, metrics={"loss": 0.1234},
)  # fmt: skip


def _job(phase: str, measured: Measurement) -> JobState:
    manifest = elastic_job("digits") | {"status": {"phase": phase}}
    return JobState(kind_of("ElasticJob").view_stored(manifest), measured)


def _print(jobs: tuple[JobState, ...]) -> list[str]:
    console = Console(width=200)
    with console.capture() as capture:
        LineDisplay(console).show(Moment(61.0, {}, jobs))
    return capture.get().splitlines()


def test_a_line_has_the_figures_of_the_master() -> None:
    """Step, speed, loss, remaining time, goodput and memory are the master's; else their age is shown, and a
    job without figures has none."""
    old = FIGURES_NOW.model_copy(update={"time": time.time() - 17.5, "memory": None})
    [line] = _print((_job("Running", Measurement(FIGURES_NOW)),))
    assert (
        line.split("step ")[1]
        == "413  steps/s 18.3  loss 0.123  eta 54s  goodput 83%  memory 1340 MiB  figures live"
    )
    [line] = _print((_job("Running", Measurement(old, "no answer")),))
    assert line.endswith("goodput 83%  figures 17s old")
    [line] = _print((_job("Succeeded", Measurement(old, "it has ended")),))
    assert line.endswith("goodput 83%  figures last")
    [line] = _print((_job("Pending", Measurement(None, "no master")),))
    assert line.endswith("Pending  no nodes")


def test_a_terminal_gets_a_table() -> None:
    """It has the same figures as columns."""
    console = Console(width=200, force_terminal=True, color_system=None)
    with console.capture() as capture, LiveDisplay(console) as display:
        display.show(Moment(61.0, {}, (_job("Running", Measurement(FIGURES_NOW)),)))
    shown = capture.get()
    assert all(name in shown for name in FIGURES)
    assert all(text in shown for text in ("413", "18.3", "0.123", "54s", "83%", "1340 MiB", "live"))
