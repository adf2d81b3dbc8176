"""The CRDs keep Kubernetes's rules for structural schemas, and say what the models say."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_workflows.jobs import crd, kinds
from edl_workflows.jobs.kind import Kind

Schema = dict[str, Any]
Make = Callable[..., dict[str, Any]]

FORBIDDEN = {
    "$ref",
    "$defs",
    "definitions",
    "oneOf",
    "allOf",
    "title",
    "const",
    "propertyNames",
    "exclusiveMinimum",
    "id",
}


def schema_of(kind: Kind) -> Schema:
    found: Schema = crd.definition(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def walk(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    yield path, schema
    for name, below in schema.get("properties", {}).items():
        yield from walk(below, f"{path}.{name}")
    if "items" in schema:
        yield from walk(schema["items"], f"{path}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from walk(schema["additionalProperties"], f"{path}.*")


def type_at(schema: Schema, path: str) -> str:
    """Type of the field at a path as ``.status.phase``; "" if there is none."""
    for part in path.removeprefix(".").split("."):
        members = schema.get("properties", {}).get(part) or schema.get("additionalProperties")
        if not isinstance(members, dict):
            return ""
        schema = members
    return str(schema.get("type", ""))


each_kind = pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.name)


@each_kind
def test_schema_is_structural(kind: Kind) -> None:
    """Every node has a type, and nothing that the API server refuses."""
    for path, node in walk(schema_of(kind)):
        assert not FORBIDDEN & set(node), path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert node.get("additionalProperties") is not False, path
        assert not ("properties" in node and "additionalProperties" in node), path
        if "anyOf" in node:
            assert node["x-kubernetes-int-or-string"], path


@each_kind
def test_status_is_never_defaulted(kind: Kind) -> None:
    """What is says its writer alone."""
    status = schema_of(kind)["properties"]["status"]

    assert [path for path, node in walk(status) if "default" in node or "required" in node] == []


@each_kind
def test_every_field_of_the_model_is_in_the_schema(kind: Kind) -> None:
    """A field that the schema lacks would be pruned."""
    for part in ("spec", "status"):
        model = kind.model.model_fields[part].annotation
        wanted = {field.alias or name for name, field in model.model_fields.items()}  # type: ignore[union-attr]
        assert set(schema_of(kind)["properties"][part]["properties"]) == wanted


@each_kind
def test_fields_are_described(kind: Kind) -> None:
    """`kubectl explain` tells what a docstring tells."""
    spec = schema_of(kind)["properties"]["spec"]["properties"]
    silent = [name for name, node in spec.items() if not node.get("description")]

    assert silent == []


def test_scale_subresource_reaches_the_workers() -> None:
    """`kubectl scale` and autoscalers change spec.replicaSpecs.worker.replicas, whose path the schema knows."""
    kind = kinds.kind_of("ElasticJob")
    version = crd.definition(kind)["spec"]["versions"][0]
    scale = version["subresources"]["scale"]

    assert type_at(schema_of(kind), scale["specReplicasPath"]) == "integer"
    assert type_at(schema_of(kind), scale["statusReplicasPath"]) == "integer"
    assert type_at(schema_of(kind), scale["labelSelectorPath"]) == "string"


@each_kind
def test_columns_show_fields_that_exist(kind: Kind) -> None:
    """A column with a misspelt path would be empty for ever."""
    version = crd.definition(kind)["spec"]["versions"][0]
    paths = {column["jsonPath"] for column in version["additionalPrinterColumns"]} - {
        ".metadata.creationTimestamp"
    }

    assert [path for path in paths if not type_at(schema_of(kind), path)] == []


def test_rules_stand_at_their_objects() -> None:
    """The CEL twins of the validators, and the transitions that only the server can check."""
    plan = schema_of(kinds.kind_of("ScalePlan"))
    messages = [rule["message"] for rule in plan["x-kubernetes-validations"]]
    messages += [rule["message"] for rule in plan["properties"]["spec"]["x-kubernetes-validations"]]

    assert messages == [
        "the spec of a plan that has begun can't be changed: make a new plan",
        "phases Succeeded and Failed are final",
        "ownerJob can't be changed: make a new plan",
    ]


def test_command_tells_stale_files(capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` passes on what is committed."""
    assert crd.main(["--check"]) == 0
    assert capsys.readouterr().err == ""
