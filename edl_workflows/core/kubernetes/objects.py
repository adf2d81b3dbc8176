"""What all kinds' models share: the base classes, metadata, conditions, quantities and parsing with good
errors.
"""

import contextlib
import difflib
import functools
import math
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    JsonValue,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    field_validator,
)
from pydantic.alias_generators import to_camel
from pydantic_core import ErrorDetails

from edl_workflows.core.exceptions import ManifestError, Problem


class Model(BaseModel):
    """Base of everything in a custom resource: camelCase in manifests, immutable, no unknown fields."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, extra="forbid", frozen=True, use_enum_values=False
    )

    def to_dict(self, fields: set[str] | None = None) -> dict[str, Any]:
        """The value as in a manifest: camelCase, without None; of all fields, or of these."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True, include=fields)


class FieldErrors(ValueError):  # noqa: N818 - several errors, as pydantic's own names
    """What a validator over several fields raises: each problem with its path below the validated object."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(str(problem) for problem in self.problems))


def raise_problems(problems: Sequence[Problem]) -> None:
    """End a validator over several fields.

    Raises:
        FieldErrors: there are problems.
    """
    if problems:
        raise FieldErrors(problems)


def cel_rules(*pairs: tuple[str, str]) -> ConfigDict:
    """Config of a model with rules over several fields: (CEL expression, message), for the CRD's schema.

    Each rule repeats in CEL what a validator of the model checks in Python, or checks a transition, which
    only the API server can.
    """
    validations: list[JsonValue] = [{"rule": rule, "message": message} for rule, message in pairs]
    return ConfigDict(json_schema_extra={"x-kubernetes-validations": validations})


def job_name_rules(
    limit: int, *, added: str = "pods", letter_first: bool = True
) -> tuple[tuple[str, str], ...]:
    """The rules of `cel_rules` for the name of a job.

    Args:
        limit: the most characters of a name.
        added: which objects have names made by extending the job's name.
        letter_first: whether it must begin with a letter; otherwise a digit may be first.
    """
    first, how = ("a-z", ", beginning with a letter") if letter_first else ("a-z0-9", "")
    return (
        (
            f"size(self.metadata.name) <= {limit}",
            f"metadata.name: at most {limit} characters: the names of the job's {added} add to it",
        ),
        (
            f"self.metadata.name.matches('^[{first}]([-a-z0-9]*[a-z0-9])?$')",
            f"metadata.name: must be lower-case letters, digits and '-'{how}",
        ),
    )


NO_PHASE = "!has(oldSelf.status) || !has(oldSelf.status.phase)"
"""CEL: the object had no phase yet."""
_SAME_PHASE = "has(self.status) && has(self.status.phase) && self.status.phase == oldSelf.status.phase"


def final_phases_rule(succeeded: str, failed: str) -> tuple[str, str]:
    """CEL: final phases never change. The arguments are the two phases in the kind's spelling."""
    rule = f"{NO_PHASE} || !(oldSelf.status.phase in ['{succeeded}', '{failed}']) || {_SAME_PHASE}"
    return rule, f"phases {succeeded} and {failed} are final"


FINAL_PHASES = final_phases_rule("Succeeded", "Failed")

DNS_LABEL = re.compile(r"^[a-z]([-a-z0-9]*[a-z0-9])?\Z")
"""Names of services (RFC 1035), which the names of jobs become part of."""


class Status(Model):
    """Base of what controllers write. Read leniently: an older reader meets the fields of a newer writer."""

    model_config = ConfigDict(extra="ignore")

    def stored(self, fields: set[str] | None = None) -> dict[str, Any]:
        """The status as it is stored: without the defaults of absent fields; all fields, or these."""
        return self.model_dump(
            mode="json", by_alias=True, exclude_none=True, exclude_unset=True, include=fields
        )


_QUANTITY = re.compile(
    r"^([+-]?\d+(?:\.\d*)?|[+-]?\.\d+)(?:([eE][+-]?\d+)|([numkMGTPE]|[KMGTPE]i))?\Z", re.ASCII
)
_SUFFIXES = {
    "n": 1e-9, "u": 1e-6, "m": 1e-3, "": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": 2.0**10, "Mi": 2.0**20, "Gi": 2.0**30, "Ti": 2.0**40, "Pi": 2.0**50, "Ei": 2.0**60,
}  # fmt: skip


def parse_quantity(text: str) -> float:
    """Value of a Kubernetes quantity (``500m`` → 0.5, ``1Gi`` → 1073741824.0).

    Raises:
        ValueError: it is no quantity.
    """
    match = _QUANTITY.match(text)
    if match is None:
        raise ValueError(f"{text!r} is not a Kubernetes quantity such as '500m', '2' or '4Gi'")
    number, exponent, suffix = match.groups()
    value = float(number + (exponent or "")) * _SUFFIXES[suffix or ""]
    if not math.isfinite(value):
        raise ValueError(f"{text!r} is larger than any quantity can be")
    return value


def _as_quantity(value: object) -> object:
    # Users write `cpu: 4`, and the API server accepts it for a quantity.
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def _check_quantity(text: str) -> str:
    if parse_quantity(text) < 0:
        raise ValueError(f"{text!r} is negative")
    return text


Quantity = Annotated[
    str,
    BeforeValidator(_as_quantity),
    AfterValidator(_check_quantity),
    Field(json_schema_extra={"x-kubernetes-int-or-string": True}),
]
"""A non-negative Kubernetes quantity, kept as the user wrote it."""

Count = Annotated[int, Field(ge=0, le=10_000)]
"""Nodes of a role."""

TimeToLive = Annotated[int, Field(ge=0, le=2**31 - 1)]
"""Seconds for which a finished job stays; 32 bits, as in a Kubernetes Job."""

_OPEN: dict[str, Any] = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_STRINGS = {"type": "object", "additionalProperties": {"type": "string"}}
_TEMPLATE_METADATA = _OPEN | {"properties": {"labels": _STRINGS, "annotations": _STRINGS}}
_TEXTS = {"type": "array", "items": {"type": "string"}}
_VARIABLE = _OPEN | {
    "required": ["name"],
    "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
}
_CONTAINER = _OPEN | {
    "required": ["name"],
    "properties": {
        "name": {"type": "string", "maxLength": 63},
        "image": {"type": "string", "maxLength": 1024},
        "command": _TEXTS,
        "args": _TEXTS,
        "env": {"type": "array", "items": _VARIABLE},
    },
}
_WHOLE_CONTAINER = _CONTAINER | {"required": ["name", "image"]}
_CONTAINERS = {"type": "array", "maxItems": 100, "items": _CONTAINER}
_WHOLE_CONTAINERS = {"type": "array", "minItems": 1, "maxItems": 100, "items": _WHOLE_CONTAINER}


def _template_schema(spec: dict[str, Any]) -> dict[str, Any]:
    return _OPEN | {"properties": {"metadata": _TEMPLATE_METADATA, "spec": _OPEN | spec}}


PodTemplate = Annotated[
    dict[str, Any],
    Field(json_schema_extra=_template_schema({"properties": {"containers": _CONTAINERS}})),
]
"""A core/v1 PodTemplateSpec, whose containers and images the controller may have of its own. Its schema has
the parts that users often get wrong; `core.jobs.validation` knows the types of all fields.
"""
WholePodTemplate = Annotated[
    dict[str, Any],
    Field(
        json_schema_extra=_template_schema(
            {"required": ["containers"], "properties": {"containers": _WHOLE_CONTAINERS}}
        )
    ),
]
"""A `PodTemplate` with at least one container, each with an image."""


class OwnerReference(Model):
    """Who owns an object; with it, the garbage collector's rule."""

    model_config = ConfigDict(extra="allow")
    api_version: str
    kind: str
    name: str
    uid: str
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class Metadata(Model):
    """ObjectMeta. Fields that we don't use pass through untouched."""

    model_config = ConfigDict(extra="allow")
    name: str = ""
    generate_name: str | None = None
    namespace: str | None = None
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    annotations: dict[str, str] = Field(default_factory=dict)
    owner_references: list[OwnerReference] = Field(default_factory=list)
    finalizers: list[str] = Field(default_factory=list)

    @field_validator("labels", "annotations", "owner_references", "finalizers", mode="before")
    @classmethod
    def _null_is_empty(cls, value: object, info: ValidationInfo) -> object:
        """``labels:`` without a value is accepted, as by the API server."""
        empty: dict[str, str] | list[str] = {} if info.field_name in ("labels", "annotations") else []
        return empty if value is None else value


class Condition(Status):
    """One condition of a status, as apimachinery's ``metav1.Condition``."""

    type: str
    status: Literal["True", "False", "Unknown"]
    reason: str = ""
    message: str = ""
    last_update_time: datetime | None = None
    last_transition_time: datetime | None = None


def set_condition(conditions: Sequence[Condition], new: Condition, now: datetime) -> list[Condition]:
    """Put `new` among `conditions`: one per type, times kept when nothing changed, newest last.

    Returns:
        A new list; equal to the old one if the condition already says the same.
    """
    old = next((c for c in conditions if c.type == new.type), None)
    if old and (old.status, old.reason, old.message) == (new.status, new.reason, new.message):
        return list(conditions)
    moved = now if old is None or old.status != new.status else old.last_transition_time
    stamped = new.model_copy(update={"last_update_time": now, "last_transition_time": moved})
    return [c for c in conditions if c.type != new.type] + [stamped]


class Resource(Model):
    """Base of a custom resource: identity, and parsing that names every wrong field."""

    api_version: str
    kind: str
    metadata: Metadata

    @property
    def key(self) -> str:
        """``namespace/name``, for messages and maps."""
        return f"{self.metadata.namespace or 'default'}/{self.metadata.name}"

    @classmethod
    def parse(cls, manifest: Mapping[str, Any]) -> Self:
        """Read and validate a manifest.

        Raises:
            ManifestError: with each problem's field path, and the nearest valid name for an unknown field.
        """
        try:
            return cls.model_validate(manifest)
        except ValidationError as error:
            problems = [problem for e in error.errors() for problem in _problems(cls, e)]
            raise ManifestError(_subject(cls, manifest), problems) from None  # it has pydantic's messages

    @classmethod
    def read_stored(cls, manifest: Mapping[str, Any]) -> tuple[Self, ManifestError | None]:
        """Read an object that an API server has admitted, even if this package rejects its spec.

        Returns:
            The object, and its problems or None. An invalid object has its metadata and those fields of spec
            and status that are valid by themselves.
        """
        try:
            return cls.parse(manifest), None
        except ManifestError as error:
            values: dict[str, Any] = {
                "api_version": manifest.get("apiVersion", ""),
                "kind": manifest.get("kind", cls.__name__),
                "metadata": Metadata.model_validate(manifest["metadata"]),
            }
            for name in ("spec", "status"):
                values[name] = _salvaged(cls.model_fields[name].annotation, manifest.get(name))
            return cast("Self", cls.model_construct(**values)), error


def _salvaged(model: Any, value: Any) -> BaseModel:
    """A model with only the fields that are valid by themselves. Validators over several fields are not
    run."""
    assert isinstance(model, type), "specs and statuses are models"
    assert issubclass(model, BaseModel), "specs and statuses are models"
    given = value if isinstance(value, Mapping) else {}
    try:
        return model.model_validate(given)
    except ValidationError:
        pass
    valid: dict[str, Any] = {}
    for name, (key, adapter) in _field_readers(model).items():
        with contextlib.suppress(ValidationError):
            if key in given or name in given:
                valid[name] = adapter.validate_python(given.get(key, given.get(name)))
    return model.model_construct(**valid)


@functools.cache
def _field_readers(model: type[BaseModel]) -> Mapping[str, tuple[str, TypeAdapter[Any]]]:
    """For each field, its name in manifests and its validator."""
    readers: dict[str, tuple[str, TypeAdapter[Any]]] = {}
    for name, field in model.model_fields.items():
        kind: Any = field.annotation
        constrained: Any = Annotated[(kind, *field.metadata)] if field.metadata else kind
        readers[name] = (field.alias or name, TypeAdapter(constrained))
    return readers


def _subject(cls: type[Resource], manifest: Mapping[str, Any]) -> str:
    metadata = manifest.get("metadata")
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    if not name:
        return cls.__name__
    return f"{cls.__name__} {name if isinstance(name, str) and name.isprintable() else repr(name)}"


def _problems(cls: type[BaseModel], error: ErrorDetails) -> list[Problem]:
    raised = error.get("ctx", {}).get("error")
    if isinstance(raised, FieldErrors):
        return [Problem(_path(*error["loc"], problem.path), problem.message) for problem in raised.problems]
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = f"unknown field{_suggestion(cls, error['loc'])}"
    elif error["type"] == "missing":
        message = "required field is missing"
    elif not isinstance(error.get("input"), Mapping | list | BaseModel | None):
        message = f"{message} (got {error['input']!r})"
    return [Problem(_path(*error["loc"]), message)]


def _path(*parts: int | str) -> str:
    # For an error in a map's key, pydantic appends "[key]" to the path, after the key itself.
    return ".".join(str(part) for part in parts if part not in ("", "[key]"))


def _suggestion(cls: type[BaseModel], loc: tuple[int | str, ...]) -> str:
    model = cls
    for part in loc[:-1]:
        submodel = _model_at(model, part)
        if submodel is None:
            return ""
        model = submodel
    names = [field.alias or name for name, field in model.model_fields.items()]
    near = difflib.get_close_matches(str(loc[-1]), names, n=1, cutoff=0.5)
    return f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(sorted(names))}"


def _model_at(model: type[BaseModel], part: int | str) -> type[BaseModel] | None:
    """The model at `part`: a field's model, or, for a key of a map or an index of a list, the same model."""
    for name, field in model.model_fields.items():
        if part in (name, field.alias):
            return next(iter(_models_in(field.annotation)), None)
    return model  # a key of a map or an index of a list: its values' model was found with the field


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [m for arg in getattr(annotation, "__args__", ()) for m in _models_in(arg)]
