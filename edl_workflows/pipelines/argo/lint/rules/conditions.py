"""The grammar of ``successCondition`` and ``failureCondition``: a Kubernetes label selector over JSON
paths."""

import re
from dataclasses import dataclass

from edl_workflows.pipelines.argo.lint.workflow import has_tag

MAX_LENGTH = 63
"""Longest value and longest key in characters, as for labels."""

_TAG = re.compile(r"\{\{(?:(?!\{\{).)*?\}\}")
_NAME = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?")
_PREFIX = re.compile(r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?(?:\.[a-z0-9](?:[-a-z0-9]*[a-z0-9])?)*")
_SET = re.compile(r"(\S+)\s+(in|notin)\s*\(([^()]*)\)")
_PAIR = re.compile(r"([^\s=!<>]+)\s*(==|=|!=|<|>)\s*(.*)", re.DOTALL)


@dataclass(frozen=True)
class Requirement:
    """One of the comma-separated parts.

    Attributes:
        key: a path in the object, such as ``status.phase``.
        operator: ``=``, ``!=``, ``in``, ``notin``, ``<``, ``>``, ``exists`` or ``!``.
        values: the values to compare with.
    """

    key: str
    operator: str
    values: tuple[str, ...] = ()

    @property
    def holds_when_absent(self) -> bool:
        """Whether it is true of an object that does not have the key yet."""
        return self.operator in ("!=", "notin", "!")


def parse_condition(condition: str) -> list[Requirement]:
    """Parse a condition. Placeholders count as words.

    Raises:
        ValueError: Kubernetes could not parse it; the message says why.
    """
    if "#(" in condition:
        raise ValueError("a condition can't search an array with #(…)")
    requirements = [_requirement(part.strip()) for part in _parts(_TAG.sub("x", condition))]
    for requirement in requirements:
        _check_key(requirement.key)
        for value in requirement.values:
            _check_value(value, number=requirement.operator in ("<", ">"))
    return requirements


def _parts(condition: str) -> list[str]:
    parts, depth, begin = [], 0, 0
    for index, character in enumerate(condition):
        depth += (character == "(") - (character == ")")
        if character == "," and depth == 0:
            parts.append(condition[begin:index])
            begin = index + 1
    if depth:
        raise ValueError("parentheses do not match")
    return [*parts, condition[begin:]]


def _requirement(part: str) -> Requirement:
    if not part:
        raise ValueError("a requirement is missing before or after a comma")
    if match := _SET.fullmatch(part):
        return Requirement(match[1], match[2], tuple(value.strip() for value in match[3].split(",")))
    if part.startswith("!"):
        return Requirement(part[1:].strip(), "!")
    if match := _PAIR.fullmatch(part):
        operator = "=" if match[2] == "==" else match[2]
        return Requirement(match[1], operator, (match[3].strip(),))
    if re.search(r"\s", part):
        raise ValueError(f"{part!r} has a space but no operator (=, ==, !=, in, notin, <, >)")
    return Requirement(part, "exists")


def _check_key(key: str) -> None:
    prefix, slash, name = key.rpartition("/")
    if slash and not _PREFIX.fullmatch(prefix):
        raise ValueError(f"the key {key!r} is not a path of letters, digits, '.', '-' and '_'")
    if not _NAME.fullmatch(name):
        raise ValueError(f"the key {key!r} is not a path of letters, digits, '.', '-' and '_'")
    if len(name) > MAX_LENGTH:
        raise ValueError(f"the key {key!r} has {len(name)} characters, but at most {MAX_LENGTH} are allowed")


def _check_value(value: str, *, number: bool) -> None:
    if number:
        if value != "x" and not re.fullmatch(r"[-+]?\d+", value):
            raise ValueError(f"{value!r} is not an integer; < and > compare integers")
    elif value and not _NAME.fullmatch(value):
        raise ValueError(f"the value {value!r} has characters other than letters, digits, '.', '-' and '_'")
    elif len(value) > MAX_LENGTH:
        raise ValueError(
            f"the value {value!r} has {len(value)} characters, but at most {MAX_LENGTH} are allowed"
        )


def never_true(requirements: list[Requirement]) -> str:
    """The key that would need two values at once for all requirements to hold; empty if there is none."""
    allowed: dict[str, set[str]] = {}
    for requirement in requirements:
        if requirement.operator in ("=", "in") and not any(
            has_tag(value) or value == "x" for value in requirement.values
        ):
            left = allowed.setdefault(requirement.key, set(requirement.values))
            left &= set(requirement.values)
            if not left:
                return requirement.key
    return ""
