"""From Hera's objects to the manifest that is sent: nothing that was put in may be missing, and the text is stable.

Hera drops what its models don't know. So our own templates come from their step models as they are, and of the rest at least
what Argo could not run is refused: a template of no type, or with a plugin body that came out empty.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import yaml
from hera.workflows import Workflow

from edl_workflows.argo.builders import StageTemplate
from edl_workflows.exceptions import ManifestError, Problem

TYPES = (
    "container", "containerSet", "dag", "data", "http", "plugin", "resource", "script", "steps", "suspend",
)  # fmt: skip
"""Keys of which a template has exactly one."""


def to_manifest(workflow: Workflow) -> dict[str, Any]:
    """A Hera Workflow, WorkflowTemplate, ClusterWorkflowTemplate or CronWorkflow as the API server shall have it.

    Raises:
        ManifestError: two templates of one name differ, or Hera lost a template's body.
    """
    built: dict[str, Any] = workflow.build().model_dump(mode="json", exclude_none=True, by_alias=True)
    spec = built["spec"].get("workflowSpec", built["spec"])
    subject = f"{built.get('kind')} {built['metadata'].get('name') or built['metadata'].get('generateName')}"
    problems: list[Problem] = []
    if templates := spec.get("templates"):
        spec["templates"] = _unique(_expanded(templates, _ours(workflow)), problems)
        problems += _typeless(spec["templates"])
    if problems:
        raise ManifestError(subject, problems)
    return built


def _ours(workflow: Workflow) -> Mapping[str, list[dict[str, Any]]]:
    return {str(one.name): one.rendered for one in workflow.templates if isinstance(one, StageTemplate)}


def _expanded(
    templates: Iterable[dict[str, Any]], ours: Mapping[str, list[dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    for template in templates:
        yield from ours.get(template["name"], [template])


def _unique(templates: Iterable[dict[str, Any]], problems: list[Problem]) -> list[dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for template in templates:
        known = found.setdefault(template["name"], template)
        if known != template:
            problems.append(
                Problem(f"spec.templates.{template['name']}", "there is another template of this name")
            )
    return list(found.values())


def _typeless(templates: Iterable[Mapping[str, Any]]) -> Iterator[Problem]:
    for template in templates:
        path = f"spec.templates.{template['name']}"
        types = [key for key in TYPES if key in template]
        if len(types) != 1:
            yield Problem(
                path, f"has {' and '.join(types) or 'no type'}; a template has one of {', '.join(TYPES)}"
            )
        elif "plugin" in template and len(template["plugin"]) != 1:
            yield Problem(
                f"{path}.plugin",
                "is empty: Hera drops a plugin's body; use the templates of edl_workflows.argo.builders",
            )


class _Dumper(yaml.SafeDumper):
    """Texts of several lines as blocks, as people write them; no aliases."""

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - the base class's signature
        """Every value is written out."""
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def to_yaml(manifests: Iterable[Mapping[str, Any]]) -> str:
    """Manifests as one YAML text: the same for the same manifests, and what is read from it is what was written.

    Raises:
        ManifestError: a manifest holds what YAML would give back as something else.
    """
    documents = [dict(manifest) for manifest in manifests]
    text = yaml.dump_all(documents, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1_000)
    for given, read in zip(documents, yaml.safe_load_all(text), strict=True):
        if given != read:
            name = given.get("metadata", {}).get("name", "")
            raise ManifestError(
                f"{given.get('kind')} {name}", [Problem("", "its YAML would be read as another")]
            )
    return text
