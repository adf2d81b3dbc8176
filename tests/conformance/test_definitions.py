"""CustomResourceDefinitions and what their schemas promise: defaults, pruning, validation, CEL rules."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.conftest import CRDS, define
from tests.conformance.support import Api, Object, RefusedError, eventually, refusal

MakeWidget = Callable[..., Object]
MakeCrd = Callable[..., Object]


def test_established(api: Api, widgets: str) -> None:
    """A served definition says so in its conditions and stored versions."""
    status = api.get(f"{CRDS}/widgets.{widgets}")["status"]
    conditions = {one["type"]: one["status"] for one in status["conditions"]}

    assert (conditions["Established"], conditions["NamesAccepted"]) == ("True", "True")
    assert status["storedVersions"] == ["v1"]
    assert status["acceptedNames"]["kind"] == "Widget"


def _broken(definition: Object, change: Callable[[Object], object]) -> Object:
    broken = copy.deepcopy(definition)
    change(broken["spec"])
    return broken


def _schema(spec: Object) -> Object:
    schema: Object = spec["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda spec: spec["names"].update(plural="others"), id="name is plural.group"),
        pytest.param(lambda spec: spec["versions"][0].update(storage=False), id="one storage version"),
        pytest.param(lambda spec: spec["versions"][0].pop("schema"), id="a schema"),
        pytest.param(lambda spec: _schema(spec)["properties"]["spec"].pop("type"), id="structural: types"),
        pytest.param(
            lambda spec: _schema(spec)["properties"].update(x={"type": "array"}), id="structural: items"
        ),
        pytest.param(lambda spec: spec.update(scope="Galaxy"), id="scope"),
        pytest.param(
            lambda spec: _schema(spec)["properties"]["spec"].update(
                {"x-kubernetes-validations": [{"rule": "self.("}]}
            ),
            id="a rule compiles",
        ),
    ],
)
def test_broken_definitions(api: Api, make_crd: MakeCrd, change: Callable[[Object], object]) -> None:
    """A definition that can't be served is Invalid, and each problem is a cause."""
    error = refusal(lambda: api.post(CRDS, _broken(make_crd(), change)))

    assert (error.code, error.reason) == (422, "Invalid")
    assert error.causes


def test_deleted_definition_takes_its_objects_along(api: Api, namespace: str, make_crd: MakeCrd) -> None:
    """Deleting a definition deletes its objects and its paths."""
    definition = make_crd()
    define(api, definition)
    group = definition["spec"]["group"]
    path = f"/apis/{group}/v1/namespaces/{namespace}/gears"
    manifest = {
        "apiVersion": f"{group}/v1",
        "kind": "Gear",
        "metadata": {"name": "g"},
        "spec": {"image": "a"},
    }
    api.post(path, manifest)
    api.delete(f"{CRDS}/gears.{group}")

    eventually(lambda: api.absent(f"{CRDS}/gears.{group}"), "the definition is gone")
    eventually(lambda: api.absent(path), "the path is gone")
    define(api, definition)
    assert api.get(path)["items"] == []


def test_two_versions(api: Api, namespace: str, make_crd: MakeCrd) -> None:
    """An object can be written in one served version and read in another; only apiVersion differs."""
    definition = make_crd()
    second = {**definition["spec"]["versions"][0], "name": "v2", "storage": False}
    definition["spec"]["versions"].append(second)
    define(api, definition)
    group = definition["spec"]["group"]
    paths = {version: f"/apis/{group}/{version}/namespaces/{namespace}/gears" for version in ("v1", "v2")}
    eventually(lambda: not api.absent(paths["v2"]), "v2 is served")
    api.post(
        paths["v2"],
        {"apiVersion": f"{group}/v2", "kind": "Gear", "metadata": {"name": "g"}, "spec": {"image": "a"}},
    )
    old, new = api.get(f"{paths['v1']}/g"), api.get(f"{paths['v2']}/g")

    assert (old.pop("apiVersion"), new.pop("apiVersion")) == (f"{group}/v1", f"{group}/v2")
    assert old["spec"] == new["spec"]
    assert [item["apiVersion"] for item in api.get(paths["v2"])["items"]] == [f"{group}/v2"]


def test_new_storage_version(api: Api, namespace: str, make_crd: MakeCrd) -> None:
    """After a change of the storage version, older objects can be read in every served version."""
    definition = make_crd()
    definition["spec"]["versions"].append(
        {**definition["spec"]["versions"][0], "name": "v2", "storage": False}
    )
    define(api, definition)
    group = definition["spec"]["group"]
    path = f"/apis/{group}/v2/namespaces/{namespace}/gears"
    eventually(lambda: not api.absent(path), "v2 is served")
    api.post(
        path, {"apiVersion": f"{group}/v2", "kind": "Gear", "metadata": {"name": "g"}, "spec": {"image": "a"}}
    )
    stored = api.get(f"{CRDS}/gears.{group}")
    stored["spec"]["versions"][0]["storage"], stored["spec"]["versions"][1]["storage"] = False, True
    api.put(f"{CRDS}/gears.{group}", stored)

    def known() -> bool:
        versions: list[str] = api.get(f"{CRDS}/gears.{group}")["status"]["storedVersions"]
        return versions == ["v1", "v2"]

    eventually(known, "both storage versions are remembered")
    assert api.get(f"{path}/g")["apiVersion"] == f"{group}/v2"
    assert [item["apiVersion"] for item in api.get(path)["items"]] == [f"{group}/v2"]


def test_changed_schema_holds_for_new_writes(api: Api, namespace: str, make_crd: MakeCrd) -> None:
    """A definition can gain fields; later writes keep them."""
    definition = make_crd()
    define(api, definition)
    group = definition["spec"]["group"]
    path = f"/apis/{group}/v1/namespaces/{namespace}/gears"
    stored = api.get(f"{CRDS}/gears.{group}")
    _schema(stored["spec"])["properties"]["spec"]["properties"]["colour"] = {"type": "string"}
    api.put(f"{CRDS}/gears.{group}", stored)
    manifest = {
        "apiVersion": f"{group}/v1",
        "kind": "Gear",
        "metadata": {"generateName": "g-"},
        "spec": {"image": "a", "colour": "red"},
    }

    def kept() -> bool:
        try:
            return bool(api.post(path, manifest)["spec"].get("colour") == "red")
        except RefusedError as error:
            # Kubernetes ends the handler of the old schema under requests that it is still serving.
            if error.code != 503:
                raise
            return False

    eventually(kept, "the new field is kept")


def test_defaults(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Absent fields get their defaults, in lists too; given ones stay."""
    spec = api.post(wpath, widget(max=5, steps=[{"name": "x"}, {"name": "y", "retries": 0}]))["spec"]

    assert (spec["replicas"], spec["max"]) == (1, 5)
    assert [step["retries"] for step in spec["steps"]] == [3, 0]


def test_null_takes_the_default(api: Api, wpath: str, widget: MakeWidget) -> None:
    """A null in a field that is not nullable becomes the default. A nullable field keeps null."""
    spec = api.post(wpath, widget(replicas=None, nullable=None))["spec"]

    assert (spec["replicas"], spec["nullable"]) == (1, None)


def test_pruning(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Unknown fields are dropped, except below preserve-unknown-fields and in embedded metadata."""
    template = {"apiVersion": "v1", "kind": "Pod", "metadata": {"labels": {"a": "b"}}, "spec": {"any": 1}}
    manifest = widget(unknown=1, free={"any": {"thing": [1]}}, template=template, labels={"free": "text"})
    made = api.post(wpath, {**manifest, "more": 1})

    assert "more" not in made
    assert "unknown" not in made["spec"]
    assert made["spec"]["free"] == {"any": {"thing": [1]}}
    assert made["spec"]["template"]["spec"] == {"any": 1}
    assert made["spec"]["template"]["metadata"] == {"labels": {"a": "b"}}
    assert made["spec"]["labels"] == {"free": "text"}


@pytest.mark.parametrize(
    ("spec", "path", "words"),
    [
        pytest.param({"image": None}, "spec.image", "Required value", id="required"),
        pytest.param({"image": 5}, "spec.image", "must be of type string", id="type"),
        pytest.param({"image": ""}, "spec.image", "at least 1", id="minLength"),
        pytest.param({"replicas": -1}, "spec.replicas", "greater than or equal to 0", id="minimum"),
        pytest.param({"replicas": 1.5}, "spec.replicas", "must be of type integer", id="integer"),
        pytest.param({"replicas": True}, "spec.replicas", "must be of type integer", id="no boolean"),
        pytest.param({"size": "XL"}, "spec.size", 'supported values: "S", "M"', id="enum"),
        pytest.param({"port": True}, "spec.port", "must be of type", id="int or string"),
        pytest.param({"labels": {"a": 1}}, "spec.labels.a", "must be of type string", id="values"),
        pytest.param({"steps": [{"name": "a"}, {}]}, "spec.steps[1].name", "Required value", id="in a list"),
        pytest.param(
            {"steps": [{"name": "a"}, {"name": "a"}]}, "spec.steps[1]", "Duplicate value", id="list map"
        ),
        pytest.param({"steps": "text"}, "spec.steps", "must be of type array", id="array"),
    ],
)
def test_schema_validation(
    api: Api, wpath: str, widget: MakeWidget, spec: dict[str, Any], path: str, words: str
) -> None:
    """A value that violates the schema is Invalid, with the field's path and what would be right."""
    manifest = widget()
    manifest["spec"] |= spec
    if spec == {"image": None}:
        del manifest["spec"]["image"]
    error = refusal(lambda: api.post(wpath, manifest))

    assert (error.code, error.reason) == (422, "Invalid")
    assert words in error.causes[path]
    assert error.status["details"]["kind"] == "Widget"


@pytest.mark.parametrize("value", [80, "http"])
def test_int_or_string(api: Api, wpath: str, widget: MakeWidget, value: object) -> None:
    """An int-or-string field accepts both types."""
    assert api.post(wpath, widget(port=value))["spec"]["port"] == value


def test_all_problems_at_once(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Each invalid field is a cause of the same rejection."""
    error = refusal(lambda: api.post(wpath, widget(replicas=-1, size="XL")))

    assert {"spec.replicas", "spec.size"} <= error.causes.keys()


def test_rule(api: Api, wpath: str, widget: MakeWidget) -> None:
    """A CEL rule is checked on create and update, and the error has its message."""
    error = refusal(lambda: api.post(wpath, widget(replicas=11)))
    api.post(wpath, widget(replicas=10))
    later = refusal(lambda: api.merge(f"{wpath}/w", {"spec": {"replicas": 11}}))

    for one in (error, later):
        assert (one.code, one.reason) == (422, "Invalid")
        assert "replicas may not exceed max" in one.causes["spec"]


def test_transition_rule(api: Api, wpath: str, widget: MakeWidget) -> None:
    """A rule with oldSelf is checked on updates but not on creation."""
    api.post(wpath, widget())
    error = refusal(lambda: api.merge(f"{wpath}/w", {"spec": {"image": "b"}}))

    assert "image is immutable" in error.causes["spec.image"]


def test_transition_rule_in_a_list(api: Api, wpath: str, widget: MakeWidget) -> None:
    """In a list of type map, the old value is the entry with the same key, whatever its position."""
    api.post(wpath, widget(steps=[{"name": "a", "frozen": "1"}, {"name": "b", "frozen": "2"}]))
    moved = api.merge(
        f"{wpath}/w", {"spec": {"steps": [{"name": "b", "frozen": "2"}, {"name": "a", "frozen": "1"}]}}
    )
    error = refusal(lambda: api.merge(f"{wpath}/w", {"spec": {"steps": [{"name": "b", "frozen": "9"}]}}))

    assert [step["name"] for step in moved["spec"]["steps"]] == ["b", "a"]
    assert "frozen" in error.causes["spec.steps[0].frozen"]


def test_selectable_fields(api: Api, namespace: str, make_crd: MakeCrd) -> None:
    """Objects can be selected by the fields that their definition names, and by no others."""
    definition = make_crd(selectableFields=[{"jsonPath": ".spec.size"}])
    define(api, definition)
    group = definition["spec"]["group"]
    path = f"/apis/{group}/v1/namespaces/{namespace}/gears"
    for name, size in (("a", "S"), ("b", "M")):
        spec = {"image": "a", "size": size}
        api.post(
            path, {"apiVersion": f"{group}/v1", "kind": "Gear", "metadata": {"name": name}, "spec": spec}
        )
    found = api.get(path, fieldSelector="spec.size=M")["items"]

    assert [item["metadata"]["name"] for item in found] == ["b"]
    assert refusal(lambda: api.get(path, fieldSelector="spec.image=a")).code == 400


def test_cluster_scope(api: Api, make_crd: MakeCrd) -> None:
    """Objects of cluster scope have no namespace."""
    definition = make_crd()
    definition["spec"]["scope"] = "Cluster"
    define(api, definition)
    group = definition["spec"]["group"]
    path = f"/apis/{group}/v1/gears"
    made = api.post(
        path, {"apiVersion": f"{group}/v1", "kind": "Gear", "metadata": {"name": "g"}, "spec": {"image": "a"}}
    )

    assert "namespace" not in made["metadata"]
    assert api.get(f"{path}/g") == made
    assert api.absent(f"/apis/{group}/v1/namespaces/default/gears")
