"""Create, read, update: identity, versions, names, errors."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.conformance.support import Api, Object, config_map, pod, refusal

MakeWidget = Callable[..., Object]


def test_create_sets_identity(api: Api, core: str) -> None:
    """A created object has uid, creationTimestamp and resourceVersion, and reads back the same."""
    made = api.post(f"{core}/configmaps", config_map("a", data={"k": "v"}))

    assert made["metadata"]["uid"]
    assert made["metadata"]["creationTimestamp"].endswith("Z")
    assert int(made["metadata"]["resourceVersion"]) > 0
    assert made["metadata"]["namespace"] == core.rpartition("/")[2]
    assert api.get(f"{core}/configmaps/a") == made


def test_create_twice_is_a_conflict(api: Api, core: str) -> None:
    """A second object of the name is refused with AlreadyExists."""
    api.post(f"{core}/configmaps", config_map("a"))
    error = refusal(lambda: api.post(f"{core}/configmaps", config_map("a")))

    assert (error.code, error.reason) == (409, "AlreadyExists")
    assert error.status["details"] == {"name": "a", "kind": "configmaps"}
    assert error.status["message"] == 'configmaps "a" already exists'


def test_not_found_is_a_status(api: Api, core: str) -> None:
    """An absent object is a Status with reason, code and details."""
    error = refusal(lambda: api.get(f"{core}/pods/nobody"))

    assert error.status == {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": 'pods "nobody" not found',
        "reason": "NotFound",
        "details": {"name": "nobody", "kind": "pods"},
        "code": 404,
    }


def test_unknown_path(api: Api) -> None:
    """An unknown resource gets 404."""
    assert api.absent("/apis/nobody.example.com/v1/things")


def test_absent_namespace(api: Api) -> None:
    """Nothing can be created in a namespace that does not exist."""
    error = refusal(lambda: api.post("/api/v1/namespaces/nowhere/configmaps", config_map("a")))

    assert (error.code, error.status["message"]) == (404, 'namespaces "nowhere" not found')


def test_generate_name(api: Api, core: str) -> None:
    """A generateName yields different names with the prefix."""
    manifest = {"metadata": {"generateName": "run-"}}
    names = {api.post(f"{core}/configmaps", manifest)["metadata"]["name"] for _ in range(5)}

    assert len(names) == 5
    assert all(name.startswith("run-") and len(name) == 9 for name in names)


@pytest.mark.parametrize("name", ["Upper", "under_score", "-dash", "dot.", "a" * 254])
def test_bad_names(api: Api, core: str, name: str) -> None:
    """A name that is no RFC 1123 subdomain is Invalid at metadata.name."""
    error = refusal(lambda: api.post(f"{core}/configmaps", config_map(name)))

    assert (error.code, error.reason) == (422, "Invalid")
    assert "metadata.name" in error.causes


def test_no_name(api: Api, core: str) -> None:
    """An object without name and generateName is Invalid."""
    error = refusal(lambda: api.post(f"{core}/configmaps", {"metadata": {}}))

    assert (error.code, list(error.causes)) == (422, ["metadata.name"])


def test_bad_label(api: Api, core: str) -> None:
    """Label values are checked."""
    error = refusal(
        lambda: api.post(f"{core}/configmaps", config_map("a", metadata={"labels": {"a": "b c"}}))
    )

    assert (error.code, list(error.causes)) == (422, ["metadata.labels"])


def test_wrong_kind(api: Api, core: str) -> None:
    """A manifest of another kind is a BadRequest."""
    error = refusal(lambda: api.post(f"{core}/configmaps", {**config_map("a"), "kind": "Secret"}))

    assert (error.code, error.reason) == (400, "BadRequest")


def test_other_namespace(api: Api, core: str) -> None:
    """A manifest whose namespace differs from that of the path is a BadRequest."""
    error = refusal(
        lambda: api.post(f"{core}/configmaps", config_map("a", metadata={"namespace": "default"}))
    )

    assert (error.code, error.reason) == (400, "BadRequest")


def test_version_on_create(api: Api, core: str) -> None:
    """A resourceVersion may not be set on create."""
    error = refusal(
        lambda: api.post(f"{core}/configmaps", config_map("a", metadata={"resourceVersion": "5"}))
    )

    assert (error.code, error.reason) == (400, "BadRequest") or error.code == 500


def test_malformed_body(api: Api, core: str) -> None:
    """A body that is no JSON is a BadRequest."""
    response = api.raw("POST", f"{core}/configmaps", b'{"metadata": ')

    assert (response.status_code, response.json()["reason"]) == (400, "BadRequest")


def test_large_body(api: Api, core: str) -> None:
    """A body of more than 3 MiB is refused."""
    error = refusal(
        lambda: api.post(f"{core}/configmaps", config_map("a", data={"k": "v" * (3 * 1024 * 1024)}))
    )

    assert (error.code, error.reason) == (413, "RequestEntityTooLarge")


def test_yaml_body(api: Api, core: str) -> None:
    """Manifests may be YAML."""
    body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {k: v}\n"
    response = api.raw("POST", f"{core}/configmaps", body, "application/yaml")

    assert response.status_code == 201


def test_optimistic_locking(api: Api, core: str) -> None:
    """An update from an old version is a Conflict and changes nothing."""
    first = api.post(f"{core}/configmaps", config_map("a", data={"n": "1"}))
    second = api.put(f"{core}/configmaps/a", {**first, "data": {"n": "2"}})
    error = refusal(lambda: api.put(f"{core}/configmaps/a", {**first, "data": {"n": "3"}}))

    assert int(second["metadata"]["resourceVersion"]) > int(first["metadata"]["resourceVersion"])
    assert (error.code, error.reason) == (409, "Conflict")
    assert "the object has been modified" in error.status["message"]
    assert api.get(f"{core}/configmaps/a")["data"] == {"n": "2"}


def test_versions_are_global(api: Api, core: str, wpath: str, widget: MakeWidget) -> None:
    """One counter serves all resources."""
    versions = [
        int(api.post(f"{core}/configmaps", config_map("a"))["metadata"]["resourceVersion"]),
        int(api.post(wpath, widget())["metadata"]["resourceVersion"]),
        int(api.post(f"{core}/secrets", {"metadata": {"name": "a"}})["metadata"]["resourceVersion"]),
    ]

    assert versions == sorted(set(versions))


def test_update_without_change(api: Api, core: str) -> None:
    """An update that changes nothing keeps the version."""
    made = api.post(f"{core}/configmaps", config_map("a"))

    assert (
        api.put(f"{core}/configmaps/a", made)["metadata"]["resourceVersion"]
        == made["metadata"]["resourceVersion"]
    )


def test_unconditional_update(api: Api, core: str, wpath: str, widget: MakeWidget) -> None:
    """Built-in objects may be replaced without a version, custom ones may not."""
    api.post(f"{core}/configmaps", config_map("a"))
    api.post(wpath, widget())
    error = refusal(lambda: api.put(f"{wpath}/w", widget(replicas=2)))

    assert api.put(f"{core}/configmaps/a", config_map("a", data={"k": "v"}))["data"] == {"k": "v"}
    assert (error.code, list(error.causes)) == (422, ["metadata.resourceVersion"])


def test_uid_precondition(api: Api, core: str) -> None:
    """An update that names another uid is a Conflict."""
    made = api.post(f"{core}/configmaps", config_map("a"))
    made["metadata"]["uid"] = "11111111-1111-1111-1111-111111111111"
    error = refusal(lambda: api.put(f"{core}/configmaps/a", made))

    assert (error.code, error.reason) == (409, "Conflict")


def test_system_metadata_is_kept(api: Api, wpath: str, widget: MakeWidget) -> None:
    """Clients can't change creationTimestamp and generation."""
    made = api.post(wpath, widget())
    made["metadata"] |= {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 77, "labels": {"a": "b"}}
    written = api.put(f"{wpath}/w", made)["metadata"]

    assert written["creationTimestamp"] != "2001-01-01T00:00:00Z"
    assert (written["generation"], written["labels"]) == (1, {"a": "b"})


def test_update_of_absent(api: Api, core: str) -> None:
    """PUT does not create."""
    error = refusal(lambda: api.put(f"{core}/configmaps/a", config_map("a")))

    assert error.code == 404


def test_dry_run(api: Api, core: str) -> None:
    """A dry run answers as if the object were written, and stores nothing."""
    made = api.post(f"{core}/configmaps", config_map("a"), dryRun="All")
    api.post(f"{core}/configmaps", config_map("b", data={"n": "1"}))
    changed = api.merge(f"{core}/configmaps/b", {"data": {"n": "2"}}, dryRun="All")
    api.delete(f"{core}/configmaps/b", dryRun="All")

    assert made["metadata"]["uid"]
    assert changed["data"] == {"n": "2"}
    assert api.absent(f"{core}/configmaps/a")
    assert api.get(f"{core}/configmaps/b")["data"] == {"n": "1"}


def test_dry_run_refuses_too(api: Api, core: str) -> None:
    """A dry run is rejected like a real write. ``All`` is the only value of the option."""
    assert refusal(lambda: api.post(f"{core}/configmaps", config_map("A"), dryRun="All")).code == 422
    assert refusal(lambda: api.post(f"{core}/configmaps", config_map("a"), dryRun="Some")).code in (400, 422)


@pytest.mark.parametrize(
    ("validation", "code", "warned"), [("Strict", 400, False), ("Warn", 201, True), ("Ignore", 201, False)]
)
@pytest.mark.parametrize("resource", ["pods", "widgets"])
def test_field_validation(
    api: Api,
    core: str,
    wpath: str,
    widget: MakeWidget,
    resource: str,
    validation: str,
    code: int,
    warned: bool,
) -> None:
    """Unknown fields are rejected, warned of or dropped, as requested, and never stored."""
    path = f"{core}/pods" if resource == "pods" else wpath
    manifest: dict[str, Any] = pod("w") if resource == "pods" else widget()
    manifest["spec"]["imgae"] = "typo"
    response = api.raw("POST", path, manifest, fieldValidation=validation)

    assert response.status_code == code
    assert ("imgae" in response.headers.get("warning", "")) is warned
    if code == 400:
        assert 'unknown field "spec.imgae"' in response.json()["message"]
    else:
        assert "imgae" not in response.json()["spec"]


def test_method_not_allowed(api: Api, core: str) -> None:
    """A verb that a resource does not have gets 405."""
    error = refusal(lambda: api.send("PUT", f"{core}/configmaps", {}))

    assert (error.code, error.reason) == (405, "MethodNotAllowed")
