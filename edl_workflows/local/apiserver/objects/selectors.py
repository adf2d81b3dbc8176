"""Label and field selectors: parsing and matching.

The grammar is that of Kubernetes: ``a=b,a==b,a!=b,a in (x,y),a notin (x),a,!a`` for labels; ``a=b,a==b,a!=b``
for fields.
"""

import re
from collections.abc import Callable, Mapping

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import label_selector
from edl_workflows.core.kubernetes.label_selector import LabelRequirement
from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.storage import revisions

Requirement = Callable[[Mapping[str, str]], bool]

_FIELD = re.compile(r"^([A-Za-z0-9_.\-/]+)(==|!=|=)(.*)$")


def _make_predicate(requirement: LabelRequirement) -> Requirement:
    key, values = requirement.key, frozenset(requirement.values)
    match requirement.operator:
        case "Exists":
            return lambda labels: key in labels
        case "DoesNotExist":
            return lambda labels: key not in labels
        case "In":
            return lambda labels: labels.get(key) in values
        case "NotIn":
            return lambda labels: labels.get(key) not in values
        case operator:
            bound = int(requirement.values[0])
            return lambda labels: _ordered(labels.get(key), operator, bound)


def _ordered(value: str | None, operator: str, bound: int) -> bool:
    if value is None or not re.fullmatch("-?[0-9]{1,18}", value):
        return False
    return int(value) > bound if operator == "Gt" else int(value) < bound


def parse_label_selector(text: str) -> list[Requirement]:
    """Parse a label selector.

    Raises:
        ApiError: 400, it cannot be parsed.
    """
    try:
        return [_make_predicate(requirement) for requirement in label_selector.parse_selector(text)]
    except InvalidError as error:
        raise errors.bad_request(str(error)) from None


def parse_field_selector(text: str, supported: frozenset[str]) -> list[Requirement]:
    """Parse a field selector over the `supported` fields.

    Raises:
        ApiError: 400, it cannot be parsed, or names another field.
    """
    try:
        parts = label_selector.split_selector(text)
    except InvalidError as error:
        raise errors.bad_request(str(error)) from None
    return [_field_requirement(part.strip(), supported) for part in parts if part.strip()]


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


def make_match(labels: str, fields: str, supported: frozenset[str]) -> revisions.Match:
    """The predicate of a list or watch.

    Args:
        labels: the label selector.
        fields: the field selector.
        supported: the fields that it may name.

    Raises:
        ApiError: 400, a selector cannot be parsed.
    """
    if not labels and not fields:
        return revisions.match_everything
    by_label = parse_label_selector(labels)
    by_field = parse_field_selector(fields, supported)

    def matches(revision: revisions.Revision) -> bool:
        return all(holds(revision.labels) for holds in by_label) and all(
            holds(revision.fields) for holds in by_field
        )

    return matches
