"""For each `EdlError`, an exception that also is an Airflow exception. Airflow decides about retries by its
own class; users' retry policies name ours.

An example of such a policy is ``RetryRule(JobFailedError, RetryAction.RETRY)``. Errors that a retry can't
correct (invalid input, a name that belongs to another owner) are AirflowFailExceptions, so the task fails at
once. Importing this module is cheap, because operators import it when a DAG file is parsed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from edl_workflows.airflow.hooks.airflow_versions import (
    AirflowException,
    AirflowFailException,
    AirflowSkipException,
)
from edl_workflows.core.exceptions import (
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


class AirflowEdlError(AirflowException, EdlError):
    """Any EdlError that has no class below."""


class AirflowInvalidError(AirflowFailException, InvalidError):
    """The operator's arguments or the manifest are wrong. Never retried."""


class AirflowConflictError(AirflowFailException, ConflictError):
    """An object of that name belongs to another owner. Never retried."""


class AirflowNotFoundError(AirflowException, NotFoundError):
    """The job is not there."""


class AirflowForbiddenError(AirflowException, ForbiddenError):
    """The cluster refused the connection's credentials or rights."""


class AirflowUnavailableError(AirflowException, UnavailableError):
    """The cluster can't be reached."""


class AirflowJobFailedError(AirflowException, JobFailedError):
    """The job ended in phase Failed. A retry of the submitting task creates a new job."""


class AirflowJobFailedForGoodError(AirflowFailException, JobFailedError):
    """The job of another task ended in phase Failed. Never retried: a retry would find the same job."""


class AirflowJobFinishedError(AirflowFailException, JobFinishedError):
    """The job succeeded before the task's change or wait (``if_finished="fail"``). Never retried."""


class AirflowStageSkipped(AirflowSkipException, JobFinishedError):  # noqa: N818 - no error for the user
    """The same with ``if_finished="skip"``: the task is skipped."""


class AirflowPlanFailedError(AirflowException, PlanFailedError):
    """The change was rolled back. A retry creates a new plan."""


class AirflowPlanFailedForGoodError(AirflowFailException, PlanFailedError):
    """The plan of another task failed. Never retried: a retry would find the same plan."""


class AirflowJobDisappearedError(AirflowException, JobDisappearedError):
    """Somebody deleted or replaced the object."""


class AirflowStageTimeoutError(AirflowException, StageTimeoutError):
    """The stage exceeded its time limit; what it had created was cancelled."""


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
    QueueTimeoutError: AirflowQueueTimeoutError,  # a subclass must come before its base class
    StageTimeoutError: AirflowStageTimeoutError,
}
_FOR_GOOD: dict[type[EdlError], type[EdlError]] = {
    JobFailedError: AirflowJobFailedForGoodError,
    PlanFailedError: AirflowPlanFailedForGoodError,
}
_BY_NAME = {ours.__name__: branch for ours, branch in _BRANCHES.items()}


def branch_name(error: EdlError) -> str:
    """The name of an error's class in our tree, as text for a trigger's event."""
    return next((ours.__name__ for ours in _BRANCHES if isinstance(error, ours)), EdlError.__name__)


def to_airflow(branch: str, message: str) -> EdlError:
    """The Airflow exception for a name that `branch_name` returned."""
    return _BY_NAME.get(branch, AirflowEdlError)(message)


def as_airflow(error: Exception) -> Exception:
    """Convert an error of ours to an Airflow exception; any other exception stays as it is."""
    if isinstance(error, EdlError) and not isinstance(error, AirflowException):
        return to_airflow(branch_name(error), str(error))
    return error


def fail_for_good(error: EdlError) -> EdlError:
    """The exception for an error of an object that another task created, which a retry of this task can't
    correct."""
    return next((final(str(error)) for ours, final in _FOR_GOOD.items() if isinstance(error, ours)), error)


@contextmanager
def raised_for_airflow() -> Iterator[None]:
    """Raise our errors as Airflow exceptions."""
    try:
        yield
    except AirflowException:
        raise
    except EdlError as error:
        raise as_airflow(error) from error
