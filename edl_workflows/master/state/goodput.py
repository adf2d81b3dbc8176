"""Goodput: the share of a job's time spent on steps that last. Pure.

Useful time is the time between the first and the newest step of each cluster version, without the pauses in
it. Scheduling, start-up, switches between versions, lost workers and slow saves are therefore not useful. A
version that begins at an earlier step subtracts the time spent since that step, because those steps are made
again.
"""

import math
from dataclasses import dataclass, field, replace

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


@dataclass
class GoodputMeter:
    """Measures a job's useful time.

    The remembered moments are not stored, so a restarted master is less exact at its next rollback.
    """

    goodput: Goodput = field(default_factory=Goodput)
    _points: list[tuple[int, float]] = field(default_factory=list)

    def look(self, seen: TrainingMoment, now: float) -> None:
        """Counts the time up to this moment. Times must not fall; `shift_times` is called when the clock was
        set.
        """
        if self.goodput.ended:
            return
        if not self.goodput.began:
            self.goodput = replace(self.goodput, began=now)
        self._keep(seen.saved)
        if seen.version != self.goodput.version:
            self._switch(seen)
        self._suspend(seen, now)
        if not seen.suspended:
            self._count(seen, now)
        if seen.over:
            self.goodput = replace(self.goodput, ended=now)

    def shift_times(self, seconds: float) -> None:
        """Excludes a jump of the clock, or a pause of the master, from useful and elapsed time."""
        g = self.goodput
        moved = {name: at + seconds for name in ("began", "suspended", "at") if (at := getattr(g, name))}
        self.goodput = replace(g, **moved)

    def _keep(self, saved: tuple[int, ...]) -> None:
        known = dict(self.goodput.kept)
        if set(saved) != set(known):
            kept = tuple((step, known.get(step, self._useful_at(step))) for step in sorted(set(saved)))
            self.goodput = replace(self.goodput, kept=kept)

    def _useful_at(self, step: int) -> float:
        """Useful time at this step. A checkpoint is complete some time after its step."""
        return next((useful for known, useful in self._points if known >= step), self.goodput.useful)

    def _switch(self, seen: TrainingMoment) -> None:
        g = self.goodput
        lasting = max((useful for step, useful in g.kept if step <= seen.step), default=0.0)
        lost = max(0.0, g.useful - lasting) if seen.step < g.step else 0.0
        self._points = [(step, useful) for step, useful in self._points if step <= seen.step]
        self.goodput = replace(
            g, version=seen.version, step=seen.step, at=0.0, useful=g.useful - lost, redone=g.redone + lost
        )

    def _count(self, seen: TrainingMoment, now: float) -> None:
        g = self.goodput
        if not seen.stepped or (g.at and seen.step <= g.step):
            return
        if not g.at:
            self.goodput = replace(g, step=seen.step, at=now, first=seen.step, before=g.useful)
            return
        since = max(0.0, now - g.at)
        useful = g.useful + (since if since <= g.longest_step else 0.0)
        self.goodput = replace(g, step=seen.step, at=now, useful=useful)
        if not self._points or useful - self._points[-1][1] >= MIN_INTERVAL:
            self._points = [*self._points[-MAX_POINTS:], (seen.step, useful)]

    def _suspend(self, seen: TrainingMoment, now: float) -> None:
        g = self.goodput
        if seen.suspended and not g.suspended:
            self.goodput = replace(g, suspended=now, at=0.0)
        elif g.suspended and not seen.suspended:
            away = now - g.suspended
            self.goodput = replace(g, suspended=0.0, began=g.began + away)
