"""Label and field selectors: parsing and matching.

The grammar is that of Kubernetes: ``a=b,a==b,a!=b,a in (x,y),a notin (x),a,!a`` for labels; ``a=b,a==b,a!=b``
for fields.
"""

import re
from collections.abc import Callable, Mapping

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.storage import revisions

MAX_LENGTH, MAX_REQUIREMENTS = 8192, 64
"""Limits of a selector: characters, and requirements."""
Requirement = Callable[[Mapping[str, str]], bool]

_KEY = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9.]*[A-Za-z0-9])?/)?[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_VALUE = r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?)?"
_EXISTS = re.compile(rf"^(!?)\s*({_KEY})$")
_EQUALS = re.compile(rf"^({_KEY})\s*(==|=|!=)\s*({_VALUE})$")
_ORDER = re.compile(rf"^({_KEY})\s*([<>])\s*(-?[0-9]{{1,18}})$")
_SET = re.compile(rf"^({_KEY})\s+(in|notin)\s*\(([^()]*)\)$")
_FIELD = re.compile(r"^([A-Za-z0-9_.\-/]+)(==|!=|=)(.*)$")


def _label_requirement(text: str) -> Requirement:
    if match := _EXISTS.match(text):
        absent, key = bool(match[1]), match[2]
        return lambda labels: (key in labels) is not absent
    if match := _EQUALS.match(text):
        key, operator, value = match.groups()
        if operator == "!=":
            return lambda labels: labels.get(key) != value
        return lambda labels: labels.get(key) == value
    if match := _SET.match(text):
        key, operator = match[1], match[2]
        values = frozenset(part.strip() for part in match[3].split(","))
        if operator == "notin":
            return lambda labels: labels.get(key) not in values
        return lambda labels: labels.get(key) in values
    if match := _ORDER.match(text):
        key, operator, bound = match[1], match[2], int(match[3])
        return lambda labels: _ordered(labels.get(key), operator, bound)
    raise errors.bad_request(
        f"unable to parse requirement: {text!r} is not a label requirement such as a=b or a in (x,y)"
    )


def _ordered(value: str | None, operator: str, bound: int) -> bool:
    if value is None or not re.fullmatch("-?[0-9]{1,18}", value):
        return False
    return int(value) > bound if operator == ">" else int(value) < bound


def parse_label_selector(text: str) -> list[Requirement]:
    """Parse a label selector.

    Raises:
        ApiError: 400, it cannot be parsed.
    """
    return [_label_requirement(part.strip()) for part in _split(text) if part.strip()]


def _split(text: str) -> list[str]:
    """The requirements of a selector: its parts between commas, except those in parentheses.

    Raises:
        ApiError: 400, the selector is too long or has too many requirements. Both are limited because each
            requirement is compared with every object.
    """
    _check_length(text)
    parts, begin, inside = [], 0, False
    for place, sign in enumerate(text):
        if sign in "()":
            inside = sign == "("
        elif sign == "," and not inside:
            parts.append(text[begin:place])
            begin = place + 1
    parts.append(text[begin:])
    if len(parts) > MAX_REQUIREMENTS:
        raise errors.bad_request(f"a selector has at most {MAX_REQUIREMENTS} requirements, not {len(parts)}")
    return parts


def _check_length(text: str) -> None:
    if len(text) > MAX_LENGTH:
        raise errors.bad_request(f"a selector has at most {MAX_LENGTH} characters, not {len(text)}")


def parse_field_selector(text: str, supported: frozenset[str]) -> list[Requirement]:
    """Parse a field selector over the `supported` fields.

    Raises:
        ApiError: 400, it cannot be parsed, or names another field.
    """
    return [_field_requirement(part.strip(), supported) for part in _split(text) if part.strip()]


def _field_requirement(text: str, supported: frozenset[str]) -> Requirement:
    match = _FIELD.match(text)
    if match is None:
        raise errors.bad_request(
            f"invalid selector: {text!r}; can't understand it, write field=value or field!=value"
        )
    key, operator, value = match.groups()
    if key not in supported:
        raise errors.bad_request(
            f"field label not supported: {key}; supported are {', '.join(sorted(supported))}"
        )
    if operator == "!=":
        return lambda values: values.get(key, "") != value
    return lambda values: values.get(key, "") == value


def make_match(label_selector: str, field_selector: str, supported: frozenset[str]) -> revisions.Match:
    """The predicate of a list or watch.

    Raises:
        ApiError: 400, a selector cannot be parsed.
    """
    if not label_selector and not field_selector:
        return revisions.match_everything
    by_label = parse_label_selector(label_selector)
    by_field = parse_field_selector(field_selector, supported)

    def matches(revision: revisions.Revision) -> bool:
        return all(holds(revision.labels) for holds in by_label) and all(
            holds(revision.fields) for holds in by_field
        )

    return matches
