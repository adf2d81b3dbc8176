"""Label selectors: parses their text into requirements. Pure.

The grammar is that of Kubernetes: ``a=b,a==b,a!=b,a in (x,y),a notin (x),a,!a``, and ``a>1,a<1``.
"""

import re
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import InvalidError

MAX_LENGTH, MAX_REQUIREMENTS = 8192, 64
"""Limits of a selector: characters, and requirements."""

_KEY = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")
_EQUALS = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*({_VALUE})$")
_ORDER = re.compile(rf"^({_KEY})\s*([<>])\s*(-?[0-9]{{1,18}})$")
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")


@dataclass(frozen=True)
class LabelRequirement:
    """A requirement on one label.

    Attributes:
        key: the label.
        operator: ``In``, ``NotIn``, ``Exists``, ``DoesNotExist``, ``Gt`` or ``Lt``, as in manifests.
        values: the operands.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def manifest(self) -> dict[str, Any]:
        """The requirement as an entry of ``matchExpressions``."""
        head = {"key": self.key, "operator": self.operator}
        return head | {"values": list(self.values)} if self.values else head


def parse_selector(text: str) -> list[LabelRequirement]:
    """Parse a selector.

    Raises:
        InvalidError: it is malformed, too long, or has too many requirements.
    """
    return [_parse_requirement(part.strip()) for part in split_selector(text) if part.strip()]


def split_selector(text: str) -> list[str]:
    """The requirements of a selector: its parts between commas, except those in parentheses.

    Raises:
        InvalidError: the selector is too long or has too many requirements. Both are limited because each
            requirement is compared with every object.
    """
    if len(text) > MAX_LENGTH:
        raise InvalidError(f"a selector has at most {MAX_LENGTH} characters, not {len(text)}")
    parts, begin, inside = [], 0, False
    for place, sign in enumerate(text):
        if sign in "()":
            inside = sign == "("
        elif sign == "," and not inside:
            parts.append(text[begin:place])
            begin = place + 1
    parts.append(text[begin:])
    if len(parts) > MAX_REQUIREMENTS:
        raise InvalidError(f"a selector has at most {MAX_REQUIREMENTS} requirements, not {len(parts)}")
    return parts


def _parse_requirement(text: str) -> LabelRequirement:
    if match := _EXISTS.match(text):
        return LabelRequirement(match[2], "DoesNotExist" if match[1] else "Exists")
    if match := _EQUALS.match(text):
        key, sign, value = match.groups()
        return LabelRequirement(key, "NotIn" if sign == "!=" else "In", (value,))
    if match := _SET.match(text):
        values = tuple(part.strip() for part in match[3].split(","))
        return LabelRequirement(match[1], "NotIn" if match[2] == "notin" else "In", values)
    if match := _ORDER.match(text):
        return LabelRequirement(match[1], "Gt" if match[2] == ">" else "Lt", (match[3],))
    raise InvalidError(
        f"unable to parse requirement: {text!r} is not a label requirement such as a=b or a in (x,y)"
    )
