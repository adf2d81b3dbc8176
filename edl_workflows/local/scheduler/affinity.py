"""Affinity, as kube-scheduler reads it where there is one node: what is only preferred changes nothing there. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def unsupported(affinity: Mapping[str, Any]) -> bool:
    """Whether it requires what the embedded cluster can't tell: which other pods a pod stands beside."""
    return any((affinity.get(kind) or {}).get(_REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))


def admits(affinity: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether the required node affinity lets a pod onto a node.

    Args:
        affinity: the pod's.
        name: the node's, the only field that terms can ask for.
        labels: the node's.
    """
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return True
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return any(_matches(term, name, labels) for term in terms)


def _matches(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """All that a term asks for; one that asks for nothing matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not (expressions or fields):
        return False
    return all(_holds(one, labels) for one in expressions) and all(
        _holds(one, {"metadata.name": name}) for one in fields
    )


def _holds(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    wanted: Sequence[str] = requirement.get("values") or ()
    value = values.get(requirement["key"])
    match requirement.get("operator"):
        case "In":
            return value in wanted
        case "NotIn":
            return value not in wanted
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return _number(value) > _number(wanted[0])
        case "Lt":
            return _number(value) < _number(wanted[0])
    return False


def _number(text: str | None) -> float:
    """Not a number, which nothing is greater or less than, for what is none."""
    return int(text) if text is not None and text.lstrip("-").isdecimal() else float("nan")
