"""Speed and use, from what nodes report. Kept in memory only: a restarted master measures anew.

How a job went, in a bounded number of points that are spread over its whole life, however long that is. Pure.
"""

from collections import deque
from dataclasses import dataclass, field

from edl_workflows.protocol.nodes import Usage
from edl_workflows.protocol.training import StepReport
from edl_workflows.scaling.dlrover.allreduce import NEWEST
from edl_workflows.scaling.dlrover.resources import OptimizerNode
from edl_workflows.scaling.dlrover.samples import JobSample, NodeSample

MAX_SHARD_POINTS = 64
FEWEST_SHARD_POINTS = 5
"""Acknowledgements of a node from which its pace is told."""
WINDOW = 60.0
"""Seconds over which speed is measured."""
MAX_SAMPLES = 240
"""An hour's, as they are taken by default: enough to reach back before the newest change of the number of workers."""


@dataclass
class Statistics:
    """Newest reports.

    Attributes:
        steps: (Unix seconds at the worker, global step), rising in both, of the present version.
        records: (Unix seconds here, acknowledged records).
        usage: by node.
        losses: newest loss by node.
        shards: (Unix seconds here, acknowledged shards) by node.
        samples: of the whole job, for whoever plans its size; oldest first.
        world_speeds: the newest speeds (steps a second) by number of members, in a collective job.
        same_since: since when all samples have the same nodes.
        ooms: nodes that ran out of memory, until Brain has been told.
    """

    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=512))
    records: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=128))
    usage: dict[str, Usage] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)
    shards: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    samples: deque[JobSample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    world_speeds: dict[int, deque[float]] = field(default_factory=dict)
    same_since: float = 0.0
    ooms: deque[OptimizerNode] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))
    _sampled_step: tuple[float, int] | None = None
    _stepper: str = ""

    def take_step(self, report: StepReport) -> None:
        """A worker reported the global step. One whose own clock was set back begins a new measurement: else no step would
        count until it has caught up."""
        if report.loss is not None:
            self.losses[str(report.node)] = report.loss
        worker = str(report.node)
        if self.steps and worker == self._stepper and report.time < self.steps[-1][0]:
            self.restart()
        if not self.steps or (report.time > self.steps[-1][0] and report.step > self.steps[-1][1]):
            _append(self.steps, (report.time, report.step))
            self._stepper = worker

    def take_records(self, records: int, now: float) -> None:
        """So many records are acknowledged by now."""
        _append(self.records, (now, records))

    def take_shards(self, node: str, count: int, now: float) -> None:
        """A node has acknowledged so many more shards."""
        if not count:  # repeated, or from who held nothing: whoever says so is not remembered
            return
        known = self.shards.setdefault(node, deque(maxlen=MAX_SHARD_POINTS))
        _append(known, (now, (known[-1][1] if known else 0) + count))

    def seconds_per_shard(self) -> dict[str, float]:
        """Of each node that acknowledged enough of them to tell."""
        enough = {node: known for node, known in self.shards.items() if len(known) >= FEWEST_SHARD_POINTS}
        return {node: 1 / rate for node, known in enough.items() if (rate := _rate(known))}

    def take_sample(self, step: int, nodes: tuple[NodeSample, ...], now: float) -> None:
        """The job at this moment. Its speed is that since the sample before, so that a change of the job shows at once."""
        sample = JobSample(now, step, self._speed_since_sample(), nodes)
        present = {node.name for node in nodes}
        if not self.samples or {node.name for node in self.samples[-1].nodes} != present:
            self.same_since = now
        self.samples.append(sample)
        self._sampled_step = self.steps[-1] if self.steps else None

    def take_world_speed(self, members: int) -> None:
        """So many members trained at the speed of the newest sample."""
        speed = self.samples[-1].speed if self.samples else 0.0
        if speed > 0:
            self.world_speeds.setdefault(members, deque(maxlen=NEWEST)).append(speed)

    def forget_samples(self) -> None:
        """The clock was set: what was measured before can't be put in order with what comes."""
        self.samples.clear()

    def restart(self) -> None:
        """Another version: steps may go back."""
        self.steps.clear()
        self._sampled_step = None

    def forget(self, node: str) -> None:
        """The node ended."""
        self.usage.pop(node, None)
        self.losses.pop(node, None)
        self.shards.pop(node, None)

    @property
    def speed(self) -> float:
        """Steps a second."""
        return _rate(self.steps)

    def _speed_since_sample(self) -> float:
        """Of the whole window where steps are rarer than samples."""
        if self._sampled_step is None or not self.steps or self.steps[-1][0] <= self._sampled_step[0]:
            return self.speed
        return _rate(deque((self._sampled_step, self.steps[-1])))

    @property
    def records_per_second(self) -> float:
        """Acknowledged records a second; 0 when the data position went back."""
        return max(0.0, _rate(self.records))


def _append(samples: deque[tuple[float, int]], sample: tuple[float, int]) -> None:
    samples.append(sample)
    while samples[0][0] < sample[0] - WINDOW and len(samples) > 2:
        samples.popleft()


def _rate(samples: deque[tuple[float, int]]) -> float:
    if len(samples) < 2:
        return 0.0
    (start, first), (end, last) = samples[0], samples[-1]
    return (last - first) / (end - start) if end > start else 0.0


MAX_POINTS = 120
"""Enough for a picture, and some kilobytes in the job's status."""
FIRST_INTERVAL = 5.0
"""Seconds between the points of a young job; it doubles whenever the points get too many."""


@dataclass(frozen=True)
class HistorySample:
    """The job at one moment.

    Attributes:
        time: Unix seconds.
        step: global step.
        records: acknowledged records.
        nodes: running nodes by role.
    """

    time: float
    step: int
    nodes: dict[str, int]
    records: int = 0


@dataclass(frozen=True)
class History:
    """The points so far, oldest first, at least `interval` seconds apart."""

    interval: float = FIRST_INTERVAL
    points: tuple[HistorySample, ...] = ()


def extend_history(history: History, point: HistorySample) -> History:
    """Take a point in when it is time; every second one goes when there are too many."""
    if history.points and point.time < history.points[-1].time + history.interval:
        return history
    points = (*history.points, point)
    if len(points) > MAX_POINTS:
        return History(history.interval * 2, points[::2])
    return History(history.interval, points)
