"""Ids of jobs as they stand in the API's paths: ``namespace.name`` or ``namespace.name.generation``."""

import re
from dataclasses import dataclass
from typing import Self

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.di_job.model import DIJob
from edl_workflows.kube.resources import ObjectKey

_LABEL = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_NUMBER = re.compile(r"^[0-9]{1,10}\Z")
_SHOWN = 200
"""Characters of a wrong id that a message repeats."""


class JobIdError(InvalidError):
    """The id is malformed, or of another generation of the job."""


@dataclass(frozen=True)
class JobId:
    """One job.

    Attributes:
        generation: which `DIJobStatus.generation` the caller belongs to; None: it does not say.
    """

    namespace: str
    name: str
    generation: int | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The id in a path.

        Raises:
            JobIdError: it is malformed; in upstream's words.
        """
        parts = text.split(".")
        if len(parts) not in (2, 3) or not all(_LABEL.match(part) for part in parts[:2]):
            raise JobIdError(f"job id {text[:_SHOWN]!r} must be in namespace.name[.generation] format")
        if len(parts) == 2:
            return cls(parts[0], parts[1])
        if not _NUMBER.match(parts[2]):
            raise JobIdError(f"request generation {parts[2][:_SHOWN]!r} is not a valid number")
        return cls(parts[0], parts[1], int(parts[2]))

    @property
    def key(self) -> ObjectKey:
        """Where the job lives."""
        return ObjectKey(self.namespace, self.name)

    def check(self, job: DIJob) -> None:
        """Whether the caller belongs to the job as it is now.

        Raises:
            JobIdError: it belongs to an earlier generation; in upstream's words.
        """
        if self.generation is not None and self.generation != job.status.generation:
            raise JobIdError(
                f"request generation {self.generation} is not matched with job generation {job.status.generation}"
            )
