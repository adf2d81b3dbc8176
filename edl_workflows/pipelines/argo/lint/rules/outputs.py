"""Rules about the inputs and outputs of a template: the sources of values, and the paths of artifacts."""

from collections.abc import Iterator, Mapping
from typing import Any

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.lint.findings import Finding, Rule, Severity
from edl_workflows.pipelines.argo.lint.workflow import (
    AGENT_TYPES,
    POD_TYPES,
    Spec,
    Template,
    as_mapping,
    as_text,
    has_container_main,
)

OUTPUT_SOURCE = Rule(
    "output-source",
    Severity.ERROR,
    "An output parameter has no source for its value, more than one, or one that templates of its type "
    "do not provide.",
    "Give it one: `value`, or one of valueFrom's path (container, script), jsonPath or jqFilter "
    "(resource), parameter or expression (steps, dag), supplied (plugin, suspend).",
)
ARTIFACT_PATH = Rule(
    "artifact-path",
    Severity.ERROR,
    "An input or output artifact of a template that runs a program has no `path`.",
    "Set the path at which the program finds or leaves the artifact.",
)
NO_MAIN = Rule(
    "no-main-container",
    Severity.ERROR,
    "A containerSet has input artifacts or outputs, but no container named `main`, to which they belong.",
    "Name the container main that reads the artifacts and writes the outputs.",
)
RULES = (OUTPUT_SOURCE, ARTIFACT_PATH, NO_MAIN)

_SOURCES = ("path", "jqFilter", "jsonPath", "parameter", "expression", "supplied")
_BY_TYPE: Mapping[str, tuple[str, ...]] = {
    "container": ("path",), "containerSet": ("path",), "script": ("path",),
    "resource": ("jqFilter", "jsonPath"),
    "steps": ("parameter", "expression"), "dag": ("parameter", "expression"), "plugin": ("supplied",),
    "suspend": ("supplied",), "data": _SOURCES, "http": _SOURCES,
}  # fmt: skip
"""The sources of an output for each type of template. Plugin and suspend templates only have supplied
values."""


def _sources(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        for index, output in template.outputs("parameters"):
            path: Path = (*template.path, "outputs", "parameters", index)
            if problem := _problem(template, output):
                name = as_text(output.get("name"))
                yield OUTPUT_SOURCE.at(path, f"output {name!r} of {template} {problem}", _remedy(template))


def _problem(template: Template, output: Mapping[str, Any]) -> str:
    source = as_mapping(output.get("valueFrom"))
    if output.get("value") is not None:
        return "has both value and valueFrom" if source else ""
    if output.get("valueFrom") is None:
        return "has neither value nor valueFrom"
    names = [name for name in _SOURCES if source.get(name) not in (None, "")]
    if len(names) != 1:
        return f"has {' and '.join(names)}" if names else "does not say where its value comes from"
    allowed = _BY_TYPE.get(template.type, _SOURCES)
    return "" if names[0] in allowed else f"has {names[0]}, which a {template.type} template does not provide"


def _remedy(template: Template) -> str:
    if template.type in AGENT_TYPES or template.type == "suspend":
        return "Write `valueFrom: {supplied: {}}`, with a `default` in case nothing is supplied."
    allowed = _BY_TYPE.get(template.type, _SOURCES)
    return f"Write `valueFrom` with {' or '.join(allowed)}, or a `value`."


def _artifacts(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        if template.type not in (*POD_TYPES, *AGENT_TYPES):
            continue
        for side, artifacts in (
            ("inputs", template.inputs("artifacts")),
            ("outputs", template.outputs("artifacts")),
        ):
            for index, artifact in artifacts:
                if not as_text(artifact.get("path")):
                    path: Path = (*template.path, side, "artifacts", index, "path")
                    name = as_text(artifact.get("name"))
                    yield ARTIFACT_PATH.at(path, f"{side[:-1]} artifact {name!r} of {template} has no path")


def _main_containers(spec: Spec) -> Iterator[Finding]:
    for template in spec.templates:
        handed = (
            template.inputs("artifacts") or template.outputs("parameters") or template.outputs("artifacts")
        )
        if template.type == "containerSet" and handed and not has_container_main(template):
            yield NO_MAIN.at(
                (*template.path, "containerSet", "containers"), f"{template} has no container 'main'"
            )


CHECKS = (_sources, _artifacts, _main_containers)
