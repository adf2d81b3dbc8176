"""Runs to simulate, their results, and summaries over workloads and seeds."""

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from statistics import fmean, stdev
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.pollux.goodput_fit import FitCache
from edl_workflows.simulator.application import Application
from edl_workflows.simulator.cluster import SimulationRun, SimulationSettings, simulate
from edl_workflows.simulator.metrics import RunMetrics, measure_run
from edl_workflows.simulator.schedulers.catalog import simulated_policy
from edl_workflows.simulator.schedulers.scheduler import SchedulerInputs
from edl_workflows.simulator.workload import WorkloadJob

_METRICS = tuple(metric.name for metric in fields(RunMetrics))
_KEY = {"workload", "jobs", "policy", "seed", "settings"}


@dataclass(frozen=True)
class Workload:
    """Jobs, and the applications that they train.

    Attributes:
        name: a name for people.
        group: the group of workloads that it belongs to, such as all workloads of the same load.
        jobs: in any order.
        applications: by name; all that the jobs name.
        most_replicas: application → the most replicas of its jobs, where that is limited.
    """

    name: str
    group: str
    jobs: Sequence[WorkloadJob]
    applications: Mapping[str, Application]
    most_replicas: Mapping[str, int]


@dataclass(frozen=True)
class Study:
    """A run to simulate.

    Attributes:
        workload: the jobs.
        policy: a name in `edl_workflows.simulator.schedulers.catalog`.
        seed: the seed of what is random in `settings`.
        settings: the cluster, with its capacity changes.
    """

    workload: Workload
    policy: str
    seed: int
    settings: SimulationSettings

    @property
    def key(self) -> dict[str, Any]:
        """What the result depends on, as JSON: studies with the same key have the same result."""
        jobs = sorted(self.workload.jobs, key=lambda job: job.name)
        settings = asdict(self.settings)
        return {
            "workload": self.workload.name,
            "jobs": _digest(jobs),
            "policy": self.policy,
            "seed": self.seed,
            "settings": settings | {"changes": _digest(self.settings.changes)},
        }

    def run(self, fits: FitCache) -> SimulationRun:
        """Simulate the run.

        Args:
            fits: shared by the runs of a process.

        Raises:
            InvalidError: the policy is unknown, a job can never run, or `simulate` refuses the input.
        """
        policy = simulated_policy(self.policy)
        gpus = self.settings.nodes * self.settings.node_gpus
        greedy = [job for job in self.workload.jobs if job.replicas > gpus]
        if policy.rigid and greedy:
            raise InvalidError(
                f"{self.workload.name}: job {greedy[0].name} asks for {greedy[0].replicas} GPUs, which "
                f"{self.policy} gives as a whole, and the cluster has {gpus}; "
                "simulate more nodes, or another policy"
            )
        scheduler = policy.make(SchedulerInputs(self.workload.most_replicas, fits))
        return simulate(self.workload.jobs, self.workload.applications, scheduler, self.settings)


@dataclass(frozen=True)
class StudyResult:
    """The result of a study.

    Attributes:
        key: the study's key.
        group: the group of its workload.
        metrics: the metrics of the run.
    """

    key: Mapping[str, Any]
    group: str
    metrics: RunMetrics

    @classmethod
    def of(cls, study: Study, run: SimulationRun) -> "StudyResult":
        return cls(study.key, study.workload.group, measure_run(run))

    def to_json(self) -> dict[str, Any]:
        """As JSON; values that are not finite become null."""
        metrics = {name: _finite(value) for name, value in asdict(self.metrics).items()}
        return {"key": dict(self.key), "group": self.group, "metrics": metrics}

    @classmethod
    def parse(cls, value: Any) -> "StudyResult":
        """The inverse of `to_json`.

        Raises:
            InvalidError: the value is not a result.
        """
        try:
            key, group, numbers = value["key"], value["group"], value["metrics"]
            metrics: dict[str, Any] = {
                name: math.nan if numbers[name] is None else numbers[name] for name in _METRICS
            }
            sound = {*key} == _KEY and all(isinstance(number, int | float) for number in metrics.values())
        except (KeyError, TypeError):
            sound = False
        if not sound:
            raise InvalidError("not the result of a simulation; give another file, or delete the line")
        return cls(key, str(group), RunMetrics(**metrics))


@dataclass(frozen=True)
class StudySummary:
    """The runs of one policy over the workloads of a group and over seeds.

    Attributes:
        group, policy: the group of workloads, and the policy.
        runs: number of runs.
        jct_mean: the mean of their mean job completion times, in seconds.
        jct_spread: the standard deviation of these; 0 for a single run.
        published: the published mean of the same runs; None if there is none.
    """

    group: str
    policy: str
    runs: int
    jct_mean: float
    jct_spread: float
    published: float | None

    @property
    def ratio(self) -> float | None:
        """The relative difference of the mean from the published one."""
        return None if self.published is None else self.jct_mean / self.published - 1

    def to_json(self) -> dict[str, Any]:
        """As JSON; values that are not finite become null."""
        return {name: _finite(value) for name, value in asdict(self).items()} | {"ratio": self.ratio}


def summarize_results(
    results: Sequence[StudyResult], published: Mapping[tuple[str, str], tuple[int, float]]
) -> list[StudySummary]:
    """Summarize the results of each group and policy, in the order of their first results.

    Args:
        results: of all runs.
        published: (group, policy) → (number of workloads, published mean).
    """
    groups: dict[tuple[str, str], list[StudyResult]] = {}
    for result in results:
        groups.setdefault((result.group, result.key["policy"]), []).append(result)
    summaries = []
    for (group, policy), runs in groups.items():
        means = [run.metrics.jct_mean for run in runs]
        of, mean = published.get((group, policy), (0, 0.0))
        complete = len({run.key["workload"] for run in runs}) == of
        spread = stdev(means) if len(means) > 1 else 0.0
        summaries.append(
            StudySummary(group, policy, len(runs), fmean(means), spread, mean if complete else None)
        )
    return summaries


def jobs_of(run: SimulationRun) -> list[dict[str, Any]]:
    """The result of each job, as JSON."""
    return [asdict(job) for job in run.jobs]


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _digest(values: Sequence[object]) -> str:
    """A short hash of the values; empty without values."""
    if not values:
        return ""
    return hashlib.sha256("\n".join(map(repr, values)).encode()).hexdigest()[:16]
