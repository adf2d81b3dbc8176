"""What the requests of all stages share. Each stage's own stands in its module."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Self, TypeVar

from pydantic import Field, ValidationError

from edl_workflows.exceptions import ManifestError, Problem
from edl_workflows.jobs.objects import Model
from edl_workflows.kube.connect import Cluster
from edl_workflows.stages.goals import Handle
from edl_workflows.stages.identity import StageIdentity


class StageRequest(Model):
    """Base of all requests."""

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Validate what a caller gave.

        Raises:
            ManifestError: with each wrong argument's name.
        """
        try:
            return cls.model_validate(values)
        except ValidationError as error:
            problems = [
                Problem(".".join(str(part) for part in e["loc"]), e["msg"].removeprefix("Value error, "))
                for e in error.errors()
            ]
            raise ManifestError(cls.__name__.removesuffix("Request"), problems) from error


class JobRequest(StageRequest):
    """A request about a job that is there.

    Attributes:
        name: the job's.
        namespace: default: the connection's.
        kind: as its manifest says.
    """

    name: str = Field(min_length=1)
    namespace: str = ""
    kind: str = "ElasticJob"


R = TypeVar("R", bound=StageRequest)


@dataclass(frozen=True)
class StageSpec(Generic[R]):
    """One stage.

    Attributes:
        name: as Argo's templates and the CLI name it.
        request: its request's type.
        begin: does what is to be done and returns what to wait for; may be repeated after a crash at any point.
    """

    name: str
    request: type[R]
    begin: Callable[[Cluster, R, StageIdentity], Handle]
