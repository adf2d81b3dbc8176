"""Pollux as an allocation policy: the speed-ups of jobs are computed from their reports.

A job without a report, or with an invalid one, is assumed to scale linearly, and gets its minimum or keeps
what it has. No job gets more than twice the replicas with which it, or another job of its scenario, was
measured (OSDI'21, §4.1), since a model is unreliable far from its data. For the reports see
`edl_workflows.core.scaling.pollux.hints`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policy import Allocation, JobInfo, NodeInfo
from edl_workflows.core.scaling.pollux.hints import SchedulingHints, best_measured, read_hints
from edl_workflows.core.scaling.pollux.model import SHORTEST_FIRST, PolluxJob, PolluxOptions
from edl_workflows.core.scaling.pollux.optimizer import optimize_allocations
from edl_workflows.core.scaling.pollux.speedup import SpeedupTable, SpeedupTables

MOST_REPLICAS = 512
"""The size of speed-up tables. More replicas are worth nothing, and only a minimum can demand them."""


class PolluxPolicy:
    """Pollux. It caches speed-up tables between calls, which changes no answer.

    Args:
        options: weights; the paper's by default.
    """

    def __init__(self, options: PolluxOptions | None = None) -> None:
        self._options = options or PolluxOptions()
        self._speedups = SpeedupTables()

    def allocate(self, job: JobInfo, nodes: Mapping[str, NodeInfo]) -> list[str]:
        """Allocate what `optimize` gives to the job alone, so that the next `optimize` has no other reason to
        restart it than other jobs."""
        return self.optimize({job.key: job}, nodes, {})[job.key]

    def optimize(
        self,
        jobs: Mapping[str, JobInfo],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        jobs_with_hints = _with_hints(jobs)
        models = {
            key: (hints.model, _most(job))
            for key, (job, hints) in jobs_with_hints.items()
            if hints.model is not None
        }
        return self._optimized(jobs_with_hints, self._speedups.tables(models), nodes, previous)

    def _optimized(
        self,
        jobs: Mapping[str, tuple[JobInfo, SchedulingHints]],
        tables: Mapping[str, SpeedupTable],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        held = {key: list(previous.get(key, ())) for key in jobs}
        left = {
            key: hints.remaining_seconds if self._options.shortest_first else None
            for key, (_, hints) in jobs.items()
        }
        while True:
            asked = [
                PolluxJob(
                    replace(job, max_replicas=min(job.max_replicas, _allowed(job, hints, held[key]))),
                    tables.get(key) or SpeedupTable.linear(_most(job)),
                    remaining=left[key],
                )
                for key, (job, hints) in jobs.items()
            ]
            allocations = optimize_allocations(asked, list(nodes.values()), held, self._options)
            if allocations == held:
                return allocations
            # A job's upper bound depends on what it holds, so one that shrank may shrink again.
            held = allocations


class ShortestFirstPolicy(PolluxPolicy):
    """Pollux that prefers jobs with the least work left."""

    def __init__(self) -> None:
        super().__init__(SHORTEST_FIRST)


def _with_hints(jobs: Mapping[str, JobInfo]) -> dict[str, tuple[JobInfo, SchedulingHints]]:
    """Each job with what is known from its own reports and those of its scenario."""
    reported = {job.scenario: job.reported for job in jobs.values()}
    former = {scenario: best_measured(map(_read, reports)) for scenario, reports in reported.items()}
    return {
        key: (job, _read(job.profilings).after(former[job.scenario], _most(job))) for key, job in jobs.items()
    }


def _read(profilings: Mapping[str, Any]) -> SchedulingHints:
    try:
        return read_hints(profilings)
    except InvalidError:
        return SchedulingHints()


def _most(job: JobInfo) -> int:
    """The size of the job's speed-up table."""
    return max(min(job.max_replicas, MOST_REPLICAS), 1)


def _allowed(job: JobInfo, hints: SchedulingHints, held: Allocation) -> int:
    """The most replicas that the job may have now."""
    return max(job.min_replicas, 2 * hints.profiled, len(held))
