"""Draws pictures of runs. This needs matplotlib (extra ``controller``)."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator.cluster import SimulationRun
from edl_workflows.simulator.metrics import completion_times, percentile
from edl_workflows.simulator.paddle import PaddleResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOURS = ("#2a6fb5", "#b5532a", "#6b8f3c", "#7d5ba6", "#8a8a8a")
"""Colours of runs, in their order."""
_WAITS = "#d8d8d8"
_MOST_BARS = 400
"""Most bars in a picture; more would be thinner than a pixel."""
_NAMED_BARS = 40
_UNITS = ((3 * 24 * 3600.0, 24 * 3600.0, "days"), (3 * 3600.0, 3600.0, "hours"), (0.0, 60.0, "minutes"))
"""(Least duration in seconds, the unit in seconds, its name)."""


def draw_utilisation(runs: Mapping[str, SimulationRun], title: str, path: Path) -> None:
    """Draw the GPUs that jobs hold over time, and the number of waiting jobs, with a row for each run.

    Args:
        runs: label → a run of the same workload.
        title: the picture's title.
        path: the image file; its suffix gives the format.

    Raises:
        InvalidError: the file can't be written.
    """
    figure = _figure(11, 1.2 + 1.7 * len(runs))
    grid = figure.subplots(len(runs), 2, sharex=True, sharey="col", squeeze=False, width_ratios=[3, 2])
    seconds, unit = _unit(max((run.samples[-1].time for run in runs.values() if run.samples), default=0.0))
    for (held, waiting), colour, (name, run) in zip(grid, _colours(runs), runs.items(), strict=True):
        times = [sample.time / seconds for sample in run.samples]
        area: dict[str, Any] = {"step": "post", "lw": 0, "color": colour}
        held.fill_between(times, [sample.used for sample in run.samples], alpha=0.75, **area)
        held.step(times, [sample.gpus for sample in run.samples], where="post", color="#333333", lw=1, ls=":")
        waiting.fill_between(times, [sample.waiting for sample in run.samples], alpha=0.75, **area)
        held.set_title(name, loc="left", fontsize="medium", color=colour)
        held.set(ylabel="GPUs", ylim=(0, None))
        waiting.set(ylabel="jobs", ylim=(0, None), xlim=(0, None))
        _integers(held, waiting)
    grid[0][0].set_title("held by jobs (dotted: there are)", loc="right", fontsize="small")
    grid[0][1].set_title("waiting without a GPU", loc="right", fontsize="small")
    for axes in grid[-1]:
        axes.set_xlabel(unit)
    figure.suptitle(title)
    _save(figure, path)


def draw_completion(runs: Mapping[str, Sequence[SimulationRun]], title: str, path: Path) -> None:
    """Draw the distribution of job completion times, with the 50th and 99th percentile.

    Args:
        runs: label → runs whose jobs are counted together.
        title: the title.
        path: the image's file.

    Raises:
        InvalidError: no run has a complete job, or the file can't be written.
    """
    times = {
        name: sorted(time for run in group for time in completion_times(run)) for name, group in runs.items()
    }
    if not any(times.values()):
        raise InvalidError("nothing to draw: no run has a complete job; simulate more nodes or smaller jobs")
    figure = _figure(8, 5)
    axes = figure.subplots()
    for colour, (name, durations) in zip(_colours(times), times.items(), strict=True):
        jobs = sum(len(run.jobs) for run in runs[name])
        parts = [100 * (number + 1) / jobs for number in range(len(durations))]
        axes.step(
            [*durations[:1], *durations],
            [0, *parts] if durations else [],
            where="post",
            color=colour,
            lw=1.6,
            label=name,
        )
        marks = [
            (percentile(durations, part), part * len(durations) / jobs) for part in (50, 99) if durations
        ]
        axes.plot([x for x, _ in marks], [y for _, y in marks], "o", color=colour, ms=5)
    axes.set(xscale="log", xlabel="job completion time", ylabel="% of the jobs", ylim=(0, 102))
    _time_ticks(axes)
    axes.grid(alpha=0.25)
    _legend(axes, len(runs))
    figure.suptitle(f"{title}: completion times (dots: p50 and p99)")
    _save(figure, path)


def draw_jobs(run: SimulationRun, title: str, path: Path) -> None:
    """Draw each job as a bar from its submission to its end: grey while it waits, else coloured by its GPUs.

    Args:
        run: the run; its first 400 jobs are drawn.
        title: the title.
        path: the image's file.

    Raises:
        InvalidError: the file can't be written.
    """
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import LogNorm

    jobs = list(run.jobs)[:_MOST_BARS]
    figure = _figure(10, min(max(3.0, 0.18 * len(jobs) + 1.5), 11))
    axes = figure.subplots()
    ends = [holding.end for holding in run.holdings] + [sample.time for sample in run.samples]
    end = max(ends, default=1.0)
    seconds, unit = _unit(end)
    positions = {job.name: position for position, job in enumerate(jobs)}
    most = max([2, *(holding.gpus for holding in run.holdings)])
    colours = ScalarMappable(LogNorm(1, most), cmap="viridis_r")
    bars: dict[str, list[tuple[float, float, int]]] = {name: [] for name in positions}
    for holding in run.holdings:
        if holding.job in bars:
            width = (holding.end - holding.start) / seconds
            bars[holding.job].append((holding.start / seconds, width, holding.gpus))
    for job in jobs:
        band, begun = (positions[job.name] - 0.4, 0.8), job.submitted / seconds
        last = (end if job.finished is None else job.finished) / seconds
        axes.broken_barh([(begun, last - begun)], band, color=_WAITS)
        spans = [(start, width) for start, width, _ in bars[job.name]]
        axes.broken_barh(spans, band, color=colours.to_rgba(np.array([gpus for *_, gpus in bars[job.name]])))
    axes.set(xlabel=unit, xlim=(0, end / seconds), ylim=(max(len(jobs), 1) - 0.5, -0.5))
    if len(jobs) <= _NAMED_BARS:
        axes.set_yticks(range(len(jobs)), list(positions), fontsize="small")
    else:
        axes.set_ylabel("jobs in the order of their submission")
    bar = figure.colorbar(colours, ax=axes, label="GPUs (grey: waits)", fraction=0.04, pad=0.01)
    powers = [2**power for power in range(most.bit_length())]
    bar.set_ticks(powers, labels=[str(power) for power in powers])
    bar.minorticks_off()
    some = "" if len(jobs) == len(run.jobs) else f", the first {len(jobs)} of {len(run.jobs)}"
    figure.suptitle(f"{title}: jobs{some}")
    _save(figure, path)


def draw_paddle(outcomes: Mapping[str, PaddleResult], title: str, path: Path) -> None:
    """Draw the use of the cluster's cores and the number of running jobs, second by second.

    Args:
        outcomes: label → measurements.
        title: the title.
        path: the image's file.

    Raises:
        InvalidError: the file can't be written.
    """
    figure = _figure(9, 6)
    cpu, running = figure.subplots(2, 1, sharex=True, height_ratios=[3, 2])
    for colour, (name, outcome) in zip(_colours(outcomes), outcomes.items(), strict=True):
        cpu.plot(
            [100 * part for part in outcome.cpu_each],
            color=colour,
            lw=1.6,
            label=f"{name}, mean {outcome.cpu:.1%}",
        )
        label = f"{name}, mean wait {outcome.pending:.0f} s"
        running.step(
            range(len(outcome.running_each)),
            outcome.running_each,
            where="post",
            color=colour,
            lw=1.6,
            label=label,
        )
        service = [100 * part for part in outcome.service_each]
    if any(service):
        cpu.fill_between(range(len(service)), service, color="#9a9a9a", alpha=0.35, lw=0, label="of it Nginx")
    cpu.set(ylabel="% of the cores requested", ylim=(0, 105))
    running.set(xlabel="seconds", ylabel="jobs that have started", ylim=(0, None))
    running.set_xlim(0, len(service))
    _integers(running)
    cpu.legend(loc="lower right", frameon=False, fontsize="small")
    running.legend(loc="lower right", frameon=False, fontsize="small")
    figure.suptitle(title)
    _save(figure, path)


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    return Figure(figsize=(width, height), layout="constrained")


def _save(figure: "Figure", path: Path) -> None:
    for axes in figure.axes:
        axes.spines[["top", "right"]].set_visible(False)
    try:
        figure.savefig(path, dpi=120)
    except (OSError, ValueError) as error:
        raise InvalidError(f"can't write {path}: {error}; give a folder that you may write to") from error


def _unit(seconds: float) -> tuple[float, str]:
    return next((unit, name) for least, unit, name in _UNITS if seconds >= least)


def _colours(runs: Mapping[str, Any]) -> list[str]:
    return [COLOURS[number % len(COLOURS)] for number in range(len(runs))]


def _legend(axes: "Axes", runs: int) -> None:
    axes.legend(
        loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=min(runs, 5), borderaxespad=0.2
    )


def _integers(*several: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    for axes in several:
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def _time_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import NullFormatter

    ticks = {60: "1 min", 300: "5 min", 900: "15 min", 3600: "1 h", 4 * 3600: "4 h", 12 * 3600: "12 h"}
    ticks |= {24 * 3600 * days: f"{days} d" for days in (1, 3, 10, 30)} | {10: "10 s", 1: "1 s"}
    low, high = axes.get_xlim()
    shown = {seconds: name for seconds, name in ticks.items() if low <= seconds <= high}
    if len(shown) > 1:
        axes.set_xticks(list(shown), list(shown.values()))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.set_xlim(low, high)
