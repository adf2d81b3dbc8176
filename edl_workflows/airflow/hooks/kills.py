"""What a killed task ends, in its worker or in the triggerer: what it created and, if its run has ended, too,
what the tasks of the run left to the run.

A run that exceeds its ``dagrun_timeout``, or is deleted, runs no teardown. A task that is killed with it is
the last one that knows of the run's jobs.
"""

from typing import TYPE_CHECKING, Any, cast

from edl_workflows.airflow.hooks import lineage
from edl_workflows.airflow.hooks.task_object import OBJECT_KEY, TaskObject
from edl_workflows.airflow.hooks.task_owner import TaskOwner, engine_of
from edl_workflows.airflow.hooks.task_state import ENDED_STATES, LIVE_RUNS, run_state, task_state
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import Notify
from edl_workflows.runtime.kube.connect import Cluster

if TYPE_CHECKING:
    from edl_workflows.airflow.hooks.elastic_job import ElasticJobHook


def cancel_if_killed(
    hook: "ElasticJobHook", ti: Any, handle: Handle, action: ownership.CancelAction, notify: Notify
) -> bool:
    """Cancel what the task created if a user or Airflow really killed it. Blocks.

    If the task is not killed, its next attempt continues with the same object, or another triggerer does.

    Args:
        hook: the connection.
        ti: the task instance.
        handle: handle of the task's stage.
        action: what to do with the object that the stage created.
        notify: called with lines for the task's log.

    Returns:
        Whether the object of the stage was cancelled.
    """
    state = task_state(ti)
    if state not in ENDED_STATES:
        notify(f"{handle} is left alone: its task is {state or 'cleared'}, not killed")
        return False
    cluster, done = hook.cluster(), False
    if action != "keep":
        done = ownership.cancel_object(cluster, handle, action)
        notify(f"{handle} {ownership.describe_cancellation(action, done=done)}")
    _end_jobs_of_ended_run(cluster, TaskOwner.of(ti, hook.installation), handle, notify)
    return done


def _end_jobs_of_ended_run(cluster: Cluster, owner: TaskOwner, awaited: Handle, notify: Notify) -> None:
    """End the objects that tasks of this run created without waiting for them, each by its own
    ``on_kill_action``, if the run has failed or was deleted: no teardown will run."""
    if not _has_failed(owner):
        return
    run = owner.run.removesuffix("/")
    jobs = [
        job for job in ownership.list_owned(cluster, awaited.namespace, run) if _is_left(job, owner, awaited)
    ]
    if not jobs or not _has_failed(owner):  # the run may have been cleared before the jobs were listed
        return
    for job in jobs:
        action = cast("ownership.CancelAction", job.on_cancel)
        if ownership.cancel_object(cluster, job.handle, action):
            notify(f"{job.handle} is ended ({action}): its run has ended, and no teardown follows")
            if action == "delete":
                lineage.emit_job_event(lineage.JobEvent.deleted(job.handle))


def _has_failed(owner: TaskOwner) -> bool:
    """Whether the run has failed or was deleted. In a live run a teardown follows, and jobs outlive a run
    that succeeded."""
    state = run_state(owner.dag_id, owner.run_id)
    return state not in LIVE_RUNS and state != "success"


def _is_left(job: ownership.OwnedObject, owner: TaskOwner, awaited: Handle) -> bool:
    """Whether a task of the run left a job to the run, and it may be ended. Two Airflows without names write
    the same annotations, so there the job must be the one that the killed task waits for, or one that this
    Airflow has noted."""
    creator = TaskOwner.parse(job.handle.owner)
    if creator is None or creator.run != owner.run:  # ids of runs may contain slashes
        return False
    if job.lifetime != "run" or job.on_cancel not in ("delete", "suspend"):
        return False
    is_awaited = (job.handle.kind, job.handle.name) == (awaited.kind, awaited.name)
    return is_awaited or creator.engine != engine_of("") or _noted_uid(creator) == job.handle.uid


def _noted_uid(creator: TaskOwner) -> str:
    """The uid of the object that a task instance noted in its XCom; "" if there is none."""
    from airflow.sdk.bases.xcom import BaseXCom

    noted = TaskObject.read(
        BaseXCom.get_one(
            key=OBJECT_KEY,
            dag_id=creator.dag_id,
            run_id=creator.run_id,
            task_id=creator.task_id,
            map_index=creator.map_index,
        )
    )
    return "" if noted is None else noted.uid
