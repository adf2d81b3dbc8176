"""What Pollux's allocations are worth, for tests and benchmarks of the search."""

from collections.abc import Mapping, Sequence
from math import inf

from edl_workflows.core.scaling.policy import Allocation, NodeInfo
from edl_workflows.core.scaling.pollux.model import PolluxJob, PolluxOptions
from edl_workflows.core.scaling.pollux.optimizer import AllocationProblem
from edl_workflows.core.scaling.pollux.search import ClusterPacking, SearchProblem


def allocation_worth(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    allocations: Mapping[str, Allocation],
    options: PolluxOptions | None = None,
) -> float:
    """The objective of `optimize_allocations`: the sum of the worth of each job's allocation.

    Args:
        jobs: as for `optimize_allocations`, like `nodes`, `previous` and `options`.
        nodes: the nodes.
        previous: the present allocations.
        options: weights.
        allocations: the allocations to judge. Jobs that are not preemptible don't count.

    Returns:
        With the paper's fairness, minus the sum of the inverse speed-ups; -inf if an allocation is not
        allowed.
    """
    problem, question = _asked(jobs, nodes, previous, options)
    cluster = ClusterPacking(question)
    for number, shape in enumerate(question.shapes):
        allocation = allocations.get(shape.job.info.key, ())
        place = problem.place(shape, allocation)
        if allocation and place is None:
            return -inf
        cluster.put(number, place)
    return cluster.worth


def search_problem(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    options: PolluxOptions | None = None,
) -> SearchProblem:
    """The first search problem that `optimize_allocations` builds if it is called with these arguments."""
    return _asked(jobs, nodes, previous, options)[1]


def _asked(
    jobs: Sequence[PolluxJob],
    nodes: Sequence[NodeInfo],
    previous: Mapping[str, Allocation],
    options: PolluxOptions | None,
) -> tuple[AllocationProblem, SearchProblem]:
    problem = AllocationProblem(jobs, nodes, options or PolluxOptions())
    return problem, problem.question({job.info.key: list(previous.get(job.info.key, ())) for job in jobs})
