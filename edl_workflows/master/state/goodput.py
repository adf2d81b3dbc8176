"""Goodput: the share of a job's time spent on steps that last. Pure.

Useful time is the time between the first and the newest step of each cluster version, without the pauses in
it. Scheduling, start-up, switches between versions, lost workers and slow saves are therefore not useful. A
version that begins at an earlier step subtracts the time spent since that step, because those steps are made
again.
"""

import math
from dataclasses import dataclass, replace

MAX_POINTS = 720
"""Remembered moments, from which the useful time at a checkpoint's step is found."""
MIN_INTERVAL = 1.0
"""Least seconds between two remembered moments."""
PAUSE_STEPS = 10.0
"""A step that takes longer than this many mean steps of its version, and than `PAUSE_SECONDS`, is a pause."""
PAUSE_SECONDS = 5.0


@dataclass(frozen=True)
class Goodput:
    """How the job's time was spent; durations in seconds, times in Unix seconds.

    Attributes:
        began: when the job began, moved by the time it was suspended.
        ended: when it ended; 0 while it runs.
        suspended: since when it is suspended; 0 while it is not.
        useful: time spent on steps that last.
        redone: time spent on steps that were lost.
        version, step, at: the newest counted step and its time; `at` is 0 before the version's first step.
        first, before: the version's first step, and the useful time until then.
        kept: useful time up to the steps of the newest checkpoints, by step.
    """

    began: float = 0.0
    ended: float = 0.0
    suspended: float = 0.0
    useful: float = 0.0
    redone: float = 0.0
    version: int = 0
    step: int = 0
    at: float = 0.0
    first: int = 0
    before: float = 0.0
    kept: tuple[tuple[int, float], ...] = ()

    def elapsed(self, now: float) -> float:
        """Age of the job, without the time for which it was suspended."""
        return max(0.0, (self.ended or self.suspended or now) - self.began) if self.began else 0.0

    def ratio(self, now: float) -> float:
        """Useful over elapsed time, from 0 to 1."""
        elapsed = self.elapsed(now)
        return min(1.0, self.useful / elapsed) if elapsed else 0.0

    def shift_times(self, seconds: float) -> "Goodput":
        """Excludes a jump of the clock, or a pause of the master, from useful and elapsed time."""
        moved = {name: at + seconds for name in ("began", "suspended", "at") if (at := getattr(self, name))}
        return replace(self, **moved)

    @property
    def longest_step(self) -> float:
        """Seconds between two counted steps beyond which training paused."""
        steps = self.step - self.first
        return (
            max(PAUSE_SECONDS, PAUSE_STEPS * (self.useful - self.before) / steps) if steps > 0 else math.inf
        )


@dataclass(frozen=True)
class TrainingMoment:
    """The job at one moment.

    Attributes:
        version: the active one; 0 for none.
        step: global step; the first one while the version has made none.
        stepped: whether the version has made a step.
        saved: steps of the checkpoints from which the job could continue.
        suspended: whether the job is suspended.
        over: whether it has ended.
    """

    version: int
    step: int
    stepped: bool
    saved: tuple[int, ...] = ()
    suspended: bool = False
    over: bool = False


class GoodputMeter:
    """Measures a job's useful time.

    It remembers moments between two checkpoints, which are not stored, so a restarted master is less exact at
    its next rollback.
    """

    def __init__(self) -> None:
        self._points: list[tuple[int, float]] = []  # step, and the useful time until then

    def count(self, g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
        """Counts the time up to this moment. Times must not fall; `Goodput.shift_times` is called when the
        clock was set.
        """
        if g.ended:
            return g
        g = self._keep(g if g.began else replace(g, began=now), seen.saved)
        if seen.version != g.version:
            g = self._switch(g, seen)
        g = _suspend(g, seen, now)
        if not seen.suspended:
            g = self._add_step(g, seen, now)
        return replace(g, ended=now) if seen.over else g

    def _keep(self, g: Goodput, saved: tuple[int, ...]) -> Goodput:
        known = dict(g.kept)
        if set(saved) == set(known):
            return g
        kept = ((step, known.get(step, self._useful_at(g, step))) for step in sorted(set(saved)))
        return replace(g, kept=tuple(kept))

    def _useful_at(self, g: Goodput, step: int) -> float:
        """Useful time at this step. A checkpoint is complete some time after its step."""
        return next((useful for known, useful in self._points if known >= step), g.useful)

    def _switch(self, g: Goodput, seen: TrainingMoment) -> Goodput:
        lasting = max((useful for step, useful in g.kept if step <= seen.step), default=0.0)
        lost = max(0.0, g.useful - lasting) if seen.step < g.step else 0.0
        self._points = [(step, useful) for step, useful in self._points if step <= seen.step]
        useful, redone = g.useful - lost, g.redone + lost
        return replace(g, version=seen.version, step=seen.step, at=0.0, useful=useful, redone=redone)

    def _add_step(self, g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
        if not seen.stepped or (g.at and seen.step <= g.step):
            return g
        if not g.at:
            return replace(g, step=seen.step, at=now, first=seen.step, before=g.useful)
        since = max(0.0, now - g.at)
        useful = g.useful + (since if since <= g.longest_step else 0.0)
        if not self._points or useful - self._points[-1][1] >= MIN_INTERVAL:
            self._points = [*self._points[-MAX_POINTS:], (seen.step, useful)]
        return replace(g, step=seen.step, at=now, useful=useful)


def _suspend(g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
    if seen.suspended and not g.suspended:
        return replace(g, suspended=now, at=0.0)
    if g.suspended and not seen.suspended:
        return replace(g, suspended=0.0, began=g.began + now - g.suspended)
    return g
