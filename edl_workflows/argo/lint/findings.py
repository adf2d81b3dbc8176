"""Rules by name, and what they found. Not here: how a rule is checked."""

import difflib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

Path = tuple[str | int, ...]
"""Where in a manifest: keys and list indices from its root."""


MAX_CANDIDATES = 100
"""Names, and characters of one, that are compared with a misspelt one: each takes some 50 µs."""


def spell(path: Path) -> str:
    """A path as people write it: ``spec.templates[0].plugin``."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else step
    return text


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str:
    """The remedy for a misspelt name; empty if none is near, or there are too many to compare with.

    Args:
        name: as it stands.
        known: what it may be.
        cutoff: how near it must be, from 0 to 1.
    """
    candidates = list(itertools.islice(known, MAX_CANDIDATES + 1))
    if len(candidates) > MAX_CANDIDATES or len(name) > MAX_CANDIDATES:
        return ""
    close = difflib.get_close_matches(name, candidates, n=1, cutoff=cutoff)
    return f"Did you mean {close[0]}?" if close else ""


class Severity(StrEnum):
    """How bad a finding is."""

    ERROR = "error"
    """Refused by the API server or by Argo, or certain to go wrong when it runs."""
    WARNING = "warning"
    """Works, until something happens that is likely to happen."""


@dataclass(frozen=True)
class Rule:
    """One thing that can be wrong.

    Attributes:
        name: stable, in kebab-case; what reports, tests and ``--ignore`` say.
        severity: of its findings.
        catches: what is wrong, in general.
        remedy: what to do about it.
    """

    name: str
    severity: Severity
    catches: str
    remedy: str

    def at(self, path: Path, message: str, remedy: str = "") -> "Finding":
        """A finding of this rule.

        Args:
            path: where.
            message: what is wrong here.
            remedy: what to do here, if more can be said than in general.
        """
        return Finding(self, path, message, remedy or self.remedy)


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong.

    Attributes:
        rule: what kind of thing.
        path: where in the document.
        message: what.
        remedy: what to do.
        subject: the document, as ``Workflow default/train``.
        source: the file; empty for a manifest that came from none.
        line: in the file, from 1; 0 if not known.
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
        """Whether it is worse than a warning."""
        return self.rule.severity is Severity.ERROR

    def below(self, prefix: Path) -> "Finding":
        """The same, in a manifest that lies below `prefix` of another."""
        return replace(self, path=(*prefix, *self.path))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "rule": self.rule.name,
            "severity": str(self.rule.severity),
            "source": self.source,
            "line": self.line or None,
            "subject": self.subject,
            "path": spell(self.path),
            "message": self.message,
            "remedy": self.remedy,
        }

    def __str__(self) -> str:
        where = " ".join(part for part in (self.subject, spell(self.path)) if part)
        return f"{self.rule.severity}[{self.rule.name}] {where}: {self.message}; {self.remedy}"
