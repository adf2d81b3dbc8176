"""Decides which jobs and plans of an Airflow installation no task waits for any more, from the states in
Airflow's API server.

A worker that was killed, or a trigger that no triggerer runs, can't cancel what its task created. The owner
annotation of each object names the task instance, and Airflow knows whether that instance is still alive.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import cast, get_args

from edl_workflows.airflow.hooks.task_owner import TaskOwner, engine_of
from edl_workflows.airflow.hooks.task_state import DELETED, ENDED_STATES, LIVE_RUNS, run_state, task_states
from edl_workflows.pipelines.waiting.ownership import CancelAction, OwnedObject, list_owned
from edl_workflows.runtime.kube.connect import Cluster

RUNS_A_REQUEST = 50
"""Runs per request, limited because their ids are part of the request's URL."""


Recorded = Callable[[TaskOwner], str]
"""Returns the uid of the object that a task instance noted in this Airflow; "" if it noted none."""


class OwnerVerdict(StrEnum):
    """Whether a task of the installation waits for an object."""

    AWAITED = "awaited"
    KEPT = "kept"
    """No task waits for it, but it must continue."""
    UNCLEAR = "unclear"
    """It is unknown whether a task waits for it, or what to do with it. It is left alone."""
    ORPHANED = "orphaned"


@dataclass(frozen=True)
class OwnerJudgement:
    """What was found about one object.

    Attributes:
        owned: the object.
        verdict: the verdict.
        reason: the reason, for users.
    """

    owned: OwnedObject
    verdict: OwnerVerdict
    reason: str

    @property
    def action(self) -> CancelAction:
        """What to do with the object if it is an orphan."""
        return cast("CancelAction", self.owned.on_cancel)

    @property
    def gone_since(self) -> datetime | None:
        """The time at which the object was first found to be an orphan; None if it was not found to be one
        before."""
        try:
            since = datetime.fromisoformat(self.owned.gone)
        except ValueError:
            return None
        return since if since.tzinfo is not None else None

    def due(self, now: datetime, grace: timedelta) -> bool:
        """Whether it is an orphan, and has been one for as long as the grace time."""
        since = self.gone_since
        return self.verdict is OwnerVerdict.ORPHANED and since is not None and now - since >= grace


def noted_time(now: datetime) -> str:
    """The text that records this time on an orphan."""
    return now.astimezone(UTC).isoformat(timespec="seconds")


def judge_objects(
    cluster: Cluster, namespace: str, installation: str, recorded: Recorded
) -> list[OwnerJudgement]:
    """Judge each object in a namespace that tasks of this installation created and that has not ended.

    Args:
        cluster: the cluster.
        namespace: namespace of the objects.
        installation: its name; "" for an Airflow without one.
        recorded: finds what this Airflow's own records say about the creation of an object.
    """
    owned_objects = list_owned(cluster, namespace, engine_of(installation))
    # Read after the objects were listed. A task that began later has created none of these objects, so it
    # does not matter here.
    states = dict(
        _states({owner for owned in owned_objects if (owner := TaskOwner.parse(owned.handle.owner))})
    )
    runs: dict[tuple[str, str], str] = {}
    judgements = []
    for owned in owned_objects:
        owner = TaskOwner.parse(owned.handle.owner)
        if owner is None:
            judgements.append(OwnerJudgement(owned, OwnerVerdict.UNCLEAR, "its mark names no task instance"))
            continue
        state, run = states[owner], ""
        if owned.lifetime == "run" and state in ENDED_STATES:
            key = (owner.dag_id, owner.run_id)
            run = runs.get(key) or runs.setdefault(key, run_state(*key))
        created_here = not installation and state in ENDED_STATES and recorded(owner) == owned.handle.uid
        judgements.append(judge_object(owned, owner, state, run, created_here=created_here))
    return judgements


def _states(owners: Iterable[TaskOwner]) -> Iterator[tuple[TaskOwner, str | None]]:
    tasks: defaultdict[tuple[str, str], list[TaskOwner]] = defaultdict(list)
    for owner in owners:
        tasks[owner.dag_id, owner.task_id].append(owner)
    for (dag_id, task_id), instances in tasks.items():
        for start in range(0, len(instances), RUNS_A_REQUEST):
            some = instances[start : start + RUNS_A_REQUEST]
            answer = task_states(dag_id, task_id, {owner.run_id for owner in some})
            for owner in some:
                yield owner, answer.get(owner.run_id, {}).get(owner.map_index, DELETED)


def judge_object(
    owned: OwnedObject, owner: TaskOwner, state: str | None, run: str, *, created_here: bool = False
) -> OwnerJudgement:
    """Judge an object by the state of its task or, if the task did not wait for it, also by the state of the
    task's run.

    Args:
        owned: the object.
        owner: its task instance.
        state: the state that `hooks.task_state.task_state` returned.
        run: the state of the run, needed for an object that belongs to the run.
        created_here: whether this Airflow's records show that it created this very object.
    """

    def judged(verdict: OwnerVerdict, reason: str) -> OwnerJudgement:
        return OwnerJudgement(owned, verdict, reason)

    if state not in ENDED_STATES:
        return judged(OwnerVerdict.AWAITED, f"its task is {state or 'cleared'}")
    of_run = owned.lifetime == "run"
    if of_run and run in LIVE_RUNS:
        return judged(OwnerVerdict.AWAITED, f"its task did not wait for it, and its run is {run}")
    if owned.on_cancel == "keep":
        return judged(OwnerVerdict.KEPT, "it was made with on_kill_action=keep")
    if of_run and run == "success":
        return judged(OwnerVerdict.KEPT, "its task did not wait for it, and its run succeeded")
    if owned.on_cancel not in get_args(CancelAction):
        reason = f"{owned.on_cancel!r} is no action" if owned.on_cancel else "it was made by an older version"
        return judged(OwnerVerdict.UNCLEAR, f"it does not say what shall become of it: {reason}")
    if owned.on_cancel == "suspend" and owned.suspended:
        return judged(OwnerVerdict.KEPT, "it is suspended, or was resumed by somebody afterwards")
    gone = f"its run is {run}" if of_run else f"its task is {state}"
    reason = "its run was deleted" if state == DELETED else gone
    if owner.engine == engine_of("") and not created_here:
        # Two Airflows with the same DAG have the same ids, even of scheduled runs. Without a name for each
        # Airflow, their owner annotations are equal; only the uid in a task's XCom tells them apart.
        unnamed = "another Airflow with the same DAG may have made it: name this one"
        reason = f"{reason} in this Airflow, but {unnamed} (edl_installation of the connection)"
        return judged(OwnerVerdict.UNCLEAR, reason)
    return judged(OwnerVerdict.ORPHANED, reason)
