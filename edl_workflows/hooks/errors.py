"""Each `EdlError` as an Airflow exception of both trees: Airflow decides about retries by the one, users map
the other.

A retry policy names ours: ``RetryRule(JobFailedError, RetryAction.RETRY)``. What a retry can't change (wrong
input, a name that belongs to somebody else) is an AirflowFailException: the task fails at once.
Cheap to import: operators do at parse time.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from edl_workflows.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    JobDisappearedError,
    JobFailedError,
    JobFinishedError,
    NotFoundError,
    PlanFailedError,
    QueueTimeoutError,
    StageTimeoutError,
    UnavailableError,
)
from edl_workflows.hooks.airflow_versions import AirflowException, AirflowFailException, AirflowSkipException


class AirflowEdlError(AirflowException, EdlError):
    """Any other of our errors."""


class AirflowInvalidError(AirflowFailException, InvalidError):
    """The operator's arguments or the manifest are wrong. Never retried."""


class AirflowConflictError(AirflowFailException, ConflictError):
    """An object of that name belongs to somebody else. Never retried."""


class AirflowNotFoundError(AirflowException, NotFoundError):
    """The job is not there."""


class AirflowForbiddenError(AirflowException, ForbiddenError):
    """The cluster refused the connection's credentials or rights."""


class AirflowUnavailableError(AirflowException, UnavailableError):
    """The cluster can't be reached."""


class AirflowJobFailedError(AirflowException, JobFailedError):
    """The job ended in phase Failed. A retry of the submitting task makes a new one."""


class AirflowJobFailedForGoodError(AirflowFailException, JobFailedError):
    """The job of another task ended in phase Failed. Never retried: a retry would find the same job."""


class AirflowJobFinishedError(AirflowFailException, JobFinishedError):
    """The job succeeded before the task's change or wait (``if_finished="fail"``). Never retried."""


class AirflowStageSkipped(AirflowSkipException, JobFinishedError):  # noqa: N818 - no error for the user
    """The same with ``if_finished="skip"``: the task is skipped."""


class AirflowPlanFailedError(AirflowException, PlanFailedError):
    """The change was rolled back. A retry makes a new plan."""


class AirflowPlanFailedForGoodError(AirflowFailException, PlanFailedError):
    """The plan of another task failed. Never retried: a retry would find the same plan."""


class AirflowJobDisappearedError(AirflowException, JobDisappearedError):
    """Somebody deleted or replaced the object."""


class AirflowStageTimeoutError(AirflowException, StageTimeoutError):
    """The stage's time is up; what it had begun was cancelled."""


class AirflowQueueTimeoutError(AirflowStageTimeoutError, QueueTimeoutError):
    """The job did not begin to run within ``queue_timeout``."""


_BRANCHES: dict[type[EdlError], type[EdlError]] = {
    InvalidError: AirflowInvalidError,
    ConflictError: AirflowConflictError,
    NotFoundError: AirflowNotFoundError,
    ForbiddenError: AirflowForbiddenError,
    UnavailableError: AirflowUnavailableError,
    JobFailedError: AirflowJobFailedError,
    JobFinishedError: AirflowJobFinishedError,
    PlanFailedError: AirflowPlanFailedError,
    JobDisappearedError: AirflowJobDisappearedError,
    QueueTimeoutError: AirflowQueueTimeoutError,  # before the branch that it is on
    StageTimeoutError: AirflowStageTimeoutError,
}
_FOR_GOOD: dict[type[EdlError], type[EdlError]] = {
    JobFailedError: AirflowJobFailedForGoodError,
    PlanFailedError: AirflowPlanFailedForGoodError,
}
_BY_NAME = {ours.__name__: branch for ours, branch in _BRANCHES.items()}


def branch_name(error: EdlError) -> str:
    """The branch of our tree that an error is on, as text for a trigger's event."""
    return next((ours.__name__ for ours in _BRANCHES if isinstance(error, ours)), EdlError.__name__)


def to_airflow(branch: str, message: str) -> EdlError:
    """The exception of both trees for what `branch_name` named."""
    return _BY_NAME.get(branch, AirflowEdlError)(message)


def fail_for_good(error: EdlError) -> EdlError:
    """The exception for an error of what another task began: a retry of this task can't change it."""
    return next((final(str(error)) for ours, final in _FOR_GOOD.items() if isinstance(error, ours)), error)


@contextmanager
def raised_for_airflow() -> Iterator[None]:
    """Let Airflow see our errors as its own."""
    try:
        yield
    except AirflowException:
        raise
    except EdlError as error:
        raise to_airflow(branch_name(error), str(error)) from error
