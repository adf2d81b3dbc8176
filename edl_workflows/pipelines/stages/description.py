"""The description of a stage: its name, the fields of its request, and how it begins.

The drivers are made from it: the CLI command (`cli.jobs.stage_commands`), the Argo step
(`argo.templates.steps`), and the Airflow operator (`airflow.stage_operators`). Each field defines its
meaning, and how each driver offers it, only here.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import Field, ValidationError
from pydantic.fields import FieldInfo

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.kubernetes.objects import Model
from edl_workflows.pipelines.waiting.goals import Handle, IfFinished
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster


@dataclass(frozen=True)
class Argument:
    """How drivers offer a field of a request.

    Attributes:
        help: what the field means: the help text of the CLI.
        cli: whether the command takes it as an argument, as an option, or not at all.
        cli_default: default of the option; None for the default of the field.
        cli_name: the option, as ``--for``, or the name of the argument; "" for the name of the field.
        argo_help: description of the Argo parameter; "" for `help`.
        argo: whether it is an input of the Argo template; if not, the author of a workflow sets it in the
            builder.
        parameter: name of the Argo parameter; "" for the name of the field.
        default: default of the Argo parameter; None for the default of the field.
        operator: name of the Airflow operator's argument; "" for the name of the field.
        operator_optional: whether the operator finds a required value by itself if it is not given.
        operator_type: its annotation, without ``| str`` and ``| None``; "" for the one of the field's shape.
        templated: whether Airflow renders it as a template.
    """

    help: str
    cli: Literal["argument", "option"] | None = None
    cli_default: str | None = None
    cli_name: str = ""
    argo: bool = False
    argo_help: str = ""
    parameter: str = ""
    default: str | None = None
    operator: str = ""
    operator_optional: bool = False
    operator_type: str = ""
    templated: bool = False


JOB_NAME = Argument("The job's name.", cli="argument", cli_name="name", argo=True, templated=True)
ENDED_JOB = replace(JOB_NAME, operator_optional=True)
"""The name of a job that a teardown ends."""
JOB_KIND = Argument("The job's kind.", cli="option")
IF_FINISHED = Argument(
    "What to do if the job has succeeded too early for this: skip, fail or succeed.",
    cli="option",
    # A shell knows success and failure only.
    cli_default=IfFinished.FAIL,
    operator_type="WhenFinished",
)
IfFinishedField = Annotated[IfFinished, IF_FINISHED]
"""Type of the field ``if_finished`` of all changes of a job and of all waits: a job that succeeds while the
pipeline is still about to change it is no error by default."""


class StageRequest(Model):
    """Base of all requests.

    The docstring of the stage's Airflow operator is made of its docstring: the paragraphs after the first,
    and the attributes.
    """

    @classmethod
    def of(cls, values: dict[str, Any]) -> Self:
        """Validate the values that a caller gave.

        Raises:
            ManifestError: values are invalid; the error names each of them.
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
    """A request about an existing job.

    Attributes:
        name: name of the job, as ``submit.output["name"]``.
        namespace: namespace of the job; "" for the connection's.
        kind: kind of the job, as in its manifest.
    """

    name: Annotated[str, JOB_NAME] = Field(min_length=1)
    namespace: str = ""
    kind: Annotated[str, JOB_KIND] = "ElasticJob"


R = TypeVar("R", bound=StageRequest)


@dataclass(frozen=True)
class RequestField:
    """A field of a request that drivers offer.

    Attributes:
        name: name of the field.
        info: its type and default.
        argument: how drivers offer it.
    """

    name: str
    info: FieldInfo
    argument: Argument

    @property
    def required(self) -> bool:
        """Whether a caller must give it."""
        return self.info.is_required()

    @property
    def default(self) -> Any:
        """The value of a field that is not given."""
        return self.info.get_default(call_default_factory=True)

    @property
    def shape(self) -> Literal["integer", "list", "map", "text"]:
        """The form of a value that is given as text. Booleans count as text: pydantic parses them."""
        annotation: Any = self.info.annotation
        types = [annotation, *getattr(annotation, "__args__", ())]
        origins = [getattr(member, "__origin__", member) for member in types]
        if origins[0] in (tuple, list):
            return "list"
        if any(isinstance(origin, type) and issubclass(origin, dict | Model) for origin in origins[:1]):
            return "map"
        return "integer" if int in types else "text"


@dataclass(frozen=True)
class StageSpec(Generic[R]):
    """One stage.

    The handle that `begin` returns decides all that follows, in whichever process: `results.evaluate_goal`
    tells from the object's state whether its goal is reached, and `ownership.cancel_object` ends what the
    stage made.

    Attributes:
        name: name in the registry, on the command line and in Argo.
        summary: what the stage does, in one or two sentences: the help of its CLI command.
        request: type of its request.
        begin: starts the stage and returns what to wait for; it may be repeated after a crash at any point.
        waits: whether callers choose to wait for the goal, always wait, or have nothing to wait for.
        operator: name of its Airflow operator; "" if it has a sensor, or an operator written by hand.
    """

    name: str
    summary: str
    request: type[R]
    begin: Callable[[Cluster, R, StageIdentity], Handle]
    waits: Literal["optional", "always", "never"] = field(default="optional", kw_only=True)
    operator: str = field(default="", kw_only=True)

    def fields(self) -> Iterator[RequestField]:
        """The fields that drivers offer, in the order of their declaration."""
        for name, info in self.request.model_fields.items():
            for argument in info.metadata:
                if isinstance(argument, Argument):
                    yield RequestField(name, info, argument)
