"""The agent as an ordinary executor plugin, for clusters where Argo's controller creates agent pods.

Argo runs one agent pod per workflow, which asks its plugins by HTTP to execute each task. That request does
not name the node, so our plugin only answers whether a task is ours. The tasks are served by our normal agent
(`edl_workflows.pipelines.argo.agent`), which runs in the same process for this one workflow. It writes
results into the task set, so time-outs, retries and restarts work as usual.
"""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from fastapi import FastAPI
from pydantic import BaseModel, ConfigDict, Field
from starlette.types import ASGIApp, Scope

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.pipelines.argo.plugin_task import PLUGIN
from edl_workflows.pipelines.install.rbac import argo_agent_rules
from edl_workflows.pipelines.install.workloads import CONTAINER_SECURITY, POD_SECURITY
from edl_workflows.runtime.process import http
from edl_workflows.runtime.process.http_api import (
    BodyLimit,
    ErrorAnswer,
    RequestGuard,
    add_error_handlers,
    error_answer,
    has_token,
)

NAME = "edl"
ACCOUNT = f"{NAME}-executor-plugin"
"""Argo looks for the account, and for its token's Secret, by this name."""
PORT = 4370
TOKEN_FILE = Path("/var/run/argo/token")
"""Argo's agent writes a token for each plugin into this file, and sends it with each request."""
MAX_BODY = 4 * 2**20
"""Largest request body in bytes. A request contains one template of a workflow, and Argo keeps the whole
workflow below etcd's limit of 1.5 MiB."""
BODY_SECONDS = 15.0
"""Time limit for a body to arrive."""
WORKFLOW_VARIABLE = "EDL_ARGO_WORKFLOW"
WORKFLOW_LABEL = "workflows.argoproj.io/workflow"
"""Label of the agent pod: the name of its workflow."""


class _Template(BaseModel):
    """The part of a template that the plugin reads."""

    model_config = ConfigDict(extra="ignore")
    plugin: dict[str, Any] = Field(default_factory=dict)


class ExecuteTemplate(BaseModel):
    """The body of ``template.execute``."""

    model_config = ConfigDict(extra="ignore")
    template: _Template


def create_app(token: Callable[[], str]) -> FastAPI:
    """The plugin's HTTP API.

    Args:
        token: returns the token that requests must carry.
    """
    app = FastAPI(title="edl executor plugin", openapi_url=None)
    add_error_handlers(app)

    @app.post("/api/v1/template.execute")
    def execute(body: ExecuteTemplate) -> dict[str, Any]:
        """``{"node": {}}``: ours, and nothing to write for now. ``{}``: another plugin's."""
        return {"node": {}} if PLUGIN in body.template.plugin else {}

    app.add_middleware(PluginGuard, token=token)
    return app


class PluginGuard(RequestGuard):
    """Admits requests that carry the token which Argo's agent wrote for this plugin."""

    def __init__(self, app: ASGIApp, token: Callable[[], str]) -> None:
        super().__init__(app, BodyLimit(MAX_BODY, BODY_SECONDS))
        self._token = token

    def admit(self, scope: Scope) -> ErrorAnswer | None:
        try:
            expected = self._token()
        except UnavailableError as error:
            return error_answer(error)
        if has_token(scope, expected):
            return None
        return ErrorAnswer(401, f"the request does not carry the token of {TOKEN_FILE}")


def read_token() -> str:
    """The token as Argo's agent wrote it.

    Raises:
        UnavailableError: the token cannot be read.
    """
    try:
        return TOKEN_FILE.read_text().strip()
    except OSError as error:
        raise UnavailableError(
            f"no token at {TOKEN_FILE}: {error.strerror}; is this an agent pod?"
        ) from error


def serve_plugin(app: FastAPI, port: int) -> contextlib.AbstractContextManager[str]:
    """Serve in a thread, on all of the pod's addresses, while the context lasts.

    Raises:
        UnavailableError: the port is taken.
    """
    return http.serve_in_thread(app, http.ListenOptions("0.0.0.0", port), "plugin server")  # noqa: S104


@dataclass(frozen=True)
class PluginOptions:
    """An installation of the plugin.

    Attributes:
        image: container image with ``edl`` on its PATH.
        namespace: namespace of the workflows.
        command: the command for ``edl`` in the image.
    """

    image: str
    namespace: str
    command: tuple[str, ...] = ("edl",)


def plugin_manifests(options: PluginOptions) -> Iterator[dict[str, Any]]:
    """All that the plugin needs in a namespace: its ConfigMap, and a service account with its token and
    permissions."""
    metadata = {"name": ACCOUNT, "namespace": options.namespace}
    rbac = "rbac.authorization.k8s.io"
    yield {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}
    yield {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "kubernetes.io/service-account-token",
        "metadata": {
            **metadata,
            "name": f"{ACCOUNT}.service-account-token",
            "annotations": {"kubernetes.io/service-account.name": ACCOUNT},
        },
    }
    yield {"apiVersion": f"{rbac}/v1", "kind": "Role", "metadata": metadata, "rules": argo_agent_rules()}
    yield {
        "apiVersion": f"{rbac}/v1",
        "kind": "RoleBinding",
        "metadata": metadata,
        "roleRef": {"apiGroup": rbac, "kind": "Role", "name": ACCOUNT},
        "subjects": [{"kind": "ServiceAccount", "name": ACCOUNT, "namespace": options.namespace}],
    }
    yield {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {**metadata, "labels": {"workflows.argoproj.io/configmap-type": "ExecutorPlugin"}},
        "data": {
            "sidecar.automountServiceAccountToken": "true",
            "sidecar.container": yaml.safe_dump(_container(options), sort_keys=False),
        },
    }


def _container(options: PluginOptions) -> dict[str, Any]:
    """The sidecar. Argo refuses one without a port, requests, limits or a security context."""
    workflow = {"fieldRef": {"fieldPath": f"metadata.labels['{WORKFLOW_LABEL}']"}}
    return {
        "name": NAME,
        "image": options.image,
        "command": [*options.command, "argo", "plugin-server"],
        "env": [{"name": WORKFLOW_VARIABLE, "valueFrom": workflow}],
        "ports": [{"containerPort": PORT}],
        "resources": {
            "requests": {"cpu": "50m", "memory": "128Mi"},
            "limits": {"cpu": "1", "memory": "512Mi"},
        },
        "securityContext": {**CONTAINER_SECURITY, **POD_SECURITY},  # Argo's pod is not ours
    }
