"""Computes a DIJob's status: phase, conditions, counters in both spellings. Pure.

One condition is True at a time, that of the phase; the reasons are upstream's, ``Job<Phase>``, unless there
is a more specific one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Event, Manifest, merge_patch
from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.facts import DIJobFacts, DIReplicaState
from edl_workflows.core.jobs.di_job.model import DIJobPhase, DIJobStatus, Task, TaskCounts
from edl_workflows.core.jobs.status import KindPhase, PhaseVerdict, phase_event, update_conditions
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.kubernetes.objects import Condition

FOREIGN = ("allocation", "profilings")
"""Fields of the status that others write: the allocator and the DI server."""
WARNINGS = obstacles.REASONS | {"JobRestarting", "JobRescheduling"}

CREATED = Condition(type="Created", status="True", reason="JobCreated")

COUNTERS = frozenset({"replicaStatuses", "taskStatus", "readyReplicas"})
COUNTERS_SECONDS = 2.0
"""How long a change of counters alone may be delayed to collect more of them: many of a job's pods start and
end at about the same time."""
STARTING_SECONDS = 10.0
"""The same while the job starts, when it matters only that all pods run at last."""


@dataclass(frozen=True)
class CounterChange:
    """The changes that a decision makes to the counters of the status.

    Attributes:
        anew: the task whose successes are forgotten, so that it begins anew; "" for none.
    """

    restarts: int = 0
    reschedules: int = 0
    generation: int = 0
    anew: str = ""


def status_patch(
    facts: DIJobFacts, outcome: PhaseVerdict, count: CounterChange, secret: Manifest | None
) -> dict[str, Any] | None:
    """The merge patch that makes the status say `outcome`; None if it does already.

    Args:
        facts: what is observed.
        outcome: what was decided.
        count: what is added to counters.
        secret: the Secret with the job's token, existing or about to be made.
    """
    old, phase = facts.job.status, outcome.phase
    start = old.start_time if old.phase is not DIJobPhase.SUSPENDED or phase is DIJobPhase.SUSPENDED else None
    ended = (old.completion_timestamp or facts.now) if phase.final else None
    new = old.model_copy(
        update={
            "phase": phase,
            "reason": outcome.reason,
            "message": outcome.message,
            "observed_generation": facts.job.decided_generation,
            "conditions": update_conditions(old, outcome, CREATED, facts.now),
            "replica_statuses": _by_task(facts, phase, count.anew),
            "replicas": old.replicas if phase.final else len(facts.replicas),
            "ready_replicas": 0 if phase.final else sum(replica.ready for replica in facts.replicas),
            "restarts": old.restarts + count.restarts,
            "reschedules": old.reschedules + count.reschedules,
            "generation": old.generation + count.generation,
            "token_digest": manifests.get_label(secret, pods.TOKEN_DIGEST_LABEL)
            if secret
            else old.token_digest,
            "task_status": None if phase.final else _phases(facts),
            "start_time": start or facts.now,
            "completion_time": ended,
            "completion_timestamp": ended,
        }
    )
    desired = {"taskStatus": None} | new.to_dict()
    return merge_patch(old.stored(), {name: value for name, value in desired.items() if name not in FOREIGN})


def status_delay(old: DIJobStatus, patch: Mapping[str, Any] | None) -> float:
    """Seconds for which a status patch may be held back, so that one write covers several changes."""
    if patch is None or not patch.keys() <= COUNTERS:
        return 0.0
    return STARTING_SECONDS if old.phase in (DIJobPhase.PENDING, DIJobPhase.STARTING) else COUNTERS_SECONDS


def make_events(facts: DIJobFacts, outcome: PhaseVerdict) -> tuple[Event, ...]:
    """One Event for each change of phase or reason."""
    return phase_event(
        facts.job.status, outcome, WARNINGS, f"DIJob {facts.job.key} is {outcome.phase.lower()}."
    )


def _by_task(facts: DIJobFacts, phase: KindPhase, anew: str) -> dict[str, TaskCounts]:
    counts = {
        task.title: _count(facts, task, [p for p in facts.replicas if p.desired.task is task], phase)
        for task in facts.job.spec.tasks
    }
    if anew:
        counts[anew] = counts[anew].model_copy(update={"succeeded": 0, "completed": []})
    return counts


def _count(facts: DIJobFacts, task: Task, replicas: Sequence[DIReplicaState], phase: KindPhase) -> TaskCounts:
    before = facts.job.status.replica_statuses.get(task.title, TaskCounts())
    active = [p for p in replicas if p.live and p.pod is not None and pod_state.pod_phase(p.pod) == "Running"]
    # A job that wants no replicas now still remembers which of them succeeded.
    completed = [p.desired.index for p in replicas if p.completed] if facts.replicas else before.completed
    failed = sum(replica.failed for replica in replicas)
    return TaskCounts(
        desired=len(replicas),
        active=0 if phase.final else len(active),
        ready=0 if phase.final else sum(replica.ready for replica in replicas),
        succeeded=len(completed),
        # Failed pods still count after they are cleaned up.
        failed=max(failed, before.failed) if phase.final else failed,
        completed=completed,
        ranks=[p.desired.rank for p in replicas] if facts.replicas else before.ranks,
        label_selector=pods.pod_selector(facts.job, task),
    )


def _phases(facts: DIJobFacts) -> dict[str, dict[str, int]]:
    phase_counts: dict[str, dict[str, int]] = {task.title: {} for task in facts.job.spec.tasks}
    for pod in facts.pods:
        _count_phase(phase_counts, pod)
    return phase_counts


def _count_phase(phase_counts: dict[str, dict[str, int]], pod: Manifest) -> None:
    counts = phase_counts.setdefault(manifests.get_label(pod, pods.TASK_LABEL), {})
    phase = pod_state.pod_phase(pod)
    counts[phase] = counts.get(phase, 0) + 1
