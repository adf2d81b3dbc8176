"""Pollux as a policy of the allocator: what jobs report becomes their speed-ups.

A job that has not reported, or what makes no sense, counts as one that gains as much from each replica, and gets what it needs
at least, or has. Nobody gets more than twice the replicas with which he, or another job of his scenario, was measured
(OSDI'21, §4.1): a model says little of what is far from its data. What jobs report: `edl_workflows.scaling.pollux.hints`.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.policy import Allocation, JobInfo, NodeInfo
from edl_workflows.scaling.pollux.hints import SchedulingHints, best_measured, read_hints
from edl_workflows.scaling.pollux.model import SHORTEST_FIRST, PolluxJob, PolluxOptions
from edl_workflows.scaling.pollux.optimizer import optimize_allocations
from edl_workflows.scaling.pollux.speedup import SpeedupTable, SpeedupTables

MOST_REPLICAS = 512
"""A table has no more: further ones count as worth nothing, and no job gets them beyond its minimum."""


class PolluxPolicy:
    """See the module. It keeps speed-up tables between calls, which change no answer.

    Args:
        options: how to weigh; the paper's if left out.
    """

    def __init__(self, options: PolluxOptions | None = None) -> None:
        self._options = options or PolluxOptions()
        self._speedups = SpeedupTables()

    def allocate(self, job: JobInfo, nodes: Mapping[str, NodeInfo]) -> list[str]:
        """What it needs at least, or may have by its own reports: what others have is looked at in the next cycle."""
        return self._optimized({job.key: (job, _read(job.profilings))}, {}, nodes, {})[job.key]

    def optimize(
        self,
        jobs: Mapping[str, JobInfo],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        """The best answer, found by `edl_workflows.scaling.pollux.optimizer.optimize_allocations`."""
        known = _known(jobs)
        models = {
            key: (hints.model, _most(job)) for key, (job, hints) in known.items() if hints.model is not None
        }
        return self._optimized(known, self._speedups.tables(models), nodes, previous)

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
            found = optimize_allocations(asked, list(nodes.values()), held, self._options)
            if found == held:
                return found
            held = found  # who has less now may have less again: what is held is one of the bounds


class ShortestFirstPolicy(PolluxPolicy):
    """Pollux that prefers jobs with the least work left."""

    def __init__(self) -> None:
        super().__init__(SHORTEST_FIRST)


def _known(jobs: Mapping[str, JobInfo]) -> dict[str, tuple[JobInfo, SchedulingHints]]:
    """What is known of each job, by its own reports and those of its scenario."""
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
    """As many replicas as its table has."""
    return max(min(job.max_replicas, MOST_REPLICAS), 1)


def _allowed(job: JobInfo, hints: SchedulingHints, held: Allocation) -> int:
    """As many replicas as it may have now."""
    return max(job.min_replicas, 2 * hints.profiled, len(held))
