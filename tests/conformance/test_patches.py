"""Patches: JSON, merge, strategic merge; server-side apply or its refusal."""

from collections.abc import Callable
from typing import Any

from tests.conformance.support import Api, Object, config_map, pod, refusal

MakeWidget = Callable[..., Object]
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"


def _patch(api: Api, path: str, patch: Any, kind: str) -> Object:
    return api.send("PATCH", path, patch, kind)


def test_merge_patch(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Objects merge, null deletes, lists are replaced."""
    api.post(wpath, widget(labels={"a": "1", "b": "2"}, steps=[{"name": "x"}, {"name": "y"}]))
    spec = api.merge(f"{wpath}/w", {"spec": {"labels": {"a": None, "c": "3"}, "steps": [{"name": "z"}]}})[
        "spec"
    ]

    assert spec["labels"] == {"b": "2", "c": "3"}
    assert spec["steps"] == [{"name": "z", "retries": 3}]


def test_merge_patch_with_version(api: Api, core: str) -> None:
    """A patch with an old version is a Conflict; one without a version succeeds."""
    made = api.post(f"{core}/configmaps", config_map("a"))
    api.merge(f"{core}/configmaps/a", {"data": {"n": "1"}})
    stale = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"n": "2"}}

    assert refusal(lambda: api.merge(f"{core}/configmaps/a", stale)).reason == "Conflict"


def test_json_patch(api: Api, core: str) -> None:
    """add, replace, remove and test work in order; a failed test changes nothing."""
    path = f"{core}/configmaps/a"
    api.post(f"{core}/configmaps", config_map("a", data={"x": "1", "y": "2"}))
    patch = [
        {"op": "test", "path": "/data/x", "value": "1"},
        {"op": "replace", "path": "/data/x", "value": "9"},
        {"op": "remove", "path": "/data/y"},
        {"op": "add", "path": "/data/z", "value": "3"},
    ]
    error_free = _patch(api, path, patch, JSON_PATCH)
    error = refusal(lambda: _patch(api, path, patch, JSON_PATCH))

    assert error_free["data"] == {"x": "9", "z": "3"}
    assert (error.code, error.reason) == (422, "Invalid")
    assert api.get(path)["data"] == {"x": "9", "z": "3"}


def test_malformed_json_patch(api: Api, core: str) -> None:
    """A malformed JSON patch is a BadRequest."""
    api.post(f"{core}/configmaps", config_map("a"))

    assert refusal(lambda: _patch(api, f"{core}/configmaps/a", {"op": "add"}, JSON_PATCH)).code == 400


def test_strategic_merge_of_containers(api: Api, core: str) -> None:
    """Containers merge by name, and their environment variables do, too."""
    containers = [{"name": "a", "image": "i:1"}, {"name": "b", "image": "j:1"}]
    api.post(f"{core}/pods", pod("p", containers=containers))
    patched = _patch(
        api, f"{core}/pods/p", {"spec": {"containers": [{"name": "b", "image": "j:2"}]}}, STRATEGIC
    )

    assert [(one["name"], one["image"]) for one in patched["spec"]["containers"]] == [
        ("a", "i:1"),
        ("b", "j:2"),
    ]


def test_strategic_merge_of_conditions(api: Api, core: str) -> None:
    """Conditions merge by type."""
    path = f"{core}/pods/p/status"
    api.post(f"{core}/pods", pod("p", schedulerName="nobody"))  # no kubelet adds its own
    for kind, state in (("Ready", "False"), ("Initialized", "True"), ("Ready", "True")):
        patch = {"status": {"conditions": [{"type": kind, "status": state}]}}
        answer = _patch(api, path, patch, STRATEGIC)

    assert {one["type"]: one["status"] for one in answer["status"]["conditions"]} == {
        "Ready": "True",
        "Initialized": "True",
    }


def test_strategic_merge_of_ports(api: Api, core: str) -> None:
    """A service's ports merge by port, and $patch: delete removes one."""
    ports = [{"name": "a", "port": 1}, {"name": "b", "port": 2}]
    api.post(f"{core}/services", {"metadata": {"name": "s"}, "spec": {"ports": ports}})
    patch = {"spec": {"ports": [{"port": 1, "targetPort": 11}, {"port": 2, "$patch": "delete"}]}}
    answer = _patch(api, f"{core}/services/s", patch, STRATEGIC)

    assert [(one["port"], one["targetPort"]) for one in answer["spec"]["ports"]] == [(1, 11)]


def test_strategic_merge_of_finalizers(api: Api, core: str) -> None:
    """Finalizers are a set; one is removed by $deleteFromPrimitiveList."""
    path = f"{core}/configmaps/a"
    api.post(f"{core}/configmaps", config_map("a", metadata={"finalizers": ["x.example.com/1"]}))
    more = _patch(api, path, {"metadata": {"finalizers": ["x.example.com/2"]}}, STRATEGIC)
    less = _patch(
        api, path, {"metadata": {"$deleteFromPrimitiveList/finalizers": ["x.example.com/1"]}}, STRATEGIC
    )
    api.merge(path, {"metadata": {"finalizers": None}})

    assert sorted(more["metadata"]["finalizers"]) == ["x.example.com/1", "x.example.com/2"]
    assert less["metadata"]["finalizers"] == ["x.example.com/2"]


def test_strategic_merge_of_custom_resources(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Custom resources have no strategic merge patch: 415."""
    api.post(wpath, widget())

    assert refusal(lambda: _patch(api, f"{wpath}/w", {"spec": {}}, STRATEGIC)).code == 415


def test_unknown_patch(api: Api, core: str) -> None:
    """A patch with an unknown content type gets 415."""
    api.post(f"{core}/configmaps", config_map("a"))

    assert refusal(lambda: _patch(api, f"{core}/configmaps/a", {}, "application/json")).code == 415


def test_patch_can_not_rename(api: Api, core: str) -> None:
    """A patch of the name is refused."""
    api.post(f"{core}/configmaps", config_map("a"))

    assert refusal(lambda: api.merge(f"{core}/configmaps/a", {"metadata": {"name": "b"}})).code in (400, 422)


def test_server_side_apply_or_its_refusal(api: Api, core: str) -> None:
    """Server-side apply works, or is rejected with a message that says what to do instead."""
    manifest = config_map("a", data={"k": "v"})
    kind = "application/apply-patch+yaml"
    response = api.raw("PATCH", f"{core}/configmaps/a", manifest, kind, fieldManager="me")
    answer = response.json()

    if response.status_code == 415:
        assert answer["reason"] == "UnsupportedMediaType"
        assert "client-side apply" in answer["message"]
    else:
        assert answer["data"] == {"k": "v"}
