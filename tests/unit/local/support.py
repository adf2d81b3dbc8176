"""Pods in a running cluster, as tests want them."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from edl_workflows.runtime.kube import client, logs
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS, Object

T = TypeVar("T")
WAIT_SECONDS = 120.0


def eventually(look: Callable[[], T | None], what: object = "") -> T:
    """The first true value of `look`."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        if found := look():
            return found
        time.sleep(0.03)
    raise AssertionError(f"not within {WAIT_SECONDS:.0f} s: {what() if callable(what) else what}")


def container(script: str, name: str = "main", **fields: Any) -> Object:
    """A container that runs a shell script."""
    return {"name": name, "image": "none", "command": ["sh", "-c", script], **fields}


@dataclass(frozen=True)
class Pods:
    """The pods of one cluster."""

    cluster: Cluster

    def create(
        self, name: str, *containers: Object, labels: Mapping[str, str] | None = None, **spec: Any
    ) -> Object:
        """Make a pod; it restarts nothing unless told otherwise."""
        metadata = {"name": name, "labels": dict(labels or {})}
        spec = {"restartPolicy": "Never", "containers": list(containers), **spec}
        return client.create(
            self.cluster, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        )

    def get(self, name: str) -> Object:
        """The pod."""
        return client.get(self.cluster, PODS, name)

    def until(self, name: str, good: Callable[[Object], object]) -> Object:
        """The pod as soon as it is good."""

        def look() -> Object | None:
            pod = self.get(name)
            return pod if good(pod) else None

        return eventually(look, lambda: self.get(name)["status"])

    def phase(self, name: str, *phases: str) -> Object:
        """The pod as soon as it has one of these phases."""
        return self.until(name, lambda pod: pod["status"]["phase"] in phases)

    def end(self, name: str) -> Object:
        """The pod as soon as it is finished."""
        return self.phase(name, "Succeeded", "Failed")

    def state(self, name: str, container: str = "main") -> Object:
        """A container's status."""
        found: Object = next(
            (
                one
                for one in self.get(name)["status"].get("containerStatuses", [])
                if one["name"] == container
            ),
            {},
        )
        return found

    def logs(self, name: str, **options: Any) -> str:
        """What its container printed."""
        return logs.read(self.cluster, name, options=logs.LogOptions(**options)).rstrip("\n")

    def prints(self, name: str, text: str) -> str:
        """Its output as soon as it contains this text."""

        def look() -> str | None:
            state = self.state(name).get("state", {})
            found = self.logs(name) if "waiting" not in state and state else ""
            return found if text in found else None

        return eventually(look, f"{text!r} in the output of {name}")

    def delete(self, name: str, grace: int | None = None) -> None:
        """Delete a pod and wait until it is gone."""
        client.delete(self.cluster, PODS, name, options=DeletionOptions(grace_seconds=grace))
        eventually(lambda: client.find(self.cluster, PODS, name) is None, f"pod {name} gone")


def condition(pod: Object, kind: str) -> Object:
    """One of a pod's conditions."""
    conditions: list[Object] = pod["status"].get("conditions") or []
    return next((one for one in conditions if one["type"] == kind), {})
