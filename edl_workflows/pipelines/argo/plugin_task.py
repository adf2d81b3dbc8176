"""The body of a plugin step below ``plugin.edl``: templates write it, the agent reads it.

Argo substitutes parameters into a template as text, so a body's numbers and maps arrive as text.
`PluginTask.parse` reads them.
"""

from collections.abc import Mapping
from typing import Any, Self

from pydantic import BaseModel, Field, JsonValue, ValidationError

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.kubernetes.objects import Model
from edl_workflows.pipelines.manifests import manifest
from edl_workflows.pipelines.stages.catalog import stage_of
from edl_workflows.pipelines.stages.description import StageRequest, StageSpec
from edl_workflows.pipelines.waiting.ownership import CancelAction

PLUGIN = "edl"
"""The key below ``plugin`` by which our tasks are told from those of others."""


class PluginTask(Model):
    """One plugin step.

    Attributes:
        stage: a stage's name, as ``submit``.
        request: the fields of that stage's request. A text for a field that is a map or a list is read as
            YAML; an empty text means that the field is not given.
        on_cancel: what to do with the object of the stage when the step is cancelled: the workflow was
            stopped, terminated or deleted, or the step's time-out has passed.
        wait: whether to wait for the stage's goal. If not, the step ends once the stage has begun.
    """

    stage: str
    request: dict[str, JsonValue] = Field(default_factory=dict)
    on_cancel: CancelAction = "delete"
    wait: bool = True

    @classmethod
    def parse(cls, body: Mapping[str, Any]) -> Self:
        """Read a step's body.

        Raises:
            ManifestError: with the path of each wrong field.
        """
        try:
            return cls.model_validate(body)
        except ValidationError as error:
            problems = [
                Problem(
                    ".".join(("plugin", PLUGIN, *(str(part) for part in details["loc"]))),
                    details["msg"].removeprefix("Value error, "),
                )
                for details in error.errors()
            ]
            raise ManifestError("the step's plugin body", problems) from error

    def stage_and_request(self) -> tuple[StageSpec[Any], StageRequest]:
        """The stage, and its validated request.

        Raises:
            InvalidError: there is no such stage, or a text is no YAML.
            ManifestError: the request is wrong.
        """
        stage = stage_of(self.stage)
        given = {name: value for name, value in self.request.items() if value != ""}
        return stage, stage.request.of({name: _read(stage, name, value) for name, value in given.items()})


def _read(stage: StageSpec[Any], name: str, value: JsonValue) -> Any:
    field = next((f for key, f in stage.request.model_fields.items() if name in (key, f.alias)), None)
    if not isinstance(value, str) or field is None or _takes_text(field.annotation):
        return value
    return manifest.parse_values(value, f"request.{name}")


def _takes_text(annotation: Any) -> bool:
    """Whether a text can be a value of this type as it stands: all but maps and lists (pydantic reads numbers
    from text)."""
    origin = getattr(annotation, "__origin__", annotation)
    is_map = isinstance(origin, type) and issubclass(origin, BaseModel)
    return not is_map and origin not in (dict, list, tuple)
