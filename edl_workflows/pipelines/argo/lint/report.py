"""Findings as text and as JSON."""

import json
from collections.abc import Iterator, Sequence

from edl_workflows.core.schemas.structural import spell_path
from edl_workflows.pipelines.argo.lint.findings import Finding, Severity

Segment = tuple[str, str]
"""A piece of text and its style: bold, dim, error, warning or none."""


def summary_line(findings: Sequence[Finding], files: int) -> str:
    """The last line: the numbers of errors, warnings and files."""
    errors = sum(finding.is_error for finding in findings)
    warnings = len(findings) - errors
    numbers = [
        f"{number} {word}{'' if number == 1 else 's'}"
        for number, word in ((errors, Severity.ERROR), (warnings, Severity.WARNING))
        if number
    ]
    return f"{' and '.join(numbers) or 'nothing wrong'} in {files} file{'' if files == 1 else 's'}"


def finding_lines(findings: Sequence[Finding]) -> Iterator[list[Segment]]:
    """Each finding as two lines: position and problem; remedy."""
    for finding in findings:
        place = ":".join(str(part) for part in (finding.source, finding.line) if part)
        yield [
            (f"{place}: " if place else "", "bold"),
            (f"{finding.rule.severity}[{finding.rule.name}] ", str(finding.rule.severity)),
            (f"{finding.subject} {spell_path(finding.path)}".rstrip() + ": ", ""),
            (finding.message, "bold"),
        ]
        yield [(f"    {finding.remedy}", "dim")]


def as_json(findings: Sequence[Finding], files: int) -> str:
    """One JSON object: the findings and their numbers."""
    errors = sum(finding.is_error for finding in findings)
    whole = {
        "files": files,
        "errors": errors,
        "warnings": len(findings) - errors,
        "findings": [finding.to_dict() for finding in findings],
    }
    return json.dumps(whole, indent=2)
