"""The API server under test: that of ``EDL_CONFORMANCE_KUBECONFIG``, or an embedded one in a temporary
folder."""

import os
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from tests.conformance.support import Api, Object, connect, eventually

_GIVEN = os.environ.get("EDL_CONFORMANCE_KUBECONFIG", "")  # read before the tests' environment is cleaned
_SCHEMA = yaml.safe_load("""
type: object
required: [spec]
properties:
  spec:
    type: object
    required: [image]
    x-kubernetes-validations:
    - {rule: "self.replicas <= self.max", message: replicas may not exceed max}
    properties:
      image:
        type: string
        minLength: 1
        maxLength: 64
        x-kubernetes-validations:
        - {rule: "self == oldSelf", message: image is immutable}
      replicas: {type: integer, minimum: 0, default: 1}
      max: {type: integer, default: 10}
      size: {type: string, enum: [S, M]}
      port: {x-kubernetes-int-or-string: true}
      nullable: {type: string, nullable: true}
      free: {type: object, x-kubernetes-preserve-unknown-fields: true}
      template:
        type: object
        x-kubernetes-embedded-resource: true
        x-kubernetes-preserve-unknown-fields: true
      steps:
        type: array
        maxItems: 5
        x-kubernetes-list-type: map
        x-kubernetes-list-map-keys: [name]
        items:
          type: object
          required: [name]
          properties:
            name: {type: string, maxLength: 16}
            retries: {type: integer, default: 3}
            frozen:
              type: string
              maxLength: 16
              x-kubernetes-validations: [{rule: "self == oldSelf", message: frozen}]
      labels:
        type: object
        additionalProperties: {type: string}
  status:
    type: object
    properties:
      phase: {type: string}
      replicas: {type: integer}
      selector: {type: string}
""")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Another server is not asked for what only the embedded one promises; the reference page lists it."""
    for item in items:
        marker = item.get_closest_marker("embedded_only")
        if _GIVEN and marker:
            item.add_marker(pytest.mark.skip(reason=marker.args[0]))


def crd(group: str, plural: str = "widgets", kind: str = "Widget", **version: Any) -> Object:
    """A definition with every feature that the cases need."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind, "shortNames": ["wdg"]},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "subresources": {
                        "status": {},
                        "scale": {
                            "specReplicasPath": ".spec.replicas",
                            "statusReplicasPath": ".status.replicas",
                            "labelSelectorPath": ".status.selector",
                        },
                    },
                    "additionalPrinterColumns": [
                        {"name": "Phase", "type": "string", "jsonPath": ".status.phase"},
                        {"name": "Replicas", "type": "integer", "jsonPath": ".spec.replicas"},
                    ],
                    "schema": {"openAPIV3Schema": _SCHEMA},
                    **version,
                }
            ],
        },
    }


class Embedded:
    """An embedded API server as a process of its own."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        self.folder = folder
        self._arguments = arguments
        self._apis: list[Api] = []
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        place = ["--dir", str(self.folder), "--port", str(self.port)]
        command = [sys.executable, "-m", "edl_workflows.local.apiserver", *place, *self._arguments]
        process = subprocess.Popen(command)
        kubeconfig = self.folder / "kubeconfig"

        def ready() -> bool:
            assert process.poll() is None, "the API server ended"
            if not kubeconfig.exists():
                return False
            with connect(kubeconfig) as client:
                try:
                    return client.get("/readyz").status_code == 200
                except httpx.TransportError:
                    return False

        eventually(ready, "the API server is ready")
        return process

    def api(self) -> Api:
        kubeconfig = self.folder / "kubeconfig"
        self._apis.append(Api(connect(kubeconfig), kubeconfig))
        return self._apis[-1]

    def kill_and_restart(self) -> None:
        """SIGKILL, then start again over the same folder."""
        self.process.kill()
        self.process.wait()
        self.process = self._start()

    def stop(self) -> None:
        for api in self._apis:
            api.http.close()
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=240)


@pytest.fixture
def embedded(tmp_path: Path) -> Iterator[Callable[..., Embedded]]:
    """Starts embedded API servers of a test's own."""
    started: list[Embedded] = []

    def start(*arguments: str) -> Embedded:
        started.append(Embedded(tmp_path / f"cluster-{len(started)}", *arguments))
        return started[-1]

    yield start
    for server in started:
        server.stop()


@pytest.fixture(scope="session")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The API server under test."""
    if _GIVEN:
        with connect(Path(_GIVEN)) as client:
            yield Api(client, Path(_GIVEN))
        return
    server = Embedded(tmp_path_factory.mktemp("conformance"))
    yield server.api()
    server.stop()


@pytest.fixture
def namespace(api: Api) -> Iterator[str]:
    """A namespace of the test's own, gone after it."""
    name = f"conf-{uuid.uuid4().hex[:8]}"
    api.post("/api/v1/namespaces", {"metadata": {"name": name}})
    eventually(
        lambda: not api.absent(f"/api/v1/namespaces/{name}/serviceaccounts/default"), "default account"
    )
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


@pytest.fixture
def core(namespace: str) -> str:
    """The path of the namespace in the core group."""
    return f"/api/v1/namespaces/{namespace}"


@pytest.fixture(scope="session")
def widgets(api: Api) -> Iterator[str]:
    """The group of a served definition of Widgets."""
    group = f"g{uuid.uuid4().hex[:8]}.example.com"
    define(api, crd(group))
    yield group
    api.delete(f"{CRDS}/widgets.{group}")


CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


def define(api: Api, definition: Object) -> None:
    """Create a definition and wait until its resources are served."""
    api.post(CRDS, definition)
    spec = definition["spec"]
    path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
    eventually(lambda: not api.absent(path), f"{path} is served")


@pytest.fixture
def make_crd(api: Api) -> Iterator[Callable[..., Object]]:
    """Makes definitions of a test's own; those that were created go with the test."""
    made: list[str] = []

    def make(plural: str = "gears", kind: str = "Gear", **version: Any) -> Object:
        definition = crd(f"g{uuid.uuid4().hex[:8]}.example.com", plural, kind, **version)
        made.append(definition["metadata"]["name"])
        return definition

    yield make
    for name in made:
        api.raw("DELETE", f"{CRDS}/{name}")


@pytest.fixture
def wpath(widgets: str, namespace: str) -> str:
    """The path of the Widgets of the namespace."""
    return f"/apis/{widgets}/v1/namespaces/{namespace}/widgets"


@pytest.fixture
def widget(widgets: str) -> Callable[..., Object]:
    """Makes Widget manifests."""

    def make(name: str = "w", **spec: Any) -> Object:
        metadata = {"name": name, **spec.pop("metadata", {})}
        return {
            "apiVersion": f"{widgets}/v1",
            "kind": "Widget",
            "metadata": metadata,
            "spec": {"image": "a", **spec},
        }

    return make
