"""Steps that the `reconcile` of every kind with replicas takes: delete, suspend, report what blocks the job.
Pure.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Actions, Deletion, Manifest, Observed
from edl_workflows.core.jobs.obstacles import Obstacle
from edl_workflows.core.jobs.replicas.facts import JobFacts
from edl_workflows.core.jobs.status import KindPhase, PhaseVerdict


def delete_all(objects: Iterable[Manifest]) -> list[Deletion]:
    """Deletions of the objects that are not being deleted already."""
    return [manifests.delete_object(obj) for obj in objects if not manifests.is_terminating(obj)]


def suspending_verdict(facts: JobFacts[Any, Any], first: KindPhase) -> PhaseVerdict:
    """The verdict on a job that is being suspended and still has pods: it keeps its phase.

    Args:
        facts: what is observed.
        first: the phase of a job that has none yet.
    """
    message = f"pods that have not ended yet: {len(facts.live)}"
    return PhaseVerdict(facts.job.status.phase or first, "Suspending", message)


def apply_obstacle(
    observed: Observed, create: Iterable[Manifest], verdict: PhaseVerdict, phase: KindPhase | None = None
) -> tuple[PhaseVerdict, Obstacle | None]:
    """The verdict, or, if the API server refused one of these creates, a verdict that reports the refusal.

    Args:
        observed: with the refusals of the previous round.
        create: what the decision creates.
        verdict: without regard to refusals.
        phase: of a job whose create was refused; None: the verdict's.

    Returns:
        The verdict, and what was refused.
    """
    obstacle = obstacles.find_refusal(observed, create)
    if obstacle is None:
        return verdict, None
    return PhaseVerdict(phase or verdict.phase, obstacle.reason, obstacle.message), obstacle


def requeue_within(actions: Actions, *seconds: float | None) -> Actions:
    """The same actions, with the next decision after the shortest of these times at the latest."""
    times = [time for time in (actions.requeue_after, *seconds) if time is not None]
    return replace(actions, requeue_after=min(times, default=None))
