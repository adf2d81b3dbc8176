"""Discovery, OpenAPI, health, and who may do what."""

import time

import httpx
import pytest

from tests.conformance.support import Api, Object, RefusedError, config_map, eventually, refusal


def anonymous(api: Api, **headers: str) -> httpx.Client:
    """A client without credentials of its own."""
    client = httpx.Client(base_url=api.http.base_url, verify=False, headers=headers)
    client.cookies.clear()
    return client


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/livez"])
def test_health(api: Api, path: str) -> None:
    """Health needs no token."""
    with anonymous(api) as client:
        answer = client.get(path)

    assert (answer.status_code, answer.text) == (200, "ok")


def test_version(api: Api) -> None:
    """The version names a Kubernetes release of 1.29 or later."""
    version = api.get("/version")

    assert (version["major"], int(version["minor"].rstrip("+")) >= 29) == ("1", True)
    assert version["gitVersion"].startswith("v1.")


def _entry(api: Api, path: str, name: str) -> Object:
    resources = api.get(path)["resources"]
    found: Object = next(entry for entry in resources if entry["name"] == name)
    return found


def test_discovery(api: Api, widgets: str) -> None:
    """Groups, versions and resources can be discovered, custom ones too."""
    groups = {group["name"]: group for group in api.get("/apis")["groups"]}
    pods = _entry(api, "/api/v1", "pods")
    custom = _entry(api, f"/apis/{widgets}/v1", "widgets")

    assert api.get("/api")["versions"] == ["v1"]
    assert {"apiextensions.k8s.io", "coordination.k8s.io", widgets} <= groups.keys()
    assert groups[widgets]["preferredVersion"] == {"groupVersion": f"{widgets}/v1", "version": "v1"}
    assert (pods["kind"], pods["namespaced"], pods["shortNames"]) == ("Pod", True, ["po"])
    assert {"create", "delete", "get", "list", "patch", "update", "watch"} <= set(custom["verbs"])
    assert (custom["singularName"], custom["shortNames"]) == ("widget", ["wdg"])
    assert _entry(api, f"/apis/{widgets}/v1", "widgets/scale")["kind"] == "Scale"
    assert _entry(api, f"/apis/{widgets}/v1", "widgets/status")["kind"] == "Widget"
    assert api.get(f"/apis/{widgets}")["name"] == widgets


def test_openapi_v2(api: Api, widgets: str) -> None:
    """OpenAPI v2, which older clients read, names the built-in and custom kinds with their fields."""

    def described() -> dict[str, Object]:
        definitions = api.get("/openapi/v2")["definitions"].values()
        kinds = [
            (kind, one) for one in definitions for kind in one.get("x-kubernetes-group-version-kind", [])
        ]
        return {f"{kind['group']}/{kind['kind']}": one for kind, one in kinds}

    eventually(lambda: f"{widgets}/Widget" in described(), "the custom resource is described")
    found = described()

    assert api.get("/openapi/v2")["swagger"] == "2.0"
    assert "spec" in found["/Pod"]["properties"]
    assert "image" in str(found[f"{widgets}/Widget"]["properties"]["spec"])


def test_openapi(api: Api, widgets: str) -> None:
    """OpenAPI v3 describes a custom resource and says that the server validates fields."""

    def described() -> Object | None:
        path = api.get("/openapi/v3")["paths"].get(f"apis/{widgets}/v1")
        return api.get(path["serverRelativeURL"]) if path else None

    deadline = time.monotonic() + 30  # a real server publishes some seconds after the definition
    while (document := described()) is None and time.monotonic() < deadline:
        time.sleep(0.2)
    assert document is not None
    kind = {"group": widgets, "version": "v1", "kind": "Widget"}
    schemas = document["components"]["schemas"].values()
    described_by = next(one for one in schemas if one.get("x-kubernetes-group-version-kind") == [kind])
    patch = document["paths"][f"/apis/{widgets}/v1/namespaces/{{namespace}}/widgets/{{name}}"]["patch"]

    assert described_by["properties"]["spec"]["properties"]["image"]["type"] == "string"
    assert "fieldValidation" in [parameter["name"] for parameter in patch["parameters"]]


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Basic YTpi", "Bearer edl-sa.e30.x", "Bearer"])
def test_unauthorized(api: Api, header: str) -> None:
    """Without a valid token everything but health is rejected, with 401, or with 403 where anonymous requests
    are enabled."""
    with anonymous(api, **({"authorization": header} if header.strip() else {})) as client:
        for answer in (
            client.get("/api/v1/namespaces"),
            client.get("/apis"),
            client.delete("/api/v1/namespaces/x"),
        ):
            assert answer.status_code in (401, 403)
            assert answer.json()["kind"] == "Status"


def service_account_token(api: Api, core: str, name: str) -> str:
    """A token of a new service account."""
    api.post(f"{core}/serviceaccounts", {"metadata": {"name": name}})
    body = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": 600},
    }
    return str(api.post(f"{core}/serviceaccounts/{name}/token", body)["status"]["token"])


def test_service_account_token(api: Api, core: str) -> None:
    """A service account's token is not allowed in other namespaces, and becomes invalid with the account."""
    with anonymous(api, authorization=f"Bearer {service_account_token(api, core, 'worker')}") as client:
        account = Api(client, api.kubeconfig)
        abroad = refusal(lambda: account.get("/api/v1/namespaces/kube-system/secrets"))
        writing = refusal(lambda: account.post("/api/v1/nodes", {"metadata": {"name": "x"}}))
        api.delete(f"{core}/serviceaccounts/worker")

        def ended() -> bool:
            return account.raw("GET", f"{core}/configmaps").status_code == 401

        eventually(ended, "the token ends")  # a real server remembers tokens for some seconds

    assert [(error.code, error.reason) for error in (abroad, writing)] == [(403, "Forbidden")] * 2


def test_token_needs_an_account(api: Api, core: str) -> None:
    """A token needs an existing account, and is valid for at least ten minutes."""
    body = {"spec": {"expirationSeconds": 5}}

    assert refusal(lambda: api.post(f"{core}/serviceaccounts/nobody/token", {"spec": {}})).code == 404
    assert refusal(lambda: api.post(f"{core}/serviceaccounts/default/token", body)).code == 422


def test_absent_account(api: Api, core: str) -> None:
    """A pod can't run as an account that does not exist."""
    spec = {"serviceAccountName": "nobody", "containers": [{"name": "a", "image": "i"}]}
    error = refusal(lambda: api.post(f"{core}/pods", {"metadata": {"name": "p"}, "spec": spec}))

    assert (error.code, error.reason) == (403, "Forbidden")


def test_refusals_leave_nothing(api: Api, core: str) -> None:
    """A rejected write changes nothing."""
    with pytest.raises(RefusedError):
        api.post(f"{core}/configmaps", config_map("a", metadata={"labels": {"bad label": "x"}}))

    assert api.absent(f"{core}/configmaps/a")
