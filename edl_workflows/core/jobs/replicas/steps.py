"""Steps that the `reconcile` of every kind with replicas takes: delete, suspend, report what blocks the job.
Pure.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Actions, Deletion, Manifest
from edl_workflows.core.jobs.obstacles import Obstacle
from edl_workflows.core.jobs.replicas.facts import JobFacts
from edl_workflows.core.jobs.status import KindPhase, PhaseVerdict
from edl_workflows.core.kubernetes import lost_pods


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
    facts: JobFacts[Any, Any],
    create: Iterable[Manifest],
    verdict: PhaseVerdict,
    phase: KindPhase | None = None,
) -> tuple[PhaseVerdict, Obstacle | None]:
    """The verdict, or one that reports that the API server refused one of these creates, or that a lost pod
    keeps its name.

    Args:
        facts: what is observed, with the refusals of the previous round.
        create: what the decision creates.
        verdict: without regard to obstacles.
        phase: of a job whose create was refused; None: the verdict's.

    Returns:
        The verdict, and the obstacle.
    """
    obstacle = obstacles.find_refusal(facts.observed, create)
    if obstacle is None:
        if verdict.phase.final:
            return verdict, None
        forced = facts.observed.settings.force_delete_lost_pods
        kept = [pod for pod in facts.lost if not forced or manifests.waits_for_finalizer(pod)]
        obstacle, phase = obstacles.find_lost(kept), None
    if obstacle is None:
        return verdict, None
    return PhaseVerdict(phase or verdict.phase, obstacle.reason, obstacle.message), obstacle


def settle_lost_pods(facts: JobFacts[Any, Any], actions: Actions) -> Actions:
    """The same actions with what lost pods need: their deletion by force, if the installation allows it, and
    the next decision when the next pod counts as gone."""
    forced = []
    if facts.observed.settings.force_delete_lost_pods:
        forced = [pod for pod in facts.lost if not manifests.waits_for_finalizer(pod)]
    actions = replace(
        actions,
        delete=(*actions.delete, *map(manifests.delete_by_force, forced)),
        events=(*actions.events, *map(obstacles.forced_deletion_event, forced)),
    )
    return requeue_within(actions, lost_pods.next_gone(facts.pods, facts.now))


def requeue_within(actions: Actions, *seconds: float | None) -> Actions:
    """The same actions, with the next decision after the shortest of these times at the latest."""
    times = [time for time in (actions.requeue_after, *seconds) if time is not None]
    return replace(actions, requeue_after=min(times, default=None))
