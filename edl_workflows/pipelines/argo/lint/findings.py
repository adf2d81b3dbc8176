"""Rules by name, and their findings. The checks are elsewhere."""

import difflib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from edl_workflows.core.schemas.structural import Path, spell_path

MAX_CANDIDATES = 100
"""Most names to compare with a misspelt name, and most characters of a name. Each comparison takes about 50
µs."""


def did_you_mean(name: str, valid_names: Iterable[str], cutoff: float = 0.6) -> str:
    """The remedy for a misspelt name; empty if none is similar, or there are too many to compare with.

    Args:
        name: the misspelt name.
        valid_names: the valid names.
        cutoff: the required similarity, from 0 to 1.
    """
    candidates = list(itertools.islice(valid_names, MAX_CANDIDATES + 1))
    if len(candidates) > MAX_CANDIDATES or len(name) > MAX_CANDIDATES:
        return ""
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff)
    return f"Did you mean {close[0]}?" if close else ""


class Severity(StrEnum):
    """The severity of a finding."""

    ERROR = "error"
    """The API server or Argo refuses it, or it certainly fails when it runs."""
    WARNING = "warning"
    """It works until something happens that is likely to happen."""


@dataclass(frozen=True)
class Rule:
    """A kind of problem.

    Attributes:
        name: stable, in kebab-case; used in reports, tests and ``--ignore``.
        severity: of its findings.
        catches: the problem, in general.
        remedy: what to do about it.
    """

    name: str
    severity: Severity
    catches: str
    remedy: str

    def at(self, path: Path, message: str, remedy: str = "") -> "Finding":
        """Make a finding of this rule.

        Args:
            path: its position.
            message: what is wrong here.
            remedy: what to do here, if more specific than the rule's remedy.
        """
        return Finding(self, path, message, remedy or self.remedy)


@dataclass(frozen=True)
class Finding:
    """One problem.

    Attributes:
        rule: the kind of problem.
        path: its position in the document.
        message: what is wrong.
        remedy: what to do.
        subject: the document, such as ``Workflow default/train``.
        source: the file; empty for a manifest that came from none.
        line: in the file, from 1; 0 if unknown.
    """

    rule: Rule
    path: Path
    message: str
    remedy: str
    subject: str = ""
    source: str = ""
    line: int = 0

    @property
    def is_error(self) -> bool:
        return self.rule.severity is Severity.ERROR

    def below(self, prefix: Path) -> "Finding":
        """The same finding in a manifest that is nested at `prefix` of another."""
        return replace(self, path=(*prefix, *self.path))

    def to_dict(self) -> dict[str, Any]:
        return {
            "rule": self.rule.name,
            "severity": str(self.rule.severity),
            "source": self.source,
            "line": self.line or None,
            "subject": self.subject,
            "path": spell_path(self.path),
            "message": self.message,
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        where = " ".join(part for part in (self.subject, spell_path(self.path)) if part)
        return f"{self.rule.severity}[{self.rule.name}] {where}: {self.message}; {self.remedy}"
