"""A training as a table that changes while it trains: on a terminal, in a notebook, or as lines elsewhere."""

import html
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol, Self

from edl_workflows.core.jobs.view import JobView, Progress
from edl_workflows.core.protocol.metrics import describe_metrics
from edl_workflows.core.protocol.reported_text import escape_controls
from edl_workflows.pipelines.waiting.job_log import (
    describe_changes,
    describe_speed,
    describe_step,
    describe_time_left,
)
from edl_workflows.pipelines.waiting.observed import ObservedObject

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

KEPT_LINES = 8
"""Lines about changes below the table."""
STYLES = {"Succeeded": "green", "Failed": "bold red", "warnings": "yellow"}
"""Of rich: of a final phase, and of the row of warnings."""
COLOURS = {"Succeeded": "#1a7f37", "Failed": "#cf222e", "warnings": "#9a6700"}
"""The same in a notebook; legible on white and on black."""


def describe(job: JobView) -> dict[str, str]:
    """What people want to know about a job, by name: what is not known is left out."""
    progress, checkpoint = job.progress, job.checkpoint
    replicas = [] if job.phase.final else sorted(job.replicas.items())  # a job that has ended needs no nodes
    nodes = ", ".join(f"{role} {count.ready}/{count.desired}" for role, count in replicas)
    speed = (describe_speed(progress), describe_time_left(job))
    rows = {
        "job": f"{job.namespace}/{job.name}",
        "phase": ": ".join(part for part in (str(job.phase), job.reason, job.message) if part),
        "nodes": nodes,
        "step": describe_step(progress),
        "speed": ", ".join(part for part in speed if part),
        "metrics": describe_metrics(progress.metrics),
        "checkpoint": f"step {checkpoint.step:,}: {checkpoint.uri}" if checkpoint else "",
        "warnings": "; ".join(job.warnings),
    }
    return {name: value for name, value in rows.items() if value}


def share_done(progress: Progress) -> float | None:
    """The share of the data that is trained, from 0 to 1; None if the data has no known end."""
    return min(1.0, progress.records / progress.records_total) if progress.records_total else None


def render_html(rows: Mapping[str, str], share: float | None = None, lines: Iterable[str] = ()) -> str:
    """The table for a notebook. All texts are escaped: programs and controllers may report anything.

    Args:
        rows: from `describe`.
        share: from `share_done`, for a bar.
        lines: shown below the table.
    """
    cells = [_render_row(name, value) for name, value in rows.items()]
    bar = (
        f'<progress value="{share:.4f}" max="1" style="width: 100%"></progress>' if share is not None else ""
    )
    log = "".join(f"{html.escape(line)}\n" for line in lines)
    below = (
        f'<pre style="text-align: left; white-space: pre-wrap; word-break: normal">{log}</pre>' if log else ""
    )
    return f"<div><table style='color: inherit'>{''.join(cells)}</table>{bar}{below}</div>"


def _render_row(name: str, value: str) -> str:
    left, colour = "text-align: left", COLOURS.get(_style_key(name, value))
    style = f"{left}; color: {colour}" if colour else left
    head, cell = html.escape(name), html.escape(value)
    return f'<tr><th style="{left}">{head}</th><td style="{style}">{cell}</td></tr>'


def _style_key(name: str, value: str) -> str:
    return value.partition(":")[0] if name == "phase" else name


class Screen(Protocol):
    """Where a live view is shown."""

    def draw(self, rows: Mapping[str, str], share: float | None, lines: Iterable[str]) -> None:
        """Show the newest state, in place of the one before."""

    def add(self, line: str) -> None:
        """A line about a change, for a screen that shows only lines."""

    def close(self) -> None:
        """The view has ended; what it showed last stays."""


class Notebook:
    """The output of a notebook's cell.

    Args:
        display: IPython's function.
    """

    def __init__(self, display: Callable[..., Any]) -> None:
        self._display = display
        self._handle: Any = None

    def draw(self, rows: Mapping[str, str], share: float | None, lines: Iterable[str]) -> None:
        """Replace the table in the cell's output."""
        shown = _Html(render_html(rows, share, lines))
        if self._handle is None:
            self._handle = self._display(shown, display_id=True)
        else:
            self._handle.update(shown)

    def add(self, line: str) -> None:
        """Nothing: the lines are below the table."""

    def close(self) -> None:
        """Nothing: the cell keeps its output."""


class _Html:
    def __init__(self, text: str) -> None:
        self._text = text

    def _repr_html_(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "the state of a training, as HTML"


class Terminal:
    """A terminal, whose last lines are rewritten.

    Args:
        console: rich's.
    """

    def __init__(self, console: "Console") -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False, vertical_overflow="visible")
        self._live.start()

    def draw(self, rows: Mapping[str, str], share: float | None, lines: Iterable[str]) -> None:
        """Rewrite the table."""
        self._live.update(render_terminal(rows, share, lines), refresh=True)

    def add(self, line: str) -> None:
        """Nothing: the lines are below the table."""

    def close(self) -> None:
        """Leave the table where it is."""
        self._live.stop()


def render_terminal(rows: Mapping[str, str], share: float | None, lines: Iterable[str]) -> "RenderableType":
    """The table for a terminal; arguments as of `render_html`."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    for name, value in rows.items():
        text = escape_controls(value, keep="")
        table.add_row(Text(name, style="bold"), Text(text, style=STYLES.get(_style_key(name, value), "")))
    if share is not None:
        table.add_row("", ProgressBar(total=1.0, completed=share, width=60))
    return Group(table, *(Text(escape_controls(line, keep=""), style="dim") for line in lines))


class Lines:
    """Output that is no terminal: a line for each change.

    Args:
        write: prints one line.
    """

    def __init__(self, write: Callable[[str], object]) -> None:
        self._write = write

    def draw(self, rows: Mapping[str, str], share: float | None, lines: Iterable[str]) -> None:
        """Nothing."""

    def add(self, line: str) -> None:
        """Print the line."""
        self._write(line)

    def close(self) -> None:
        """Nothing."""


def open_screen() -> Screen:
    """The notebook's cell if this process is a notebook's kernel, else the terminal, else lines on stdout."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if ipython is not None and hasattr(shell, "kernel"):
        return Notebook(ipython.display.display)
    from rich.console import Console

    console = Console(highlight=False)
    if console.is_terminal:
        return Terminal(console)
    return Lines(lambda line: print(escape_controls(line, keep=""), flush=True))  # noqa: T201 - its output


class LiveView:
    """Shows a training while it is waited for.

    Args:
        screen: where.
        clock: returns the time that stands before a line.
    """

    def __init__(self, screen: Screen, clock: Callable[[], datetime] = datetime.now) -> None:
        self._screen = screen
        self._clock = clock
        self._seen: JobView | None = None
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._screen.close()

    def show(self, seen: ObservedObject) -> None:
        """Show a state of the job."""
        if not isinstance(seen, JobView):
            return
        for line in describe_changes(self._seen, seen):
            stamped = f"{self._clock():%H:%M:%S} {line}"
            self._lines.append(stamped)
            self._screen.add(stamped)
        self._seen = seen
        self._screen.draw(describe(seen), share_done(seen.progress), list(self._lines))
