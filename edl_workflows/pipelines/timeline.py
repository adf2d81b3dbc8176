"""What happened to one job over time, as values and as a picture: replicas, speed, and the steps of its
plans.

The samples come from a program that watches the job, or from the history that the job's master keeps. The
spans come from the ScalePlans' status. Drawing needs matplotlib (extra ``controller``).
"""

import io
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause, time_by_cause
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.view import JobView
from edl_workflows.core.protocol.metrics import MAX_CHARTED, choose_charted, sort_names

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ROLE_COLOURS = {"ps": "#b5532a", "worker": "#2a6fb5", "chief": "#163f69", "evaluator": "#6b8f3c"}
PHASE_COLOURS = {
    ScalePlanPhase.CHECKPOINTING: "#c9b458",
    ScalePlanPhase.CHECKPOINTED: "#c9b458",
    ScalePlanPhase.MIGRATING: "#8fb1d9",
    ScalePlanPhase.RESTARTING: "#c0392b",
    ScalePlanPhase.VERIFYING: "#7fb77e",
    ScalePlanPhase.SCALING: "#b3a2c8",
}
"""Red marks the phase in which training stalls."""
RESTART_COLOURS = ("#8e2f23", "#7d5ba6", "#1f7a7a", "#b8860b", "#444444")


LARGEST_DRAWN = 1e100
"""Largest value of a metric that is drawn: beyond it, the axis's margins and ticks would not be finite."""
SPEED_SECONDS = 8.0
"""Seconds over which the drawn speed is averaged."""


@dataclass(frozen=True)
class TimelineSample:
    """The job at one moment.

    Attributes:
        time: Unix seconds.
        step: global step.  speed: steps per second.
        replicas: ready nodes by role.
        records: number of acknowledged records.
        metrics: the values that the program reported, by name.
    """

    time: float
    phase: str
    step: int
    speed: float
    replicas: dict[str, int]
    records: int = 0
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class PhaseSpan:
    """A step of a plan, from `start` to `end` in Unix seconds."""

    plan: str
    phase: ScalePlanPhase
    start: float
    end: float


@dataclass(frozen=True)
class TimelineRestart:
    """A restart of a node or of all training processes, or the end of a node that is not replaced, at a time
    in Unix seconds."""

    time: float
    subject: str
    cause: str
    replaced: bool = True


@dataclass(frozen=True)
class Timeline:
    """The data of a job's picture. The samples are in chronological order.

    Attributes:
        restarts: the most recent ones, in chronological order.
        goodput: share of the job's time spent on steps that were not lost; None if unknown.
        seconds: the job's time by cause; empty if unknown.
    """

    job: str
    samples: tuple[TimelineSample, ...]
    spans: tuple[PhaseSpan, ...]
    restarts: tuple[TimelineRestart, ...] = ()
    goodput: float | None = None
    seconds: dict[TimeCause, int] = field(default_factory=dict)

    @property
    def metric_names(self) -> list[str]:
        """The metrics with a curve: those of any sample, the loss first, at most `MAX_CHARTED`."""
        return sort_names({name for sample in self.samples for name in sample.metrics})[:MAX_CHARTED]

    def to_json(self) -> dict[str, Any]:
        """The timeline as values that JSON can represent."""
        return asdict(self)

    def __repr__(self) -> str:
        return f"Timeline(job={self.job!r}, {len(self.samples)} samples)"

    def _repr_png_(self) -> bytes | None:
        """The picture, for notebooks. None without samples."""
        if not self.samples:
            return None
        picture = io.BytesIO()
        _draw_figure(self).savefig(picture, format="png", dpi=80)
        return picture.getvalue()


def sample_job(view: JobView, now: float) -> TimelineSample:
    """The job's view as a sample."""
    ready = {role: counts.ready for role, counts in view.replicas.items()}
    progress = view.progress
    metrics = choose_charted(progress.metrics)
    return TimelineSample(
        now, str(view.phase), progress.step, progress.speed, ready, progress.records, metrics
    )


def of_job(job: ElasticJob, plans: Iterable[ScalePlan], now: float) -> Timeline:
    """The timeline in the status of a job, whether it has ended or not."""
    phase = str(job.status.phase or "")
    history, restarts_status = job.status.history, job.status.restarts
    points = [
        TimelineSample(p.time.timestamp(), phase, p.step, 0.0, p.nodes, p.records, p.metrics) for p in history
    ]
    samples = tuple(replace(point, speed=speed_at(points, index)) for index, point in enumerate(points))
    restarts = tuple(
        TimelineRestart(r.time.timestamp(), r.subject, r.cause, r.replaced)
        for r in (restarts_status.recent if restarts_status else ())
    )
    goodput = job.status.goodput
    until = job.status.completion_time or datetime.fromtimestamp(now, UTC)
    seconds = time_by_cause(goodput, until) if goodput else {}
    return Timeline(
        job.key,
        samples,
        plan_spans(plans, now),
        restarts,
        goodput.ratio if goodput else None,
        seconds=seconds,
    )


def speed_at(samples: Sequence[TimelineSample], index: int) -> float:
    """Steps per second over the last `SPEED_SECONDS` before a sample, or since the previous sample if that is
    longer ago. After a return to an earlier checkpoint the speed is 0.
    """
    now = samples[index]
    earlier = samples[:index]
    since = next((s for s in reversed(earlier) if s.time <= now.time - SPEED_SECONDS), samples[0])
    elapsed = now.time - since.time
    return max(0, now.step - since.step) / elapsed if elapsed else 0.0


def plan_spans(plans: Iterable[ScalePlan], now: float) -> tuple[PhaseSpan, ...]:
    """The recorded steps of `plans`; a step still under way ends at `now`. Auto plans are left out, because
    nobody requested them: the master creates them to carry out a manual plan or a replacement.
    """
    spans = [
        PhaseSpan(
            plan.metadata.name, step.phase, _seconds(step.start_time), _seconds(step.finish_time) or now
        )
        for plan in plans
        if not plan.auto
        for step in plan.status.steps
        if step.phase in PHASE_COLOURS
    ]
    return tuple(sorted(spans, key=lambda span: span.start))


def _seconds(time: datetime | None) -> float:
    return time.timestamp() if time else 0.0


def draw_timeline(timeline: Timeline, path: Path) -> None:
    """Draw a timeline into a PNG or SVG file, depending on the path's ending.

    The panels share one time axis: replicas, speed with restarts, each metric, the number of records
    processed, and, if there were ScalePlans, the phases of each.

    Raises:
        ValueError: there is no sample to draw.
    """
    if not timeline.samples:
        raise ValueError(f"timeline of {timeline.job}: no samples; was the job watched while it ran?")
    _draw_figure(timeline).savefig(path, dpi=120)


def _draw_figure(timeline: Timeline) -> "Figure":
    from matplotlib.figure import Figure  # without pyplot: no global state, no display

    origin = timeline.samples[0].time
    names = timeline.metric_names
    ratios = [2, 2, *(1.2 for _ in names), 1, *([1.2] if timeline.spans else [])]
    figure = Figure(figsize=(10, 1.2 * sum(ratios)), layout="constrained")
    panels = figure.subplots(len(ratios), 1, sharex=True, height_ratios=ratios)
    replicas, speed = panels[:2]
    measured, data = panels[2 : 2 + len(names)], panels[2 + len(names)]
    _draw_replicas(replicas, timeline.samples, origin)
    _draw_speed(speed, timeline.samples, origin)
    _draw_restarts(speed, timeline.restarts, origin)
    for axes, name in zip(measured, names, strict=True):
        _draw_metric(axes, name, timeline.samples, origin)
        for restart in timeline.restarts:
            axes.axvline(restart.time - origin, color="#999999", lw=1, ls="--")
    _draw_data(data, timeline.samples, origin)
    if timeline.spans:
        _draw_plans(panels[-1], timeline.spans, origin, timeline.job.split("/")[-1])
    for axes in (replicas, speed, *measured, data):
        for span in timeline.spans:
            if span.phase is ScalePlanPhase.RESTARTING:
                axes.axvspan(span.start - origin, span.end - origin, color="#c0392b", alpha=0.15, lw=0)
    panels[-1].set_xlim(0, max(timeline.samples[-1].time - origin, 1.0))
    panels[-1].set_xlabel("seconds")
    figure.align_ylabels((replicas, speed, data))
    newest = timeline.samples[-1]
    goodput = "" if timeline.goodput is None else f", goodput {timeline.goodput:.0%}"
    figure.suptitle(f"{timeline.job}: {newest.phase} at step {newest.step}{goodput}")
    return figure


def _draw_replicas(axes: "Axes", samples: Sequence[TimelineSample], origin: float) -> None:
    from matplotlib.ticker import MaxNLocator

    times = [s.time - origin for s in samples]
    for role in sorted({role for s in samples for role in s.replicas}):
        counts = [s.replicas.get(role, 0) for s in samples]
        axes.step(times, counts, where="post", label=role, color=ROLE_COLOURS.get(role), lw=2)
    axes.set_ylabel("ready nodes")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_ylim(bottom=0)
    axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=4)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_speed(axes: "Axes", samples: Sequence[TimelineSample], origin: float) -> None:
    points = speed_curve(samples)
    axes.plot([time - origin for time, _ in points], [speed for _, speed in points], color="#333333", lw=1.5)
    axes.set_ylabel("steps / s")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_restarts(axes: "Axes", restarts: Sequence[TimelineRestart], origin: float) -> None:
    """Draw a line at each restart, in the color of its cause."""
    causes = list(dict.fromkeys(restart.cause for restart in restarts))
    for restart in restarts:
        colour = RESTART_COLOURS[causes.index(restart.cause) % len(RESTART_COLOURS)]
        axes.axvline(restart.time - origin, color=colour, lw=1, ls="--")
    for index, cause in enumerate(causes):
        count = sum(restart.cause == cause for restart in restarts)
        colour = RESTART_COLOURS[index % len(RESTART_COLOURS)]
        axes.plot([], [], color=colour, lw=1, ls="--", label=f"{cause} ({count})")
    if causes:
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), frameon=False, ncols=6, fontsize="small")


def _draw_metric(axes: "Axes", name: str, samples: Sequence[TimelineSample], origin: float) -> None:
    """Draw a metric on an axis of its own, since losses, accuracies and norms have different scales. The axis
    need not begin at 0. Values that are too large to draw become gaps."""
    points = [(s.time - origin, s.metrics[name]) for s in samples if name in s.metrics]
    drawn = [(time, value if abs(value) <= LARGEST_DRAWN else math.nan) for time, value in points]
    axes.plot(*zip(*drawn, strict=True), color="#7d5ba6", lw=1.5, marker="o", ms=2)
    axes.set_title(f"{name} {points[-1][1]:.4g}", loc="left", fontsize="small", parse_math=False)
    axes.margins(y=0.15)
    axes.spines[["top", "right"]].set_visible(False)


def _draw_data(axes: "Axes", samples: Sequence[TimelineSample], origin: float) -> None:
    axes.plot([s.time - origin for s in samples], [s.records for s in samples], color="#6b8f3c", lw=1.5)
    axes.set_ylabel("records")
    axes.set_ylim(bottom=0)
    axes.spines[["top", "right"]].set_visible(False)


def speed_curve(samples: Sequence[TimelineSample]) -> list[tuple[float, float]]:
    """(time, steps per second over the `SPEED_SECONDS` before) for each sample whose step differs from the
    previous sample's.

    The reported speed is an average over minutes, and a status keeps its step until the next status is
    written, so neither shows a change when it happens. After a return to an earlier checkpoint the speed is
    0.
    """
    news = [
        s
        for before, s in zip((None, *samples), samples, strict=False)
        if before is None or s.step != before.step
    ]
    return [(sample.time, speed_at(news, index)) for index, sample in enumerate(news)]


def _draw_plans(axes: "Axes", all_spans: Sequence[PhaseSpan], origin: float, job: str) -> None:
    names = list(dict.fromkeys(span.plan for span in all_spans))
    for span in all_spans:
        # A very short step would be thinner than a pixel.
        width = max(span.end - span.start, 0.3)
        axes.barh(
            names.index(span.plan),
            width,
            left=span.start - origin,
            color=PHASE_COLOURS[span.phase],
            height=0.6,
        )
    axes.set_yticks(range(len(names)), [name.removeprefix(f"{job}-") for name in names])
    axes.invert_yaxis()
    for phase in dict.fromkeys(
        span.phase for span in all_spans if span.phase is not ScalePlanPhase.CHECKPOINTED
    ):
        axes.bar(0, 0, color=PHASE_COLOURS[phase], label=str(phase))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.45), frameon=False, ncols=5, fontsize="small")
    axes.spines[["top", "right"]].set_visible(False)
