"""The CRDs keep Kubernetes's rules for structural schemas, and say what the models say."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.tf_job.model import TFJob
from edl_workflows.core.schemas import structural
from edl_workflows.local.apiserver.objects import rules, schemas
from edl_workflows.pipelines.install import crds as crd

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
    found: Schema = crd.crd_of_kind(kind)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
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


def test_a_plan_keeps_resources_of_any_name() -> None:
    """The API server prunes no resource of a ScalePlan, whichever device plugin names it, as upstream's map
    of strings."""
    resource = {"cpu": "1", "nvidia.com/gpu": "2", "example.com/fpga": "1", "ephemeral-storage": "1Gi"}
    plan = {
        "replicaResourceSpecs": {"worker": {"replicas": 2, "resource": dict(resource)}},
        "createPods": [{"name": "mnist-worker-9", "id": 9, "type": "worker", "resource": dict(resource)}],
    }
    obj: dict[str, Any] = {"metadata": {"name": "p"}, "spec": plan}
    pruned = structural.prune_unknown_fields(obj, schema_of(kinds.kind_of("ScalePlan")), root=True)
    assert pruned == []
    assert obj["spec"]["replicaResourceSpecs"]["worker"]["resource"] == resource
    assert obj["spec"]["createPods"][0]["resource"] == resource


@each_kind
def test_schema_is_structural(kind: Kind) -> None:
    """Every node of the schema has a type, and the schema has nothing that the API server rejects."""
    for path, node in walk(schema_of(kind)):
        assert not FORBIDDEN & set(node), path
        assert "type" in node or node.get("x-kubernetes-int-or-string"), path
        assert node.get("additionalProperties") is not False, path
        assert not ("properties" in node and "additionalProperties" in node), path
        if "anyOf" in node:
            assert node["x-kubernetes-int-or-string"], path


@each_kind
def test_status_is_never_defaulted(kind: Kind) -> None:
    """The schema sets no defaults in a status, since only the writer of a status knows what is true."""
    status = schema_of(kind)["properties"]["status"]

    assert [path for path, node in walk(status) if "default" in node or "required" in node] == []


@each_kind
def test_every_field_of_the_model_is_in_the_schema(kind: Kind) -> None:
    """Every field of the model is in the schema; otherwise it would be pruned."""
    for part in ("spec", "status"):
        model = kind.model.model_fields[part].annotation
        wanted = {field.alias or name for name, field in model.model_fields.items()}  # type: ignore[union-attr]
        assert set(schema_of(kind)["properties"][part]["properties"]) == wanted


@each_kind
def test_fields_are_described(kind: Kind) -> None:
    """Each field of a spec has a description, which `kubectl explain` shows."""
    spec = schema_of(kind)["properties"]["spec"]["properties"]
    silent = [name for name, node in spec.items() if not node.get("description")]

    assert silent == []


def test_scale_subresource_reaches_the_workers() -> None:
    """The paths of the scale subresource, which `kubectl scale` and autoscalers use, are fields of the right
    types in the schema."""
    kind = kinds.kind_of("ElasticJob")
    version = crd.crd_of_kind(kind)["spec"]["versions"][0]
    scale = version["subresources"]["scale"]

    assert type_at(schema_of(kind), scale["specReplicasPath"]) == "integer"
    assert type_at(schema_of(kind), scale["statusReplicasPath"]) == "integer"
    assert type_at(schema_of(kind), scale["labelSelectorPath"]) == "string"


@each_kind
def test_columns_show_fields_that_exist(kind: Kind) -> None:
    """The columns' paths exist in the schema; otherwise a column would always be empty."""
    version = crd.crd_of_kind(kind)["spec"]["versions"][0]
    paths = {column["jsonPath"] for column in version["additionalPrinterColumns"]} - {
        ".metadata.creationTimestamp"
    }

    assert [path for path in paths if not type_at(schema_of(kind), path)] == []


TEMPLATE = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}


def refused(manifest: Schema) -> list[str]:
    """What an API server with our definitions says of an object, after it has pruned and defaulted it."""
    schema, obj = schema_of(kinds.kind_of(manifest["kind"])), copy.deepcopy(manifest)
    structural.prune_unknown_fields(obj, schema, root=True)
    structural.set_defaults(obj, schema)
    tree, problems = rules.compile_rules(schema, "")
    assert problems == []
    return [
        cause.message
        for cause in (*schemas.find_schema_errors(obj, schema), *rules.evaluate(obj, None, tree))
    ]


def of_types(**replicas: int) -> Schema:
    """A TFJob's spec with so many replicas of these types."""
    return {
        "tfReplicaSpecs": {key: {"replicas": n, "template": TEMPLATE} for key, n in replicas.items()},
    }


TYPES: list[Any] = [
    pytest.param(of_types(Ps=1, WORKER=2, cHIEF=1, evaluator=1), "", id="any case"),
    pytest.param(of_types(ps=1, worker=2, MASTER=1, EVAL=1), "", id="other names"),
    pytest.param(of_types(Worker=1, Parameter=1), "types are Chief", id="unknown type"),
    pytest.param(of_types(), "at least one type", id="none"),
    pytest.param(of_types(chief=2, Worker=1), "one Chief", id="two chiefs in lower case"),
    pytest.param(of_types(MASTER=2, Worker=1), "one Chief", id="two masters in upper case"),
    pytest.param(of_types(eval=2, Worker=1), "one Evaluator", id="two evaluators"),
    pytest.param(of_types(chief=1, Master=1), "Chief and Master", id="a chief by both names"),
    pytest.param(of_types(worker=1, Worker=1), "Worker stands twice", id="workers twice"),
    pytest.param(of_types(ps=1, Ps=1, Worker=1), "PS stands twice", id="servers twice"),
    pytest.param(of_types(eval=1, Evaluator=1, Worker=1), "Evaluator stands twice", id="evaluators twice"),
]


@pytest.mark.parametrize(("spec", "message"), TYPES)
@pytest.mark.parametrize("version", ["v1", "v1alpha2"])
def test_types_of_replicas_in_any_case_and_no_others(version: str, spec: Schema, message: str) -> None:
    """A replica type is either accepted in upper and lower case, as in upstream, or rejected, but never
    pruned. The model agrees with the API server."""
    head = {"apiVersion": f"kubeflow.org/{version}", "kind": "TFJob", "metadata": {"name": "job"}}
    manifest = {**head, "spec": spec}
    said = refused(manifest)
    try:
        TFJob.parse(manifest)
        taken = True
    except ManifestError:
        taken = False

    assert (said != [], taken) == ((True, False) if message else (False, True)), said
    assert any(message in one for one in said) or not message


def test_rules_stand_at_their_objects() -> None:
    """The schema of a ScalePlan has the transition rules in CEL, which only the server can check."""
    plan = schema_of(kinds.kind_of("ScalePlan"))
    messages = [rule["message"] for rule in plan["x-kubernetes-validations"]]
    messages += [rule["message"] for rule in plan["properties"]["spec"]["x-kubernetes-validations"]]

    assert messages == [
        "the spec of a plan that has begun can't be changed: make a new plan",
        "phases Succeeded and Failed are final",
        "ownerJob can't be changed: make a new plan",
    ]


def test_command_tells_stale_files(capsys: pytest.CaptureFixture[str]) -> None:
    """`--check` succeeds on the committed files."""
    assert crd.main(["--check"]) == 0
    assert capsys.readouterr().err == ""
