"""Converts Hera objects to manifests without losing anything, and manifests to stable text.

Hera drops fields that its models don't have. So our own templates are taken directly from their step models,
and a manifest is rejected if the linter finds an error in it, such as an empty plugin body or a reference to
a missing template.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from hera.workflows import Workflow

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.schemas.structural import spell_path
from edl_workflows.pipelines.argo.lint import check
from edl_workflows.pipelines.argo.templates.builders import StageTemplate
from edl_workflows.pipelines.manifests.manifest import Loader, quote_for_server

__all__ = ["to_manifest", "to_yaml"]


def to_manifest(workflow: Workflow) -> dict[str, Any]:
    """The manifest of a Hera Workflow, WorkflowTemplate, ClusterWorkflowTemplate or CronWorkflow.

    Raises:
        ManifestError: two templates of one name differ, or the linter finds an error, for example because
            Hera dropped a template's body.
    """
    built: dict[str, Any] = workflow.build().model_dump(mode="json", exclude_none=True, by_alias=True)
    spec = built["spec"].get("workflowSpec", built["spec"])
    subject = f"{built.get('kind')} {built['metadata'].get('name') or built['metadata'].get('generateName')}"
    problems: list[Problem] = []
    if templates := spec.get("templates"):
        spec["templates"] = _unique(_expanded(templates, _ours(workflow)), problems)
    problems += [
        Problem(spell_path(finding.path), f"{finding.message} ({finding.rule.name}): {finding.remedy}")
        for finding in check(built)
        if finding.is_error
    ]
    if problems:
        raise ManifestError(subject, problems)
    return built


def _ours(workflow: Workflow) -> Mapping[str, list[dict[str, Any]]]:
    return {
        str(template.name): template.rendered
        for template in workflow.templates
        if isinstance(template, StageTemplate)
    }


def _expanded(
    templates: Iterable[dict[str, Any]], ours: Mapping[str, list[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    for template in templates:
        yield from ours.get(template["name"], [template])


def _unique(templates: Iterable[dict[str, Any]], problems: list[Problem]) -> list[dict[str, Any]]:
    by_name: dict[str, dict[str, Any]] = {}
    for template in templates:
        existing = by_name.setdefault(template["name"], template)
        if existing != template:
            problems.append(
                Problem(f"spec.templates.{template['name']}", "there is another template of this name")
            )
    return list(by_name.values())


_LONGEST_LINE = 160
"""Most characters of a parameter that is written in one line."""
_SHARED = ("outputs", "retryStrategy")
"""Fields of templates that are written once, and as a YAML alias where they occur again: people review the
text, and the outputs of most stages are the same."""


class _Line(dict[str, Any]):
    """A map that is written in one line."""


class _Shared(dict[str, Any]):
    """A map of which there is one object for all equal values in a document."""


class _Dumper(yaml.SafeDumper):
    """Writes multi-line strings as block scalars, and aliases only of shared maps."""

    def ignore_aliases(self, data: Any) -> bool:
        """Write every other value out, even if it occurs twice."""
        return not isinstance(data, _Shared)


def _line(dumper: yaml.SafeDumper, value: _Line) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items(), flow_style=True)


def _shared(dumper: yaml.SafeDumper, value: _Shared) -> yaml.MappingNode:
    return dumper.represent_mapping("tag:yaml.org,2002:map", value.items())


def _arranged(value: Any, shared: dict[str, _Shared], field: str = "") -> Any:
    """The value with its parameters as `_Line` and the fields `_SHARED` as `_Shared`.

    Args:
        value: a manifest, or a part of it.
        shared: maps of this document by their JSON.
        field: the key of the value.
    """
    if isinstance(value, list):
        return [_parameter(child) if field == "parameters" else _arranged(child, shared) for child in value]
    if not isinstance(value, Mapping):
        return value
    arranged = {key: _arranged(child, shared, key) for key, child in value.items()}
    return shared.setdefault(json.dumps(value), _Shared(arranged)) if field in _SHARED else arranged


def _parameter(value: Any) -> Any:
    text = str(value)
    is_short = isinstance(value, Mapping) and len(text) <= _LONGEST_LINE and "\\n" not in text
    return _Line(value) if is_short else value


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(_Line, _line)
_Dumper.add_representer(_Shared, _shared)
quote_for_server(_Dumper)


def to_yaml(manifests: Iterable[Mapping[str, Any]]) -> str:
    """Manifests as one YAML text. Equal manifests give equal texts, and a server reads exactly the given
    values from it.

    Raises:
        ManifestError: a value of a manifest would be read back from the YAML as a different value.
    """
    documents = [dict(manifest) for manifest in manifests]
    arranged = [_arranged(document, {}) for document in documents]
    text = yaml.dump_all(arranged, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000)
    for given, read in zip(documents, yaml.load_all(text, Loader), strict=True):
        if given != read:
            name = given.get("metadata", {}).get("name", "")
            raise ManifestError(
                f"{given.get('kind')} {name}", [Problem("", "its YAML would be read as another")]
            )
    return text
