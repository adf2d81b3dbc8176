"""Bodies, names and patches that no honest client sends: each is refused with its field, and the server goes
on."""

import base64
import json
import uuid
from typing import Any

import pytest

from tests.conformance.support import Api, Object, config_map, pod

pytestmark = pytest.mark.slow

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"


def container(**fields: Any) -> Object:
    return {"containers": [{"name": "main", "image": "none", **fields}]}


def volume(**source: Any) -> Object:
    return {"volumes": [{"name": "v", **source}]}


PODS_REFUSED: dict[str, tuple[Object, str]] = {
    "container name with a path": (container(name="../../escape"), "spec.containers[0].name"),
    "volume name with a path": ({"volumes": [{"name": "../../v", "emptyDir": {}}]}, "spec.volumes[0].name"),
    "volume item above its volume": (
        volume(configMap={"name": "m", "items": [{"key": "k", "path": "../../k"}]}),
        "spec.volumes[0].configMap.items[0].path",
    ),
    "volume item with an absolute path": (
        volume(secret={"secretName": "s", "items": [{"key": "k", "path": "/etc/k"}]}),
        "spec.volumes[0].secret.items[0].path",
    ),
    "projected item above its volume": (
        volume(projected={"sources": [{"configMap": {"name": "m",
        "items": [{"key": "k", "path": "a/../../k"}]}}]}),
        "spec.volumes[0].projected.sources[0].configMap.items[0].path",
    ),
    "variable with an equals sign": (container(env=[{"name": "A=B", "value": "x"}]),
    "spec.containers[0].env[0].name"),
    "port beyond the last": (container(ports=[{"containerPort": 65536}]),
    "spec.containers[0].ports[0].containerPort"),
    "negative port": (container(ports=[{"containerPort": -1}]), "spec.containers[0].ports[0].containerPort"),
}  # fmt: skip


@pytest.mark.parametrize("row", PODS_REFUSED)
def test_a_pod_that_reaches_out_of_its_place_is_refused(row: str, api: Api) -> None:
    """Names become folders and files on a node. A pod with a path in a name, or with another invalid value,
    is rejected with the field."""
    spec, path = PODS_REFUSED[row]

    answer = api.raw("POST", PODS, pod("hostile", **spec))

    assert answer.status_code == 422, answer.text
    assert path in [cause["field"] for cause in answer.json()["details"]["causes"]]


@pytest.mark.parametrize("key", ["../k", "..", "a/b", "", "k" * 254])
def test_a_key_that_is_no_file_name_is_refused(key: str, api: Api) -> None:
    """Keys of ConfigMaps become file names in volumes, so invalid file names are rejected."""
    assert api.raw("POST", MAPS, config_map("hostile", data={key: "x"})).status_code == 422


@pytest.mark.parametrize("name", ["a\n", "../a", "a/b", "A", "a" * 254])
def test_a_name_that_is_none_is_refused(name: str, api: Api) -> None:
    """A malformed name is rejected, even one with only a line break at its end."""
    assert api.raw("POST", MAPS, config_map(name)).status_code == 422


BODIES: dict[str, bytes] = {
    "cut off": b'{"kind": ',
    "too deep": b"[" * 100_000,
    "not UTF-8": b"\xff\xfe",
    "a wrong type": b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": [1]}',
}


@pytest.mark.parametrize("row", BODIES)
def test_a_body_that_is_no_object_is_refused(row: str, api: Api) -> None:
    """A body that is not an object gets 400, whatever is wrong with it."""
    assert api.raw("POST", MAPS, BODIES[row]).status_code == 400


UNREPRESENTABLE: dict[str, tuple[str, bytes]] = {
    "no number": ("application/json", (b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": '
        b'"a", "x": NaN}}')),
    "an endless number": ("application/json", b'{"kind": "ConfigMap", "metadata": {"generation": 1e999}}'),
}  # fmt: skip


@pytest.mark.parametrize("row", UNREPRESENTABLE)
def test_values_that_json_does_not_have_are_refused(row: str, api: Api) -> None:
    """NaN and infinity are refused, since answers could not contain them."""
    kind, body = UNREPRESENTABLE[row]

    assert api.raw("POST", MAPS, body, kind).status_code == 400


STRICTER: dict[str, tuple[str, bytes]] = {
    "half a "
    "surrogate pair": ("application/json", json.dumps(config_map("hostile", data={"k": "\ud800"})).encode()),
    "YAML aliases": ("application/yaml", b"a: &a [x]\nb: *a\n"),
    "a YAML object": ("application/yaml", b"a: !!python/object/apply:os.system [id]\n"),
}  # fmt: skip


@pytest.mark.embedded_only("Kubernetes reads such a body, and replaces or ignores what is odd in it")
@pytest.mark.parametrize("row", STRICTER)
def test_a_body_that_kubernetes_would_mend_is_refused(row: str, api: Api) -> None:
    """A body that Kubernetes would silently correct is rejected, so that the client learns of it."""
    kind, body = STRICTER[row]

    assert api.raw("POST", MAPS, body, kind).status_code == 400


@pytest.mark.parametrize(
    "token",
    [b"[" * 30_000, b'{"rv": 1e999, "after": ["", ""]}', b'{"rv": "x", "after": ["", ""]}', b"[]"],
    ids=["deep", "endless", "text", "list"],
)
def test_a_forged_continue_token_is_refused(token: bytes, api: Api) -> None:
    """A continue token that a client has forged is rejected with 400."""
    query: dict[str, Any] = {"limit": 1, "continue": base64.urlsafe_b64encode(token).decode()}
    answer = api.raw("GET", PODS, **query)

    assert answer.status_code == 400, answer.text


def test_a_patch_can_not_make_a_huge_object_of_a_small_one(api: Api) -> None:
    """A patch that doubles an object thirty times would create gigabytes, and is rejected."""
    api.post(MAPS, config_map("bomb", data={"k": "x" * 1000}))
    copies = [{"op": "copy", "from": "/data", "path": f"/data/n{n}"} for n in range(30)]

    answer = api.raw("PATCH", f"{MAPS}/bomb", copies, "application/json-patch+json")
    api.delete(f"{MAPS}/bomb")

    assert answer.status_code in (
        413,
        422,
    )  # too large, or no map of strings any more: each server's first look


@pytest.mark.parametrize(
    "patch",
    [
        pytest.param(
            {"spec": {"containers": [], "$setElementOrder/containers": 5}},
            marks=pytest.mark.embedded_only("Kubernetes answers 500"),
        ),
        {"spec": {"$retainKeys": 5}},
        {"spec": {"containers": 5}},
        {"metadata": {"labels": 5}},
    ],
    ids=json.dumps,
)
def test_a_malformed_strategic_patch_is_refused(patch: Object, api: Api) -> None:
    """A malformed strategic merge patch gets a client error."""
    # A name for each case: the end of one pod must not be taken for that of the next.
    name = f"patched-{uuid.uuid4().hex[:8]}"
    api.post(PODS, pod(name))

    answer = api.raw("PATCH", f"{PODS}/{name}", patch, "application/strategic-merge-patch+json")
    api.raw("DELETE", f"{PODS}/{name}", {"gracePeriodSeconds": 0})

    assert 400 <= answer.status_code < 500, answer.text


@pytest.mark.embedded_only("Kubernetes answers 500")
@pytest.mark.parametrize(
    "options", [{"preconditions": 5}, {"dryRun": 5}, {"gracePeriodSeconds": "x"}], ids=json.dumps
)
def test_options_of_a_wrong_type_are_refused(options: Object, api: Api) -> None:
    """Options of a wrong type get a client error."""
    assert 400 <= api.raw("DELETE", f"{MAPS}/nothing", options).status_code < 500


@pytest.mark.parametrize(
    ("subresource", "body"), [("binding", {"target": "x"}), ("eviction", {"deleteOptions": "x"})]
)
def test_bodies_of_a_wrong_type_are_refused(subresource: str, body: Object, api: Api) -> None:
    """Bodies of a wrong type get a client error."""
    assert 400 <= api.raw("POST", f"{PODS}/nothing/{subresource}", body).status_code < 500
