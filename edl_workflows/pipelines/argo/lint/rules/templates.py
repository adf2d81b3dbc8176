"""Rules about a single template: its type, its names, the settings of its type."""

from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint import schema
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.workflow import (
    AGENT_TYPES,
    COMPOSITE,
    POD_TYPES,
    TYPES,
    Spec,
    Template,
    as_mapping,
    as_mappings,
    as_text,
    has_tag,
)

NO_TYPE = Rule(
    "no-template-type",
    Severity.ERROR,
    "A template has no type, so there is nothing to run.",
    f"Add one of {', '.join(TYPES)}; templateDefaults can't set the type.",
)
DUPLICATE_NAME = Rule(
    "duplicate-name",
    Severity.ERROR,
    "Two templates, steps, tasks, parameters or artifacts of one list have the same name.",
    "Rename one of them.",
)
NO_IMAGE = Rule(
    "no-image",
    Severity.ERROR,
    "A container or script has no image.",
    "Set image here or in templateDefaults.",
)
RESERVED_CONTAINER = Rule(
    "reserved-container",
    Severity.ERROR,
    "A container has a name that Argo reserves: wait, supervisor, artifact-plugin-….",
    "Rename the container.",
)
LEAF_PARALLELISM = Rule(
    "leaf-parallelism",
    Severity.ERROR,
    "A template that is neither steps nor dag has `parallelism`.",
    "Set parallelism on the steps or dag template, or on the workflow.",
)
POD_SETTING = Rule(
    "pod-setting",
    Severity.ERROR,
    "A template that creates no pod has `resourceClaims` or `podResources`.",
    "Remove the field.",
)
RULES = (NO_TYPE, DUPLICATE_NAME, NO_IMAGE, RESERVED_CONTAINER, LEAF_PARALLELISM, POD_SETTING)


def _types(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        if not template.types:
            yield NO_TYPE.at(template.path, f"{template} has no type")


def _names(spec: Spec) -> Iterator[Finding]:
    yield from _unique([(template.path, template.body) for template in spec.named], named=True)
    yield from _values(spec.body.get("arguments"), (*spec.path, "arguments"))
    for template in spec.templates:
        for side in ("inputs", "outputs"):
            yield from _values(template.body.get(side), (*template.path, side))
        yield from _unique([(call.path, call.body) for call in template.calls], named=True)
        for call in template.calls:
            yield from _values(call.body.get("arguments"), (*call.path, "arguments"))


def _values(value: Any, path: Path) -> Iterator[Finding]:
    for kind in ("parameters", "artifacts"):
        yield from _unique(
            [((*path, kind, index), entry) for index, entry in as_mappings(as_mapping(value).get(kind))]
        )


def _unique(entries: list[tuple[Path, Mapping[str, Any]]], *, named: bool = False) -> Iterator[Finding]:
    """Duplicate names; with `named` also missing names, which Argo's definitions accept."""
    seen: set[str] = set()
    for path, entry in entries:
        name, at = as_text(entry.get("name")), (*path, "name")
        if named and "name" not in entry:
            yield schema.MISSING_FIELD.at(at, "name is required here")
        if name and name in seen:
            yield DUPLICATE_NAME.at(at, f"{name!r} is in this list twice")
        seen.add(name)


def _containers(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        for kind in ("container", "script"):
            if template.type == kind:
                default = as_mapping(template.defaults.get(kind)).get("image")
                if not as_text(template.part(kind).get("image")) and not default:
                    yield NO_IMAGE.at((*template.path, kind, "image"), f"{template} has no image")
        inside = as_mappings(template.part("containerSet").get("containers"))
        for field, entries in (
            ("sidecars", as_mappings(template.body.get("sidecars"))),
            ("containerSet", inside),
        ):
            for index, entry in entries:
                yield from _reserved(template, field, index, as_text(entry.get("name")))


def _reserved(template: Template, field: str, index: int, name: str) -> Iterator[Finding]:
    if name in ("wait", "supervisor") or name.startswith("artifact-plugin-"):
        inner: Path = ("containers", index) if field == "containerSet" else (index,)
        yield RESERVED_CONTAINER.at((*template.path, field, *inner, "name"), f"{name!r} is reserved for Argo")


def _settings(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        if not template.type or has_tag(template.type):
            continue
        if template.body.get("parallelism") is not None and template.type not in COMPOSITE:
            yield LEAF_PARALLELISM.at((*template.path, "parallelism"), f"{template} is a {template.type}")
        refusing = {
            "resourceClaims": template.type not in POD_TYPES,
            "podResources": template.type in AGENT_TYPES,
        }
        for field, refused in refusing.items():
            if refused and template.body.get(field):
                yield POD_SETTING.at(
                    (*template.path, field), f"{template} is a {template.type}, which creates no pod"
                )


CHECKS = (_types, _names, _containers, _settings)
