"""Whether a job is queued: it has not run yet, because it waits for pods, for quota or for its turn. Pure."""

from edl_workflows.core.exceptions import QueueTimeoutError
from edl_workflows.core.jobs.view import JobView
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.job_log import describe_state, describe_unobserved, is_unobserved
from edl_workflows.pipelines.waiting.observed import ObservedObject
from edl_workflows.pipelines.waiting.results import Failed


def is_queued(seen: ObservedObject) -> bool:
    """Whether the job has not run yet. This holds also for a job that does not exist yet. A ScalePlan is
    never queued."""
    return seen is None or (isinstance(seen, JobView) and not seen.has_run and not seen.phase.final)


def fail_queued(handle: Handle, seen: ObservedObject) -> Failed:
    """The failure of a job that is still queued when its ``queue_timeout`` has passed. The error says what
    the job is waiting for."""
    if seen is None:
        state = "does not exist yet"
    else:
        state = describe_unobserved() if is_unobserved(seen) else describe_state(seen)
    return Failed(QueueTimeoutError(f"{handle} has not begun to run within its queue_timeout: it {state}"))
