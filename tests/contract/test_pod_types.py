"""The table of a pod template's types is that of the Kubernetes client."""

import re
from typing import Any

from kubernetes.client import models

from edl_workflows.core.kubernetes.pod_types import ROOT, read_types

QUANTITIES = {
    ("EmptyDirVolumeSource", "sizeLimit"),
    ("PodSpec", "overhead"),
    ("ResourceFieldSelector", "divisor"),
    ("ResourceRequirements", "limits"),
    ("ResourceRequirements", "requests"),
    ("VolumeResourceRequirements", "limits"),
    ("VolumeResourceRequirements", "requests"),
}
"""Fields that the client declares as strings, and that the API server also reads from numbers."""
_ANY_TYPE = "object"
"""The client's word for an integer or a string."""


def short_name(model: str) -> str:
    """The name of a model in the table."""
    return re.sub(r"^(Core)?V1", "", model)


def field_types(model: Any) -> dict[str, str]:
    """The fields of one of the client's models as in the table; of models, the client's name."""
    types: dict[str, str] = {}
    for attribute, declared in model.openapi_types.items():
        name = model.attribute_map[attribute]
        element = re.sub(r"^(list\[|dict[\[(]str, )(.*)[\])]$", r"\2", declared)
        container = {"list": "[]", "dict": "{}"}.get(re.split(r"[\[(]", declared)[0], "")
        if element == "datetime":
            element = "str"
        if (short_name(model.__name__), name) in QUANTITIES:
            element = "quantity"
        if element != _ANY_TYPE:
            types[name] = element + container
    return types


def test_the_table_is_that_of_the_client() -> None:
    """Each type that is reachable from a pod template has the client's fields with the client's types."""
    expected: dict[str, dict[str, str]] = {}
    pending = [f"V1{ROOT}"]
    while pending:
        model = pending.pop()
        if short_name(model) in expected:
            continue
        types = field_types(getattr(models, model))
        expected[short_name(model)] = {name: short_name(kind) for name, kind in types.items()}
        pending += [kind.rstrip("[]{}") for kind in types.values() if re.match(r"(Core)?V1", kind)]

    assert read_types() == {name: types for name, types in expected.items() if types}
