"""Shows the progress of the demo: a live table in a terminal, plain lines elsewhere."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from edl_workflows.core.jobs.view import JobView
from edl_workflows.pipelines.cli.jobs.listing import format_seconds
from edl_workflows.pipelines.live import Measurement

STATE_STYLES = {
    "success": "green",
    "failed": "bold red",
    "upstream_failed": "red",
    "deferred": "cyan",
    "running": "blue",
}
FIGURES = ("step", "steps/s", "loss", "eta", "goodput", "memory", "figures")
"""The figures of a job that are shown, as `edl top` does."""
LINE_SECONDS = 10.0
"""Without a terminal, the shortest interval between two lines with a job's numbers. Changes of state are
always printed."""


@dataclass(frozen=True)
class TaskState:
    """The state of a task of a DAG run.

    Attributes:
        seconds: seconds since its start or, if it has ended, its duration.
    """

    task_id: str
    state: str
    seconds: float


def task_states(instances: Iterable[dict[str, Any]]) -> tuple[TaskState, ...]:
    """The states of Airflow's task instances, in the order of their start. Those that have not started come
    last."""
    started = sorted(instances, key=lambda t: (t["start_date"] is None, t["start_date"] or "", t["task_id"]))
    return tuple(TaskState(t["task_id"], t["state"] or "waiting", t["duration"] or 0.0) for t in started)


@dataclass(frozen=True)
class JobState:
    """A job, and its newest figures: of one that runs, those of its master."""

    view: JobView
    measured: Measurement


@dataclass(frozen=True)
class Moment:
    """Everything that is shown at one moment; `seconds` is the time since the start of the demo."""

    seconds: float
    tasks: dict[str, tuple[TaskState, ...]]
    jobs: tuple[JobState, ...]
    note: str = ""


class Display(Protocol):
    """Shows the progress while its context lasts."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def show(self, moment: Moment) -> None:
        """Show the current state."""


def choose_display(console: Console) -> Display:
    """The display that suits the console."""
    return LiveDisplay(console) if console.is_terminal else LineDisplay(console)


class LiveDisplay:
    """A table that is redrawn."""

    def __init__(self, console: Console) -> None:
        self._live = Live(console=console, refresh_per_second=4, transient=True)

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._live.__exit__(kind, error, trace)

    def show(self, moment: Moment) -> None:
        """Redraw the table."""
        head = Text(f"{moment.seconds:4.0f} s  {moment.note}", style="bold")
        self._live.update(
            Group(head, *(_task_table(*item) for item in moment.tasks.items()), _job_table(moment.jobs))
        )


@dataclass
class LineDisplay:
    """Prints a line for each change, for logs."""

    console: Console
    _printed_states: dict[str, str] = field(default_factory=dict)
    _printed_at: dict[str, float] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Do nothing: all lines have been printed."""

    def show(self, moment: Moment) -> None:
        """Print what has changed since the last call."""
        if moment.note:
            self._print_change(moment, "note", moment.note, moment.note)
        for dag_id, tasks in moment.tasks.items():
            for task in tasks:
                self._print_change(
                    moment, f"{dag_id}.{task.task_id}", task.state, f"{dag_id}.{task.task_id}: {task.state}"
                )
        for job in moment.jobs:
            view = job.view
            key, state = f"{view.kind} {view.name}", f"{view.phase}  {_replicas(view)}"
            if not view.phase.final and moment.seconds - self._printed_at.get(key, 0.0) >= LINE_SECONDS:
                self._printed_states.pop(key, None)
            figures = [f"{name} {text}" for name, text in _figures(job).items() if text]
            self._print_change(moment, key, state, "  ".join([f"{key}: {state}", *figures]))

    def _print_change(self, moment: Moment, key: str, state: str, line: str) -> None:
        if self._printed_states.get(key) == state:
            return
        self._printed_states[key] = state
        self._printed_at[key] = moment.seconds
        self.console.print(f"{moment.seconds:6.1f} s  {line}", highlight=False, soft_wrap=True)


def _task_table(dag_id: str, tasks: tuple[TaskState, ...]) -> Table:
    table = Table(
        title=f"DAG {dag_id}", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0)
    )
    for name in ("task", "state", "seconds"):
        table.add_column(
            name, justify="right" if name == "seconds" else "left", style="dim" if name == "seconds" else ""
        )
    for task in tasks:
        seconds = f"{task.seconds:.1f}" if task.seconds else ""
        table.add_row(task.task_id, Text(task.state, style=STATE_STYLES.get(task.state, "dim")), seconds)
    return table


def _job_table(jobs: tuple[JobState, ...]) -> Table:
    table = Table(title="Jobs", title_justify="left", title_style="bold", box=None, padding=(0, 2, 0, 0))
    for name in ("name", "phase", "ready", *FIGURES):
        table.add_column(name, justify="right" if name in FIGURES[:-1] else "left")
    for job in jobs:
        view = job.view
        table.add_row(view.name, str(view.phase), _replicas(view), *_figures(job).values())
    return table


def _replicas(job: JobView) -> str:
    roles = ((role, n) for role, n in sorted(job.replicas.items()) if n.desired or n.ready)
    return " ".join(f"{role} {n.ready}/{n.desired}" for role, n in roles) or "no nodes"


def _figures(job: JobState) -> dict[str, str]:
    """The texts of `FIGURES`; "" where a job has none."""
    figures = job.measured.figures
    if figures is None:
        return dict.fromkeys(FIGURES, "")
    left = None if job.view.phase.final else figures.seconds_left
    texts = (
        str(figures.step),
        f"{figures.speed:.1f}",
        "" if figures.loss is None else f"{figures.loss:.3g}",
        "" if left is None else format_seconds(left),
        f"{figures.goodput:.0%}",
        "" if figures.memory is None else f"{figures.memory:.0f} MiB",
        _origin(job),
    )
    return dict(zip(FIGURES, texts, strict=True))


def _origin(job: JobState) -> str:
    if job.view.phase.final:
        return "last"
    return f"{format_seconds(job.measured.age)} old" if job.measured.obstacle else "live"
