"""Requirements of node affinity, as kube-scheduler reads them. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any


def requirement_holds(requirement: Mapping[str, Any], values: Mapping[str, str]) -> bool:
    """Whether a NodeSelectorRequirement holds for a node's labels or fields. One with an unknown operator
    never holds."""
    value, operands = values.get(requirement["key"]), requirement.get("values") or ()
    match requirement.get("operator"):
        case "In":
            return value in operands
        case "NotIn":
            return value not in operands
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt" | "Lt" as operator:
            return _compared(operator, value, operands)
    return False


def _compared(operator: str, value: str | None, operands: Sequence[str]) -> bool:
    """Compare both as integers; False if one of them is not an integer."""
    try:
        have, bound = int(value or ""), int(operands[0])
    except (ValueError, IndexError):
        return False
    return have > bound if operator == "Gt" else have < bound
