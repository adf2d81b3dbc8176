"""The tree of all errors. A branch groups errors by what the caller can do about them.

::

    EdlError
    ├── InvalidError            the caller's input is wrong: correct it; a retry can't help
    │   ├── ManifestError       a manifest, with every problem and its field path
    │   └── NoClusterError      nothing says which cluster is meant
    ├── ConflictError           the object exists and belongs to another owner, or changed meanwhile
    │   └── AlreadyExistsError  an object of that name is there: adopt it if it is ours
    ├── NotFoundError           the object is not there
    ├── ForbiddenError          the API refused our credentials or rights
    ├── UnavailableError        a server can't be reached or is overloaded: retry later
    ├── JobFailedError          the job ended in phase Failed
    ├── JobFinishedError        the job succeeded before it could be changed or reached what was waited for
    ├── PlanFailedError         a ScalePlan ended in phase Failed; its job continues unchanged
    ├── JobDisappearedError     the job was deleted or replaced while a caller waited for it
    ├── StageTimeoutError       a stage's deadline passed
    │   └── QueueTimeoutError   a job did not begin to run in time: it still waits for pods or quota
    └── CheckpointError         a checkpoint is missing, torn or does not verify

Every message says what happened, where (field path, object) and what to do. Callers never see exceptions of
client libraries: `edl_workflows.runtime.kube` converts those of the Kubernetes client, and the agent those of
urllib3.
"""

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "AlreadyExistsError",
    "CheckpointError",
    "ConflictError",
    "EdlError",
    "ForbiddenError",
    "InvalidError",
    "JobDisappearedError",
    "JobFailedError",
    "JobFinishedError",
    "ManifestError",
    "NoClusterError",
    "NotFoundError",
    "PlanFailedError",
    "Problem",
    "QueueTimeoutError",
    "StageTimeoutError",
    "UnavailableError",
]


class EdlError(Exception):
    """Base class of all errors that this package raises on purpose."""


class InvalidError(EdlError):
    """The caller's input is wrong; the same call can never succeed."""


@dataclass(frozen=True)
class Problem:
    """One problem in a manifest.

    Attributes:
        path: the field path, such as ``spec.replicaSpecs.ps.replicas``; empty for the whole object.
        message: what is wrong, and what is valid instead.
    """

    path: str
    message: str

    def __str__(self) -> str:
        return f"{self.path}: {self.message}" if self.path else self.message


class ManifestError(InvalidError):
    """A manifest with one or more problems.

    Attributes:
        subject: the object, such as ``ElasticJob default/mnist``.
        problems: all of them, in the manifest's order.
    """

    def __init__(self, subject: str, problems: Sequence[Problem]) -> None:
        self.subject = subject
        self.problems = tuple(problems)
        super().__init__(f"{subject}: " + "; ".join(str(problem) for problem in self.problems))

    def __reduce__(self) -> tuple[type["ManifestError"], tuple[str, tuple[Problem, ...]]]:
        return type(self), (self.subject, self.problems)


class NoClusterError(InvalidError):
    """Nothing says which cluster is meant: neither an option nor a kubeconfig, and this is no pod."""


class ConflictError(EdlError):
    """The object exists and belongs to another owner, or it changed between read and write."""


class AlreadyExistsError(ConflictError):
    """An object of that name already exists. A caller that creates deterministic names adopts the object if
    it owns it."""


class NotFoundError(EdlError):
    """The object is not there."""


class ForbiddenError(EdlError):
    """The server refused our credentials or our rights."""


class UnavailableError(EdlError):
    """The server can't be reached, timed out or is overloaded; a later call may succeed."""


class JobFailedError(EdlError):
    """The job ended in phase Failed."""


class JobFinishedError(EdlError):
    """The job succeeded before it could be changed, or before it reached what a caller waited for."""


class PlanFailedError(EdlError):
    """A ScalePlan ended in phase Failed; what it had changed was rolled back."""


class JobDisappearedError(EdlError):
    """The job was deleted, or replaced by another of the same name, while a caller waited for it."""


class StageTimeoutError(EdlError):
    """A stage's deadline passed before its goal was reached."""


class QueueTimeoutError(StageTimeoutError):
    """A job did not begin to run in time; the message says what it waits for."""


class CheckpointError(EdlError):
    """A checkpoint is missing, torn or does not verify."""
