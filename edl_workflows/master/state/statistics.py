"""Speed and use, from what nodes report. Kept in memory only: a restarted master measures anew."""

from collections import deque
from dataclasses import dataclass, field

from edl_workflows.protocol.nodes import Usage
from edl_workflows.protocol.training import StepReport

WINDOW = 60.0
"""Seconds over which speed is measured."""


@dataclass
class Statistics:
    """Newest reports.

    Attributes:
        steps: (Unix seconds at the worker, global step), rising in both, of the present version.
        records: (Unix seconds here, acknowledged records).
        usage: by node.
        losses: newest loss by node.
    """

    steps: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=512))
    records: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=128))
    usage: dict[str, Usage] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)

    def take_step(self, report: StepReport) -> None:
        """A worker reported the global step."""
        if report.loss is not None:
            self.losses[str(report.node)] = report.loss
        if not self.steps or (report.time > self.steps[-1][0] and report.step > self.steps[-1][1]):
            _append(self.steps, (report.time, report.step))

    def take_records(self, records: int, now: float) -> None:
        """So many records are acknowledged by now."""
        _append(self.records, (now, records))

    def restart(self) -> None:
        """Another version: steps may go back."""
        self.steps.clear()

    def forget(self, node: str) -> None:
        """The node ended."""
        self.usage.pop(node, None)
        self.losses.pop(node, None)

    @property
    def speed(self) -> float:
        """Steps a second."""
        return _rate(self.steps)

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
