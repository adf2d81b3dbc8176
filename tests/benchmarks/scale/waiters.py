"""Waiters for training steps, as Airflow's triggerer has them: all share one watch of the jobs."""

import asyncio
import random
import time

from edl_workflows.pipelines.stages.driver import await_goal
from edl_workflows.pipelines.stages.wait import WaitRequest, begin_wait
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.results import Done
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from tests.benchmarks.scale.training import STEPS_PER_SECOND

AHEAD = (4.0, 8.0)
"""Seconds until the step that a waiter waits for."""
PATIENCE = 60.0

StepTimes = dict[tuple[str, int], float]
"""Of each job and step, when it was made or learned of, in Unix seconds."""


def wait_for_steps(cluster: Cluster, first_steps: StepTimes, rounds: int) -> StepTimes:
    """Wait for steps of jobs, one waiter a job, several times in turn.

    Args:
        cluster: of the jobs.
        first_steps: the first step of each job.
        rounds: how often.

    Returns:
        When each waiter's wait was over.
    """
    return asyncio.run(_wait_all(cluster, first_steps, rounds))


def measure_delays(made: StepTimes, learned: StepTimes) -> list[float]:
    """Seconds from each step's report until its waiter's wait was over. A step that was made before its
    master knew of the waiter is left out."""
    return [at - made[key] for key, at in learned.items() if key in made]


async def _wait_all(cluster: Cluster, first_steps: StepTimes, rounds: int) -> StepTimes:
    learned: StepTimes = {}
    await asyncio.gather(
        *(_wait(cluster, job, (step, at), rounds, learned) for (job, step), at in first_steps.items())
    )
    return learned


async def _wait(
    cluster: Cluster, job: str, first: tuple[int, float], rounds: int, learned: StepTimes
) -> None:
    source = ClusterSource.of(cluster)
    for attempt in range(rounds):
        ahead = time.time() - first[1] + random.uniform(*AHEAD)
        step = first[0] + round(ahead * STEPS_PER_SECOND)
        request = WaitRequest(name=job, step=step)
        handle = begin_wait(cluster, request, StageIdentity(f"bench/{job}/{attempt}"))
        end = await await_goal(source, handle, deadline=time.time() + PATIENCE)
        learned[job, step] = time.time()
        assert isinstance(end, Done), end
