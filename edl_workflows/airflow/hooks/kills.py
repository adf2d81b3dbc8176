"""What a killed task ends, in its worker or in the triggerer: what it created and, if its run has ended, too,
what the tasks of the run left to the run.

A run that exceeds its ``dagrun_timeout``, or is deleted, runs no teardown. A task that is killed with it is
the last one that knows of the run's jobs.
"""

from typing import TYPE_CHECKING, Any, cast

from edl_workflows.airflow.hooks import lineage
from edl_workflows.airflow.hooks.task_owner import TaskOwner
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
    _end_jobs_of_ended_run(cluster, TaskOwner.of(ti, hook.installation), handle.namespace, notify)
    return done


def _end_jobs_of_ended_run(cluster: Cluster, owner: TaskOwner, namespace: str, notify: Notify) -> None:
    """End the objects that tasks of this run created without waiting for them, each by its own
    ``on_kill_action``, if the run has failed or was deleted: no teardown will run."""
    state = run_state(owner.dag_id, owner.run_id)
    if state in LIVE_RUNS or state == "success":
        return  # a teardown follows, or the objects outlive a run that succeeded
    for owned in ownership.list_owned(cluster, namespace, owner.run.removesuffix("/")):
        action = cast("ownership.CancelAction", owned.on_cancel)
        if owned.lifetime != "run" or action not in ("delete", "suspend"):
            continue
        if ownership.cancel_object(cluster, owned.handle, action):
            notify(f"{owned.handle} is ended ({action}): its run is {state}, and no teardown follows")
            if action == "delete":
                lineage.emit_job_event(lineage.JobEvent.deleted(owned.handle))
