"""The account of a job's time: each second of its life has one cause. Pure.

Training time is useful if its steps are not lost. It is the time between the first and the newest step of
each cluster version, minus pauses and minus saves that stop training. When a version begins at an earlier
step, the time spent after that step becomes redone time, because those steps are made again. The cause of all
other time is derived from the job's state at that time (`goodput_steps`).

Only changes of the cause are recorded, so that the account of a waiting job does not change. While a job
trains, the time since its newest counted step has no cause yet: the next step, or whatever stopped training,
decides it.
"""

import math
from dataclasses import dataclass, field, replace

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause

MAX_MOMENTS = 720
"""Number of remembered moments, from which the useful time at a checkpoint's step is found."""
MIN_INTERVAL = 1.0
"""Least seconds between two remembered moments."""
PAUSE_STEPS = 10.0
"""A step that takes longer than this many mean steps of its version, and than `PAUSE_SECONDS`, is a pause."""
PAUSE_SECONDS = 5.0

_STARTS = (TimeCause.IMPORT, TimeCause.RENDEZVOUS, TimeCause.RESTORE)
"""Causes that last until the next step."""
_STOPS = (*_STARTS, TimeCause.QUEUED, TimeCause.SAVE, TimeCause.HANG)
"""Causes that are counted from the last step on, although the master noticed them later."""


@dataclass(frozen=True)
class Goodput:
    """How the job's time was spent; durations in seconds, times in Unix seconds.

    Attributes:
        began: when the job began, plus the time for which it was suspended.
        ended: when it ended; 0 while it runs.
        suspended: when the present suspension began; 0 if there is none.
        useful: time spent on steps that were not lost.
        redone: time spent on steps that were lost.
        version, step, at: the newest counted step and its time; `at` is 0 before the version's first step.
        first, before: the version's first step, and the useful time until then.
        kept: useful time up to the steps of the newest checkpoints, by step.
        spent: time of the other causes.
        since: the time up to which every second has its cause; 0 if an earlier version of the master wrote
            the account.
        cause: what the time after `since` is spent on.
        connected: whether the program had reported to the master when `cause` began.
        down: how long no master ran during the present version; moved to `useful` as far as the steps show
            that training continued.
        ready: the newest version for which the chief's process was prepared.
        worked: whether anything has shown that the program trained.
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
    spent: dict[TimeCause, float] = field(default_factory=dict)
    since: float = 0.0
    cause: TimeCause = TimeCause.QUEUED
    connected: bool = False
    down: float = 0.0
    ready: int = 0
    worked: bool = False

    def elapsed(self, now: float) -> float:
        """Age of the job, without the time for which it was suspended."""
        return max(0.0, (self.ended or self.suspended or now) - self.began) if self.began else 0.0

    def ratio(self, now: float) -> float:
        """Useful over elapsed time, from 0 to 1."""
        elapsed = self.elapsed(now)
        useful = self.parts(now).get(TimeCause.TRAINING, 0.0)
        return min(1.0, useful / elapsed) if elapsed else 0.0

    def parts(self, now: float) -> dict[TimeCause, float]:
        """The job's time by cause, without causes that took none. All but suspensions sum to `elapsed`."""
        parts = {**self.spent, TimeCause.TRAINING: self.useful, TimeCause.REDONE: self.redone}
        if self.since and not self.ended:
            span = max(0.0, now - self.since)
            pauses = self.cause is TimeCause.TRAINING and span > self.longest_step
            cause = TimeCause.OTHER if pauses else self.cause
            parts[cause] = parts.get(cause, 0.0) + span
        return {cause: parts[cause] for cause in TimeCause if parts.get(cause, 0.0) > 0}

    def shift_times(self, seconds: float) -> "Goodput":
        """Exclude a jump of the clock, or a pause of the master, from the job's time."""
        times = ("began", "suspended", "at", "since")
        return replace(self, **{name: at + seconds for name in times if (at := getattr(self, name))})

    @property
    def longest_step(self) -> float:
        """Seconds between two counted steps beyond which training paused."""
        steps = self.step - self.first
        return max(PAUSE_SECONDS, PAUSE_STEPS * self.mean_step) if self.at and steps > 0 else math.inf

    @property
    def mean_step(self) -> float:
        """Mean seconds of a step of the version; 0 before its second one."""
        steps = self.step - self.first
        return (self.useful - self.before) / steps if self.at and steps > 0 else 0.0

    def add(self, cause: TimeCause, seconds: float) -> "Goodput":
        if not seconds:
            return self
        if cause is TimeCause.TRAINING:
            return replace(self, useful=self.useful + seconds)
        return replace(self, spent={**self.spent, cause: self.spent.get(cause, 0.0) + seconds})


@dataclass(frozen=True)
class TrainingMoment:
    """The job at one moment.

    Attributes:
        version: the active one; 0 for none.
        step: global step; the first one while the version has made none.
        stepped: whether the version has made a step.
        cause: what the job's time is spent on now.
        saved: steps of the checkpoints from which the job could continue.
        connected: whether the program has reported to the master.
        over: whether the job has ended.
        worked: whether anything shows that the program has trained: a step, an acknowledged record, or the
            success of a process.
        created: when the job was created, in Unix seconds; 0 if that is unknown.
    """

    version: int
    step: int
    stepped: bool
    cause: TimeCause = TimeCause.TRAINING
    saved: tuple[int, ...] = ()
    connected: bool = True
    over: bool = False
    worked: bool = True
    created: float = 0.0


Moments = tuple[tuple[int, float], ...]
"""Steps, each with the useful time until it was made. They are not stored: a restarted master counts its next
rollback less exactly.
"""


def count_time(
    g: Goodput, moments: Moments | None, seen: TrainingMoment, now: float
) -> tuple[Goodput, Moments]:
    """Count the time up to this moment.

    Args:
        g: the account so far.
        moments: None in the first call of a master.
        seen: the job now.
        now: Unix seconds. They must not decrease: if the clock was set, call `Goodput.shift_times` first.

    Returns:
        The account, and the moments for the next call.
    """
    if g.ended:
        return g, moments or ()
    if moments is None:
        g, moments = _resume_account(g, seen, now), ()
    first_report = not (g.worked or g.at or g.first)
    g = _keep(replace(g, worked=g.worked or seen.worked), moments, seen.saved)
    if seen.version != g.version:
        g = _switch(_close(g, seen, now), seen)
        moments = tuple((step, useful) for step, useful in moments if step <= seen.step)
    if seen.stepped and seen.cause is not TimeCause.SUSPENDED:
        if not g.at:
            g = _add_first_step(g, seen, now)
        elif seen.step > g.step:
            g = _add_step(g, seen, now)
            moments = _remember(moments, g)
    connects = seen.connected and not g.connected
    g = _open(g, seen, now)
    if seen.over:
        g = replace(_close(g, seen, now), ended=now)
    # Until one of these moments the time counted as training, as an unmodified program's does.
    begins = seen.stepped and first_report
    started = g.worked or not (connects or seen.over)
    return g if started and not begins else _recount_as_start(g), moments


def cut_save(g: Goodput, seconds: float, now: float) -> Goodput:
    """Count the seconds for which training has just been stopped by a save.

    The part of the save before `since` has been counted as useful time; it is moved from there.
    """
    if g.ended or g.cause is not TimeCause.TRAINING or not g.at:
        return g
    still_open = min(seconds, max(0.0, now - g.since))
    counted = min(seconds - still_open, max(0.0, g.useful - g.before))
    g = replace(g, useful=g.useful - counted, since=g.since + still_open)
    return g.add(TimeCause.SAVE, still_open + counted)


def _keep(g: Goodput, moments: Moments, saved: tuple[int, ...]) -> Goodput:
    """Note the useful time at each saved step. Once its checkpoint is complete, `g.useful` may include later
    steps."""
    kept = dict(g.kept)
    if set(saved) == set(kept):
        return g
    for step in set(saved).difference(kept):
        kept[step] = next((useful for made, useful in moments if made >= step), g.useful)
    return replace(g, kept=tuple((step, kept[step]) for step in sorted(set(saved))))


def _switch(g: Goodput, seen: TrainingMoment) -> Goodput:
    lasting = max((useful for step, useful in g.kept if step <= seen.step), default=0.0)
    lost = max(0.0, g.useful - lasting) if seen.step < g.step else 0.0
    useful, redone = g.useful - lost, g.redone + lost
    # A suspension that continues now begins at `since`: `_close` has counted its time until then.
    suspended = g.since if g.cause is TimeCause.SUSPENDED else 0.0
    g = replace(g, useful=useful, redone=redone, suspended=suspended)
    return replace(g, version=seen.version, step=seen.step, at=0.0, down=0.0)


def _add_first_step(g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
    g = _close(g, seen, now)
    first = replace(g, step=seen.step, at=now, first=seen.step, before=g.useful)
    return replace(first, cause=TimeCause.TRAINING)


def _add_step(g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
    span = now - g.since
    if g.cause is not TimeCause.TRAINING:
        g = _close(g, seen, now)
    else:
        cause = TimeCause.TRAINING if span <= g.longest_step else TimeCause.OTHER
        g = replace(g.add(cause, span), since=now)
    g = _credit_down_time(g, seen.step, span)
    return replace(g, step=seen.step, at=now, cause=TimeCause.TRAINING)


def _remember(moments: Moments, g: Goodput) -> Moments:
    if moments and g.useful - moments[-1][1] < MIN_INTERVAL:
        return moments
    return (*moments[-MAX_MOMENTS:], (g.step, g.useful))


def _resume_account(g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
    """Begin the account of a new job, or continue the account that a previous master wrote."""
    if not g.began:
        began = min(seen.created or now, now)
        return replace(g, began=began, since=began)
    if not g.since:
        until = g.suspended or now
        cause = TimeCause.SUSPENDED if g.suspended else TimeCause.OTHER
        unknown = max(0.0, until - g.began - g.useful - g.redone)
        return replace(g.add(TimeCause.OTHER, unknown), since=until, cause=cause)
    if g.cause is TimeCause.TRAINING and g.at:
        away = max(0.0, now - g.since)
        return replace(g.add(TimeCause.MASTER_DOWN, away), since=now, down=g.down + away)
    return g


def _credit_down_time(g: Goodput, step: int, span: float) -> Goodput:
    """Move time without a master to the useful time, as far as steps were made in it."""
    if not g.down:
        return g
    trained = (step - g.step) * g.mean_step - span
    useful = min(g.down, max(0.0, trained))
    return replace(g.add(TimeCause.MASTER_DOWN, -useful), useful=g.useful + useful, down=0.0)


def _open(g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
    """Start to count time for the present cause, if it has changed."""
    cause = seen.cause
    if cause is TimeCause.TRAINING and g.cause is not cause and seen.stepped:
        # The time until the next step is not training yet.
        starts = TimeCause.IMPORT if g.cause is TimeCause.QUEUED else g.cause
        cause = starts if starts in _STARTS else TimeCause.OTHER
    if cause is g.cause and g.connected is seen.connected:
        return g
    g = replace(_close(g, seen, now), cause=cause, connected=seen.connected)
    if cause is TimeCause.SUSPENDED:
        return replace(g, suspended=now)
    return g


def _close(g: Goodput, seen: TrainingMoment, now: float) -> Goodput:
    """Give the time since `since` its cause."""
    span = max(0.0, now - g.since)
    closed = replace(g, since=now)
    if g.cause is TimeCause.SUSPENDED:
        return replace(closed.add(g.cause, span), suspended=0.0, began=g.began + span)
    if g.cause is not TimeCause.TRAINING:
        return closed.add(g.cause, span)
    if g.at:  # training stopped
        return closed.add(seen.cause if seen.cause in _STOPS else TimeCause.OTHER, span)
    # The version has made no step. A program that connects only now was starting until now. A program that
    # never connects does not use the library, so its time counts as training, unless it fails in the end.
    starting = seen.connected and not g.connected
    return closed.add(TimeCause.IMPORT if starting else TimeCause.TRAINING, span)


def _recount_as_start(g: Goodput) -> Goodput:
    """Move the useful time to the start of the program, which has not trained yet."""
    return replace(g, useful=0.0, before=0.0, kept=()).add(TimeCause.IMPORT, g.useful)
