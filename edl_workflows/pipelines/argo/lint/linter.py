"""The linter: from documents to findings. The rules are in `edl_workflows.pipelines.argo.lint.rules`."""

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from edl_workflows.core.schemas.structural import Path
from edl_workflows.pipelines.argo.api import GROUP
from edl_workflows.pipelines.argo.lint import documents, rules, schema
from edl_workflows.pipelines.argo.lint.documents import Document
from edl_workflows.pipelines.argo.lint.findings import Finding
from edl_workflows.pipelines.argo.lint.workflow import Library, Spec, as_mapping, as_mappings, as_text
from edl_workflows.pipelines.manifests.manifest import find_problem

_EVENTS_KINDS = ("Sensor",)
"""Argo Events' kinds that contain workflows. Their own definitions have no schema, so only those workflows
are checked."""


MAX_FINDINGS = 500
"""Most findings per document: nobody reads more, and a hostile document could have any number."""


def check(manifest: Mapping[str, Any], *, others: Sequence[Mapping[str, Any]] = ()) -> list[Finding]:
    """Check a manifest.

    Args:
        manifest: plain values, as parsed from YAML or JSON. A kind that is not Argo Workflows' has no
            findings.
        others: manifests that it may refer to by templateRef and workflowTemplateRef. A reference to any
            other manifest cannot be checked and gives no finding.

    Returns:
        Errors and warnings in the manifest's order.
    """
    library = Library([manifest, *others])
    return _check_document(Document(manifest), library)


def check_texts(texts: Sequence[tuple[str, str]]) -> list[Finding]:
    """Check the documents of some files, which may refer to each other.

    Args:
        texts: (name of the file, its text).

    Returns:
        Errors and warnings in the order of files and lines.
    """
    read = [part for source, content in texts for part in documents.read_documents(content, source)]
    library = Library([part.manifest for part in read if isinstance(part, Document)])
    findings: list[Finding] = []
    for part in read:
        findings += _check_document(part, library) if isinstance(part, Document) else [part]
    return findings


def _check_document(document: Document, library: Library) -> list[Finding]:
    # The values of a text were checked when it was read.
    problem = "" if document.yaml else find_problem(document.manifest)
    if problem:
        findings = [documents.UNREADABLE.at((), problem)]
    else:
        findings = _bounded([document.findings, _findings(document.manifest, library)])
    placed = [
        dataclasses.replace(
            finding,
            subject=document.subject,
            source=document.source,
            line=finding.line or document.line(finding.path),
        )
        for finding in findings
    ]
    return sorted(placed, key=lambda finding: finding.line)


def _bounded(finding_groups: Iterable[Iterable[Finding]]) -> list[Finding]:
    findings = list(itertools.islice(itertools.chain.from_iterable(finding_groups), MAX_FINDINGS + 1))
    if len(findings) > MAX_FINDINGS:
        message = f"there are more than {MAX_FINDINGS} findings in this document; the rest is left out"
        findings[MAX_FINDINGS] = documents.UNREADABLE.at((), message, "Correct these first.")
    return findings


def _findings(manifest: Mapping[str, Any], library: Library) -> Iterator[Finding]:
    yield from rules.check_head(manifest)
    if not as_text(manifest.get("apiVersion")).startswith(f"{GROUP}/"):
        return
    kind = as_text(manifest.get("kind"))
    if kind in _EVENTS_KINDS:
        for inner, path in _triggered(manifest):
            yield from (finding.below(path) for finding in _findings(inner, library))
    schemas = schema.load_schemas()
    if kind not in schemas.kinds:
        return
    yield from schemas.check_object(manifest)
    if spec := library.spec(manifest):
        yield from _inline(spec, schemas)
        yield from rules.check_spec(spec)


def _inline(spec: Spec, schemas: schema.Schemas) -> Iterator[Finding]:
    for template in spec.templates:
        if "inline" in template.path[-1:]:
            yield from schemas.check_value(dict(template.body), schemas.template(), template.path)


def _triggered(sensor: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Path]]:
    """The manifests that a Sensor creates."""
    for index, trigger in as_mappings(as_mapping(sensor.get("spec")).get("triggers")):
        for way, body in as_mapping(trigger.get("template")).items():
            resource = as_mapping(as_mapping(as_mapping(body).get("source")).get("resource"))
            if resource:
                yield resource, ("spec", "triggers", index, "template", way, "source", "resource")
