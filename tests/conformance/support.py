"""Raw access to an API server for the conformance cases: paths and JSON, so that nothing hides what it
answers."""

import base64
import json
import ssl
import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import httpx
import yaml

Object = dict[str, Any]
WAIT_SECONDS = 90.0


class RefusedError(Exception):
    """An answer that is no success; `status` is its ``Status`` object."""

    def __init__(self, code: int, status: Object) -> None:
        self.code = code
        self.status = status
        super().__init__(f"{code}: {status.get('message')}")

    @property
    def reason(self) -> str:
        return str(self.status.get("reason"))

    @property
    def causes(self) -> dict[str, str]:
        """Field path → message."""
        return {
            one.get("field", ""): one["message"] for one in self.status.get("details", {}).get("causes", [])
        }


def connect(kubeconfig: Path) -> httpx.Client:
    """A client with the credentials of a kubeconfig's current context: token or client certificate."""
    config = yaml.safe_load(kubeconfig.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    authority = _pem(cluster, "certificate-authority", kubeconfig.parent)
    trust = ssl.create_default_context(cafile=str(authority) if authority else None)
    certificate = _pem(user, "client-certificate", kubeconfig.parent)
    if certificate:
        trust.load_cert_chain(certificate, _pem(user, "client-key", kubeconfig.parent))
    headers = {"authorization": f"Bearer {user['token']}"} if "token" in user else {}
    return httpx.Client(base_url=cluster["server"], headers=headers, verify=trust, timeout=240)


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _pem(section: Object, field: str, folder: Path) -> Path | None:
    if data := section.get(f"{field}-data"):
        path = folder / f"conformance-{field}.pem"
        path.write_bytes(base64.b64decode(data))
        return path
    return folder / section[field] if field in section else None


class Api:
    """Verbs on paths of one API server."""

    def __init__(self, http: httpx.Client, kubeconfig: Path) -> None:
        self.http = http
        self.kubeconfig = kubeconfig

    def send(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: Any
    ) -> Object:
        """One request; the object that answers it."""
        response = self.raw(method, path, body, content_type, **query)
        if response.status_code >= 300:
            raise RefusedError(response.status_code, response.json())
        answer: Object = response.json()
        return answer

    def raw(
        self, method: str, path: str, body: Any = None, content_type: str = "application/json", **query: Any
    ) -> httpx.Response:
        """One request; the answer as it comes."""
        content = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = {"content-type": content_type} if content is not None else {}
        return self.http.request(method, path, content=content, headers=headers, params=query)

    def get(self, path: str, **query: Any) -> Object:
        """Read; again where the server says that it will answer soon, as a real one does when a definition
        changed."""
        eventually(lambda: self.raw("GET", path, **query).status_code != 429, f"{path} is served")
        return self.send("GET", path, **query)

    def post(self, path: str, body: Object, **query: Any) -> Object:
        return self.send("POST", path, body, **query)

    def put(self, path: str, body: Object, **query: Any) -> Object:
        return self.send("PUT", path, body, **query)

    def merge(self, path: str, patch: Any, **query: Any) -> Object:
        return self.send("PATCH", path, patch, "application/merge-patch+json", **query)

    def delete(self, path: str, body: Object | None = None, **query: Any) -> Object:
        return self.send("DELETE", path, body, **query)

    def absent(self, path: str) -> bool:
        """Whether nothing is there."""
        return self.raw("GET", path).status_code == 404

    def watch(self, path: str, seconds: int = 10, **query: Any) -> Generator[Object, None, None]:
        """The events of a watch, until it ends after `seconds`."""
        params = {"watch": "true", "timeoutSeconds": seconds, **query}
        with self.http.stream("GET", path, params=params, timeout=seconds + 20) as response:
            if response.status_code >= 300:
                response.read()
                raise RefusedError(response.status_code, response.json())
            for line in response.iter_lines():
                if line:
                    yield json.loads(line)

    def first(self, path: str, count: int, seconds: int = 10, **query: Any) -> list[tuple[str, str]]:
        """(type, name) of the first `count` events of a watch, bookmarks aside."""
        seen: list[tuple[str, str]] = []
        for event in self.watch(path, seconds, **query):
            if event["type"] != "BOOKMARK":
                seen.append((event["type"], event["object"]["metadata"]["name"]))
            if len(seen) == count:
                break
        return seen


def eventually(holds: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds; fail with `what` if it does not."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not holds():
        assert time.monotonic() < deadline, f"not in {WAIT_SECONDS} s: {what}"
        time.sleep(0.05)


def refusal(call: Callable[[], object]) -> RefusedError:
    """The refusal that a call meets; fails if it meets none."""
    try:
        answer = call()
    except RefusedError as error:
        return error
    raise AssertionError(f"accepted: {answer}")


def config_map(name: str, **extra: Any) -> Object:
    metadata = {"name": name, **extra.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, **extra}


def pod(name: str, **spec: Any) -> Object:
    container = {"name": "main", "image": "example.com/none:1", "imagePullPolicy": "IfNotPresent"}
    metadata = {"name": name, **spec.pop("metadata", {})}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], **spec},
    }


def owner(obj: Object, **extra: Any) -> Object:
    """An owner reference to an object."""
    metadata = obj["metadata"]
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": metadata["name"],
        "uid": metadata["uid"],
        **extra,
    }
