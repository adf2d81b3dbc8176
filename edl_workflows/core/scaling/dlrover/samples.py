"""Measurements of a job, and their validation.

A sample with anything impossible in it (a number that is not finite, negative, or larger than any machine
allows; a node that occurs twice; or a different sample with the same time) is dropped as a whole, since its
other values are no more reliable. A note says what was dropped.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MAX_CPU = 4_096.0
"""Cores; no machine has more."""
MAX_MEMORY = 2.0**26
"""MiB, which is 64 TiB."""
MAX_SPEED = 1e9
"""Steps a second."""


@dataclass(frozen=True)
class NodeSample:
    """What one node used: cores and MiB."""

    name: str
    role: str
    cpu: float
    memory: float


@dataclass(frozen=True)
class JobSample:
    """Measurements of a job at one moment (upstream: RuntimeMetric, JobRuntimeInfo).

    Attributes:
        time: Unix seconds.
        step: global step.
        speed: steps per second; 0 while it is unknown.
        nodes: the nodes that ran.
        metrics: values that the program reported, for people; no optimizer reads them.
    """

    time: float
    step: int
    speed: float
    nodes: tuple[NodeSample, ...] = ()
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)

    def of(self, *roles: str) -> list[NodeSample]:
        """The nodes of these roles, sorted by name."""
        return sorted((node for node in self.nodes if node.role in roles), key=lambda node: node.name)

    def names(self, *roles: str) -> frozenset[str]:
        return frozenset(node.name for node in self.nodes if node.role in roles)

    def cpu(self, *roles: str) -> float:
        """Cores that these roles used together."""
        return math.fsum(node.cpu for node in self.nodes if node.role in roles)

    def memory(self, *roles: str) -> float:
        """MiB that these roles used together."""
        return math.fsum(node.memory for node in self.nodes if node.role in roles)


@dataclass(frozen=True)
class ValidSamples:
    """Samples without errors.

    Attributes:
        samples: oldest first, at most one for each moment.
        problems: why other samples were dropped, in words, for notes.
    """

    samples: tuple[JobSample, ...]
    problems: tuple[str, ...]


def valid_samples(samples: Iterable[JobSample]) -> ValidSamples:
    """Drop impossible samples. The order of `samples` does not matter."""
    by_time: dict[float, JobSample] = {}
    wrong: set[str] = set()
    contradicted: set[float] = set()
    for sample in samples:
        if problem := next(_problems(sample), ""):
            wrong.add(problem)
        elif not _same(by_time.setdefault(sample.time, sample), sample):
            contradicted.add(sample.time)
            wrong.add(f"samples of the moment {sample.time:.0f} contradict each other")
    kept = tuple(sample for time, sample in sorted(by_time.items()) if time not in contradicted)
    return ValidSamples(kept, tuple(sorted(wrong)))


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean; at least one value is needed."""
    return math.fsum(values) / len(values)


def _same(first: JobSample, second: JobSample) -> bool:
    measurements = [(sample.step, sample.speed, frozenset(sample.nodes)) for sample in (first, second)]
    return measurements[0] == measurements[1]


def _problems(sample: JobSample) -> Iterator[str]:
    if not math.isfinite(sample.time):
        yield f"a sample's time is {sample.time}"
    if not 0 <= sample.step < 2**63:
        yield f"a sample's global step is {sample.step}"
    if not 0 <= sample.speed <= MAX_SPEED:
        yield f"a sample's speed is {sample.speed}"
    for node in sample.nodes:
        if not 0 <= node.cpu <= MAX_CPU:
            yield f"{node.name} reported {node.cpu} cores"
        if not 0 <= node.memory <= MAX_MEMORY:
            yield f"{node.name} reported {node.memory} MiB"
    if len({node.name for node in sample.nodes}) < len(sample.nodes):
        yield "a sample names a node twice"
