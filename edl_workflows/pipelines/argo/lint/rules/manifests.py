"""Rules about the manifests in resource templates: they parse and, for our kinds and Argo's, they are
valid."""

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.schemas.structural import Path, spell_path
from edl_workflows.pipelines.argo.api import GROUP
from edl_workflows.pipelines.argo.lint import schema
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.schema import Placeholder, Schemas
from edl_workflows.pipelines.argo.lint.workflow import Spec, Template, as_mapping, as_text
from edl_workflows.pipelines.install.crds import crd_of_kind
from edl_workflows.pipelines.manifests.manifest import Loader, YamlError, read_yaml

NO_YAML = Rule(
    "manifest-yaml",
    Severity.ERROR,
    "A resource template's manifest is not valid YAML, or is not an object with apiVersion and kind.",
    "Correct the manifest. It must be one whole object.",
)
WRONG_MANIFEST = Rule(
    "manifest-schema",
    Severity.ERROR,
    "A resource template's manifest of one of our kinds or of Argo's kinds has a field that the kind "
    "does not have, lacks a required field, or has a value of the wrong type.",
    "Correct the field.",
)
RULES = (NO_YAML, WRONG_MANIFEST)

_TAG = re.compile(r"\{\{(?:(?!\{\{).)*?\}\}", re.DOTALL)
_MARK = "zzplaceholder{}zz"
_MARKED = re.compile(r"zzplaceholder(\d+)zz")


@dataclass(frozen=True)
class ResourceObject:
    """The object that a resource template's manifest creates or changes.

    Attributes:
        group: API group; empty for the core group or if unknown.
        kind: as in the manifest.
        name: with its placeholders; empty if it has none.
        generated: whether it has a generateName.
        namespace: with its placeholders; empty if it has none.
        value: the whole manifest; strings with placeholders are `Placeholder`.
    """

    group: str
    kind: str
    name: str
    generated: bool
    namespace: str
    value: Mapping[str, Any]


def resource_object(template: Template) -> ResourceObject | None:
    """The object in a template's manifest; None if there is no manifest or it cannot be parsed."""
    try:
        value = _read(as_text(template.part("resource").get("manifest")))
    except YamlError:
        return None
    if not isinstance(value, Mapping):
        return None
    metadata = as_mapping(value.get("metadata"))
    return ResourceObject(
        group=as_text(value.get("apiVersion")).rpartition("/")[0],
        kind=as_text(value.get("kind")),
        name=as_text(metadata.get("name")),
        generated=bool(metadata.get("generateName")),
        namespace=as_text(metadata.get("namespace")),
        value=value,
    )


class _Scalar(str):
    """The text of a scalar, and whether it was quoted or a block scalar."""

    quoted = False


class _StyledLoader(Loader):
    """Reads scalars as their texts, because quotes matter around placeholders."""

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        if not isinstance(node, yaml.ScalarNode):
            return super().construct_object(node, deep)
        scalar = _Scalar(node.value)
        scalar.quoted = bool(node.style)
        return scalar


@functools.lru_cache(maxsize=256)
def _read(manifest: str) -> Any:
    """Parse a manifest. As in Argo, placeholders are taken out before YAML is parsed; they are put back as
    values.

    Raises:
        YamlError: it is not YAML.
    """
    placeholders: list[str] = []

    def mark(match: re.Match[str]) -> str:
        placeholders.append(match[0])
        return _MARK.format(len(placeholders) - 1)

    parsed = list(read_yaml(_TAG.sub(mark, manifest), loader=_StyledLoader))
    if not parsed:
        raise YamlError("it is empty")
    return _restored(parsed[0].value, placeholders)


def _restored(value: Any, placeholders: list[str]) -> Any:
    if isinstance(value, dict):
        return {_unmarked(key, placeholders): _restored(child, placeholders) for key, child in value.items()}
    if isinstance(value, list):
        return [_restored(child, placeholders) for child in value]
    if not _MARKED.search(value):
        return str(value) if value.quoted else yaml.load(str(value) or "null", Loader)  # noqa: S506 - safe
    whole = bool(_MARKED.fullmatch(value.strip()))
    return Placeholder(_unmarked(value, placeholders), quoted=value.quoted, whole=whole)


def _unmarked(marked: str, placeholders: list[str]) -> str:
    return _MARKED.sub(lambda match: placeholders[int(match[1])], marked)


def _manifests(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        manifest = as_text(template.part("resource").get("manifest"))
        if not manifest or _TAG.fullmatch(manifest.strip()):
            continue  # the whole manifest is a parameter
        path: Path = (*template.path, "resource", "manifest")
        action = as_text(template.part("resource").get("action"))
        try:
            value = _read(manifest)
        except YamlError as error:
            at = f" in line {error.line} of it" if error.line else ""
            yield NO_YAML.at(path, f"the manifest of {template} can't be read: {error}{at}")
            continue
        if action in ("create", "apply", "replace"):
            yield from _object(template, value, path)


def _object(template: Template, value: Any, path: Path) -> Iterator[Finding]:
    if not isinstance(value, Mapping):
        yield NO_YAML.at(path, f"the manifest of {template} is not a map")
        return
    for field in ("apiVersion", "kind"):
        if not as_text(value.get(field)):
            yield NO_YAML.at(path, f"the manifest of {template} has no {field}")
    schemas = _schemas(as_text(value.get("apiVersion")), as_text(value.get("kind")))
    if schemas is None:
        return
    for finding in schemas.check_object(value):
        rule = finding.rule if finding.rule is schema.QUOTED_NUMBER else WRONG_MANIFEST
        yield rule.at(path, f"{value['kind']} {spell_path(finding.path)}: {finding.message}", finding.remedy)


def _schemas(version: str, kind: str) -> Schemas | None:
    if version.startswith(f"{GROUP}/"):
        return schema.load_schemas() if kind in schema.load_schemas().kinds else None
    return _ours().get((version, kind))


@functools.cache
def _ours() -> Mapping[tuple[str, str], Schemas]:
    """The definitions of our own kinds, by apiVersion and kind."""
    schemas = {}
    for kind in KINDS:
        definition = crd_of_kind(kind)["spec"]
        for version in definition["versions"]:
            key = (f"{definition['group']}/{version['name']}", kind.name)
            schemas[key] = Schemas("", {kind.name: version["schema"]["openAPIV3Schema"]})
    return schemas


CHECKS = (_manifests,)
