"""Speed and resource use from the nodes' reports, kept in memory only."""

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise

from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.monitoring.durations import DurationCounts
from edl_workflows.core.protocol.metrics import LOSS, MAX_METRICS
from edl_workflows.core.protocol.nodes import Usage
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.core.scaling.dlrover.allreduce import NEWEST
from edl_workflows.core.scaling.dlrover.resources import OptimizerNode
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from edl_workflows.services.master.state.goodput import Goodput

MAX_SHARD_POINTS = 64
FEWEST_SHARD_POINTS = 5
"""Acknowledgements of a node that are needed to measure its pace."""
WINDOW = 60.0
"""Seconds over which speed is measured."""
SETTLED = 3.0
"""Seconds of training without which the records have no speed: agents collect acknowledgements for some
tenths of a second, so over less time it could be wrong by half.
"""
MAX_SAMPLES = 240
"""One hour at the default interval, so that the samples reach back beyond the newest change of the number of
workers.
"""


@dataclass
class RecordMeter:
    """How many records a second a job trains, over the `WINDOW` that ends with the newest jump.

    Nodes acknowledge whole shards, so the number of records rises in jumps. The measurement begins with the
    first jump: the time before it is that of the program's start, of a pause, or of a part of a shard.
    Records between two jumps count as trained evenly. The newest jump is followed by a part of a shard, too:
    the rate stays for as long as the longest time between two jumps, and then falls, to 0 a `WINDOW` after
    the newest one.

    Attributes:
        rises: (Unix seconds here, acknowledged records) after each jump; the first is the newest one before
            the window, if there is one.
        records: acknowledged records; None before the first sample.
        now: the time of the newest sample.
    """

    rises: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=128))
    records: int | None = None
    now: float = 0.0

    def take(self, records: int, now: float, *, over: bool = False) -> None:
        """Take a sample. A number or a clock that went back begins the measurement anew.

        Args:
            records: acknowledged records.
            now: Unix seconds.
            over: nothing is left to train, so that time without a jump does not count.
        """
        if self.records is None or records < self.records or now < self.now:
            self.rises.clear()
        elif records > self.records and now > self.now:
            self._add_rise(records, now)
        elif records > self.records or over:
            return  # in the former case, two samples of one moment: the next one has the difference
        self.records, self.now = records, now

    def _add_rise(self, records: int, now: float) -> None:
        """Add a jump. A pause longer than the window counts for the jump that ends it alone. Jumps that
        follow each other at once are one, so that those of the window have room."""
        if len(self.rises) > 1 and self.rises[-1][0] - self.rises[-2][0] > WINDOW:
            newest = self.rises[-1]
            self.rises.clear()
            self.rises.append(newest)
        if len(self.rises) > 1 and self.rises[-1][0] - self.rises[-2][0] < WINDOW / 120:
            self.rises.pop()
        self.rises.append((now, records))
        while len(self.rises) > 2 and self.rises[1][0] <= now - WINDOW:
            self.rises.popleft()

    def restart(self) -> None:
        """Begin anew with the next jump."""
        self.rises.clear()

    @property
    def rate(self) -> float:
        """Records per second; 0 if they are not known yet, or if there was no jump for a window."""
        if len(self.rises) < 2 or self.rises[-1][0] - self.rises[0][0] < SETTLED:
            return 0.0
        (earlier, before), (later, after), (newest, last) = self.rises[0], self.rises[1], self.rises[-1]
        start = max(earlier, newest - WINDOW)
        begun = before + (after - before) * (start - earlier) / (later - earlier)
        return (last - begun) / (newest - start) * self._share_of_rate(self.now - newest)

    def _share_of_rate(self, silent: float) -> float:
        """Which share of the rate is left so many seconds after the newest jump."""
        if silent >= WINDOW:
            return 0.0
        usual = max(later - earlier for (earlier, _), (later, _) in pairwise(self.rises))
        return 1.0 if silent <= usual else (WINDOW - silent) / (WINDOW - usual)


@dataclass
class PauseCounts:
    """How long training paused, and faults went unnoticed.

    Attributes:
        stalls: from the last step of a training group to the first step of the next one.
        restores: waiting for the model.
        blocking: for saves.
        hangs, absences: until they were noticed.
        last_step: Unix seconds of the last step of the previous training group; 0 if that is unknown, or the
            present one has made a step.
        restoring_since: Unix seconds; 0 while the model is not restored.
    """

    stalls: DurationCounts = field(default_factory=DurationCounts)
    restores: DurationCounts = field(default_factory=DurationCounts)
    blocking: DurationCounts = field(default_factory=DurationCounts)
    hangs: DurationCounts = field(default_factory=DurationCounts)
    absences: DurationCounts = field(default_factory=DurationCounts)
    last_step: float = 0.0
    restoring_since: float = 0.0

    def note_times(self, before: Goodput, now: Goodput, at: float) -> None:
        """Note the pauses that end, and those that begin, with a change of the job's account of time.

        Args:
            before: the account before.
            now: the account.
            at: Unix seconds.
        """
        if before.at and now.version != before.version:
            self.last_step = before.at
        if now.at and self.last_step:
            self.stalls.add(max(0.0, now.at - self.last_step))
            self.last_step = 0.0
        restoring = now.cause is TimeCause.RESTORE
        if restoring and not self.restoring_since:
            self.restoring_since = at
        elif self.restoring_since and not restoring:
            self.restores.add(max(0.0, at - self.restoring_since))
            self.restoring_since = 0.0

    def shift_times(self, seconds: float) -> None:
        """Exclude a jump of the clock, or a pause of the master."""
        if self.last_step:
            self.last_step += seconds
        if self.restoring_since:
            self.restoring_since += seconds


@dataclass
class Statistics:
    """The newest reports.

    Attributes:
        steps: (Unix seconds at the worker, global step) of the present version, rising in both.
        records: measures the acknowledged records.
        usage: by node.
        losses: newest loss by node.
        metric_steps: newest value of each metric that the program reports, with its step; the loss of its
            steps is among them.
        shards: (Unix seconds here, acknowledged shards) by node.
        samples: of the whole job, for the optimizer; oldest first.
        world_speeds: newest speeds (steps per second) of a collective job by number of members.
        same_since: since when all samples have the same nodes.
        ooms: nodes that ran out of memory and were not yet reported to Brain.
        pauses: how long training paused.
    """

    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=512))
    records: RecordMeter = field(default_factory=RecordMeter)
    usage: dict[str, Usage] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    metric_steps: dict[str, tuple[int, float]] = field(default_factory=dict)
    shards: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    samples: deque[JobSample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    world_speeds: dict[int, deque[float]] = field(default_factory=dict)
    same_since: float = 0.0
    ooms: deque[OptimizerNode] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    pauses: PauseCounts = field(default_factory=PauseCounts)
    _sampled_step: tuple[float, int] | None = None
    _stepper: str = ""

    def record_step(self, report: StepReport) -> None:
        """Record a worker's report of the global step.

        If the worker's clock was set back, the measurement restarts; otherwise no step would count until its
        clock has caught up.
        """
        if report.loss is not None:
            self.losses[str(report.node)] = report.loss
        self._record_metrics(report)
        worker = str(report.node)
        if self.steps and worker == self._stepper and report.time < self.steps[-1][0]:
            self.restart()
        if not self.steps or (report.time > self.steps[-1][0] and report.step > self.steps[-1][1]):
            _append(self.steps, (report.time, report.step))
            self._stepper = worker

    def _record_metrics(self, report: StepReport) -> None:
        """Their number is bounded for all workers together: they run one program, with the same names."""
        loss = {} if report.loss is None else {LOSS: report.loss}
        for name, value in (loss | report.metrics).items():
            step, _ = self.metric_steps.get(name, (-1, 0.0))
            other_metrics = len(self.metric_steps) - (LOSS in self.metric_steps)
            if report.step >= step and (step >= 0 or name == LOSS or other_metrics < MAX_METRICS):
                self.metric_steps[name] = (report.step, value)

    def sample_records(self, records: int, now: float, *, over: bool = False) -> None:
        self.records.take(records, now, over=over)

    def record_shards(self, node: str, count: int, now: float) -> None:
        if not count:  # repeated, or from a node that held nothing; it is not remembered
            return
        points = self.shards.setdefault(node, deque(maxlen=MAX_SHARD_POINTS))
        _append(points, (now, (points[-1][1] if points else 0) + count))

    def seconds_per_shard(self) -> dict[str, float]:
        """Seconds per shard of each node with enough acknowledgements."""
        enough = {node: points for node, points in self.shards.items() if len(points) >= FEWEST_SHARD_POINTS}
        return {node: 1 / rate for node, points in enough.items() if (rate := _rate(points))}

    def record_sample(
        self, step: int, nodes: tuple[NodeSample, ...], now: float, metrics: Mapping[str, float] | None = None
    ) -> None:
        """Take a sample. Its speed is that since the previous sample, so that a change of the job shows at
        once.
        """
        sample = JobSample(now, step, self._speed_since_sample(), nodes, metrics or {})
        present = {node.name for node in nodes}
        if not self.samples or {node.name for node in self.samples[-1].nodes} != present:
            self.same_since = now
        self.samples.append(sample)
        self._sampled_step = self.steps[-1] if self.steps else None

    def record_world_speed(self, members: int) -> None:
        """Record the speed of the newest sample for a training group of this size."""
        speed = self.samples[-1].speed if self.samples else 0.0
        if speed > 0:
            self.world_speeds.setdefault(members, deque(maxlen=NEWEST)).append(speed)

    def shift_times(self, seconds: float) -> None:
        """Shift the beginnings of pauses because the clock was set, and drop the samples: older times are not
        comparable with new ones."""
        self.samples.clear()
        self.pauses.shift_times(seconds)

    def restart(self) -> None:
        """Restart the measurement of speed for another version, whose steps may go back."""
        self.steps.clear()
        self.records.restart()
        self.metric_steps = {name: (0, value) for name, (_, value) in self.metric_steps.items()}
        self._sampled_step = None

    def forget(self, node: str) -> None:
        """Forget a node that ended."""
        self.usage.pop(node, None)
        self.losses.pop(node, None)
        self.shards.pop(node, None)

    @property
    def metrics(self) -> dict[str, float]:
        """The newest value of each metric, by name."""
        return {name: value for name, (_, value) in sorted(self.metric_steps.items())}

    @property
    def speed(self) -> float:
        """Steps per second."""
        return _rate(self.steps)

    def _speed_since_sample(self) -> float:
        """Speed over the whole window if steps are rarer than samples."""
        if self._sampled_step is None or not self.steps or self.steps[-1][0] <= self._sampled_step[0]:
            return self.speed
        return _rate(deque((self._sampled_step, self.steps[-1])))

    @property
    def records_per_second(self) -> float:
        """Acknowledged records per second."""
        return self.records.rate


def _append(samples: deque[tuple[float, int]], sample: tuple[float, int]) -> None:
    samples.append(sample)
    while samples[0][0] < sample[0] - WINDOW and len(samples) > 2:
        samples.popleft()


def _rate(samples: deque[tuple[float, int]]) -> float:
    if len(samples) < 2:
        return 0.0
    (start, first), (end, last) = samples[0], samples[-1]
    return (last - first) / (end - start) if end > start else 0.0
