"""Jobs, their pods, and a caller for the DI server's tests."""

from dataclasses import dataclass
from typing import Any

import httpx

from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.model import DIJob
from edl_workflows.core.kubernetes.api import DI_JOBS, PODS
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.di_server.server import DiServer
from tests.unit.runtime.kube.support import eventually

HTTP = httpx.Client(timeout=240)
ADMIN = "administrator"
TEMPLATE = {"spec": {"containers": [{"name": "di-container", "image": "train:1"}]}}


def task(kind: str, replicas: int = 1, **more: Any) -> dict[str, Any]:
    """One task."""
    return {"type": kind, "replicas": replicas, "template": TEMPLATE} | more


def di_job(*tasks: dict[str, Any], name: str = "walk", **spec: Any) -> dict[str, Any]:
    """A job; by default a learner and two collectors."""
    wanted = list(tasks) or [task("learner"), task("collector", 2)]
    return {
        "apiVersion": DI_JOBS.api_version,
        "kind": DI_JOBS.kind,
        "metadata": {"name": name},
        "spec": {"tasks": wanted} | spec,
    }


def create(cluster: Cluster, *tasks: dict[str, Any], token: str = "", **more: Any) -> DIJob:
    """A job on the server, with a token where one is given."""
    made = client.create(cluster, di_job(*tasks, **more), resource=DI_JOBS)
    if token:
        digest = {"tokenDigest": pods.token_digest(token), "phase": "Running", "generation": 0}
        made = client.patch_status(cluster, DI_JOBS, made["metadata"]["name"], digest)
    return DIJob.parse(made)


def job(cluster: Cluster, name: str = "walk") -> DIJob:
    """As it is now."""
    return DIJob.parse(client.get(cluster, DI_JOBS, name))


def replicas(cluster: Cluster, name: str = "walk") -> dict[str, int]:
    """How many its spec asks for, by task."""
    return {each.title: each.replicas for each in job(cluster, name).spec.tasks}


def give_address(cluster: Cluster, pod: str, ip: str) -> None:
    """Let a pod run with this address."""
    client.patch_status(cluster, PODS, pod, {"phase": "Running", "podIP": ip})


@dataclass(frozen=True)
class Api:
    """A DI server as callers see it.

    Attributes:
        token: what is shown; "" for none.
    """

    url: str
    cluster: Cluster
    token: str = ADMIN

    def as_(self, token: str) -> "Api":
        """The same with another token."""
        return Api(self.url, self.cluster, token)

    def ask(self, method: str, path: str, **more: Any) -> httpx.Response:
        """One request to a path below ``/v2alpha1/``."""
        headers = {"Authorization": f"Bearer {self.token}"} if self.token else {}
        return HTTP.request(method, f"{self.url}/v2alpha1/{path}", headers=headers, **more)

    def path(self, call: str = "replicas", name: str = "walk", generation: str = "") -> str:
        """Path of a call about a job in the test's namespace."""
        return f"job/{self.cluster.namespace}.{name}{generation}/{call}"

    def seen(self, name: str = "walk") -> None:
        """Wait until the server has seen the job."""
        eventually(lambda: self.ask("GET", self.path(name=name)).status_code == 200)


def eventually_ready(server: DiServer) -> None:
    """Wait until everything is listed."""
    eventually(lambda: not server.waits_for())


def data(answer: httpx.Response) -> Any:
    """What a successful answer says; it has upstream's envelope."""
    body = answer.json()
    assert answer.status_code == 200, body
    assert body.keys() == {"success", "code", "message", "data"}
    assert (body["success"], body["code"]) == (True, 0)
    return body["data"]


def refusal(answer: httpx.Response, status: int) -> str:
    """Why a call was refused; in upstream's envelope."""
    body = answer.json()
    assert answer.status_code == status, body
    assert (body["success"], body["code"], body["data"]) == (False, 1, None)
    return str(body["message"])
