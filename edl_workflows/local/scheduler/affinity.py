"""Affinity, as kube-scheduler reads it where there is one node: what is only preferred changes nothing there.
Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from edl_workflows.jobs.node_selector import requirement_holds

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def unsupported(affinity: Mapping[str, Any]) -> bool:
    """Whether it requires what the embedded cluster does not support: the placement of other pods."""
    return any((affinity.get(kind) or {}).get(_REQUIRED) for kind in ("podAffinity", "podAntiAffinity"))


def admits(affinity: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether the required node affinity admits a pod to a node.

    Args:
        affinity: the pod's.
        name: the node's, the only field that terms can use.
        labels: the node's.
    """
    required = (affinity.get("nodeAffinity") or {}).get(_REQUIRED)
    if required is None:
        return True
    terms: Sequence[Mapping[str, Any]] = required.get("nodeSelectorTerms") or ()
    return any(_matches(term, name, labels) for term in terms)


def _matches(term: Mapping[str, Any], name: str, labels: Mapping[str, str]) -> bool:
    """Whether all requirements of a term hold; a term without any matches nothing."""
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not (expressions or fields):
        return False
    return all(requirement_holds(one, labels) for one in expressions) and all(
        requirement_holds(one, {"metadata.name": name}) for one in fields
    )
