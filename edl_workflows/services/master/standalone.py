"""A master without a Kubernetes API, for tests and development: nodes register by themselves, and ScalePlans
arrive over HTTP.

`GET /v1/status` shows the nodes that the job wants; whoever runs the master starts their agents. A plan is
posted as a manifest (`routes.SUBMIT_PLAN`) and kept, with its status, in a file.
"""

import json
import os
import threading
import uuid
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from pydantic_core import from_json

from edl_workflows.core.exceptions import AlreadyExistsError, InvalidError, NotFoundError
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanSpec
from edl_workflows.core.jobs.scale_plan.plan_order import age_key
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol import routes
from edl_workflows.core.protocol.routes import Route
from edl_workflows.runtime.kube.events import EventNote
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.state import observations
from edl_workflows.services.master.state.job import RolloutRequest
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest
from edl_workflows.services.master.state.nodes.registry import JobNode
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import TRAINING_TYPES, JobSettings, RoleSettings

MAX_PLANS = 1000
Handler = TypeVar("Handler", bound=Callable[..., Any])


def parse_nodes(text: str) -> dict[str, RoleSettings]:
    """Parse `ps=2,worker=1`.

    Raises:
        InvalidError: there is an unknown role, a missing count, or no role that trains.
    """
    roles: dict[str, RoleSettings] = {}
    for part in text.split(","):
        role, _, count = part.strip().partition("=")
        if role not in TRAINING_TYPES or not count.isdecimal():
            raise InvalidError(
                f"--nodes: {part!r} is not ROLE=COUNT with a role of {', '.join(TRAINING_TYPES)}"
            )
        roles[role] = RoleSettings(replicas=int(count))
    if not {names.WORKER_TYPE, names.CHIEF_TYPE} & roles.keys():
        raise InvalidError("--nodes: a job needs a worker or a chief, as in ps=2,worker=1")
    return roles


class StandaloneBackend:
    """The `MasterBackend` without a cluster.

    Args:
        path: file that keeps the plans.
        settings: of the job.
    """

    def __init__(self, path: Path, settings: JobSettings) -> None:
        self._path = path
        self._settings = settings
        self._lock = threading.Lock()
        self._changed: Callable[[], None] = lambda: None
        self._plans: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}

    def ask_for_pods(self, request: PodRequest, nodes: dict[tuple[str, int], JobNode]) -> None:
        """Do nothing: agents come by themselves."""

    def on_plan(self, changed: Callable[[], None]) -> None:
        """Set the callback for plans created by `make_plan`; it is called from any thread."""
        self._changed = changed

    def make_plan(self, name: str, spec: ScalePlanSpec) -> None:
        if name not in self._plans:
            body = spec.model_copy(update={"owner_job": self._settings.name}).to_dict()
            head = {"apiVersion": names.API_VERSION, "kind": "ScalePlan", "metadata": {"name": name}}
            self.submit({**head, "spec": body})
        self._changed()

    def report_plan(self, rollout: Rollout, status: dict[str, Any]) -> None:
        with self._lock:
            plan = self._plans.get(rollout.name)
            if plan is None or plan["metadata"]["uid"] != rollout.uid:
                raise NotFoundError(f"ScalePlan {rollout.name} was deleted")
            plan["status"] = status
            self._save()

    def is_job_deleted(self) -> bool:
        """Return False: there is no object that could be deleted."""
        return False

    def report_job(self, status: dict[str, Any]) -> None:
        """Do nothing: only `GET /v1/status` is read."""

    def record_event(self, event: EventNote) -> None:
        """Do nothing: the log and the status show it."""

    def submit(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        """Add a plan.

        Raises:
            ManifestError: it is not valid.
            AlreadyExistsError: there is one of its name.
        """
        with self._lock:
            name = ScalePlan.parse({**manifest, "status": {}}).metadata.name
            if name in self._plans:
                raise AlreadyExistsError(f"ScalePlan {name} exists")
            if not name or len(self._plans) >= MAX_PLANS:
                raise InvalidError(f"metadata.name: a ScalePlan needs one, and there can be {MAX_PLANS}")
            labels = {names.JOB_LABEL: self._settings.name, names.SCALE_TYPE_LABEL: names.SCALE_MANUAL}
            metadata = {
                "name": name,
                "uid": str(uuid.uuid4()),
                "labels": labels,
                "creationTimestamp": datetime.now(UTC).isoformat(),
            }
            stored = {**manifest, "metadata": metadata, "status": {}}
            self._plans[name] = stored
            self._save()
            return stored

    def find(self, name: str) -> dict[str, Any]:
        """A plan with its status.

        Raises:
            NotFoundError: there is none of this name.
        """
        try:
            return self._plans[name]
        except KeyError:
            raise NotFoundError(f"ScalePlan {name} is not there") from None

    def delete(self, name: str) -> None:
        """Delete a plan. If it is in progress and its version is not active yet, the master rolls it
        back.
        """
        with self._lock:
            self._plans.pop(name, None)
            self._save()

    def seen(self) -> list[RolloutRequest]:
        """All plans in order."""
        with self._lock:
            plans = sorted((ScalePlan.parse(manifest) for manifest in self._plans.values()), key=age_key)
        return [RolloutRequest.of(plan) for plan in plans]

    def _save(self) -> None:
        fresh = self._path.with_suffix(".new")
        with fresh.open("w") as file:
            json.dump(self._plans, file)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)


def _manifest(body: bytes) -> dict[str, Any]:
    """Parse a request's body. Reject NaN and unpaired surrogates, which could not be written back."""
    try:
        manifest = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise InvalidError(f"the body is no JSON: {error}") from error
    if not isinstance(manifest, dict):
        raise InvalidError(f"the body must be a ScalePlan, this is {type(manifest).__name__}")
    return manifest


def add_plan_routes(app: FastAPI, master: Master, outside: StandaloneBackend) -> Callable[[], None]:
    """Add ScalePlans over HTTP, in place of a Kubernetes API.

    Returns:
        A function that enters the plans into the master's state; to be called in the loop's thread.
    """

    def look() -> None:
        observations.observe_plans(master.state, outside.seen())
        master.changed(WriteUrgency.NOW)

    def serve(route: Route[Any, Any]) -> Callable[[Handler], Handler]:
        return app.api_route(route.path, methods=[route.method])

    @serve(routes.SUBMIT_PLAN)
    async def submit(request: Request) -> dict[str, Any]:
        stored = outside.submit(_manifest(await request.body()))
        look()
        return stored

    @serve(routes.PLAN)
    async def find(name: str) -> dict[str, Any]:
        return outside.find(name)

    @serve(routes.DELETE_PLAN)
    async def delete(name: str) -> None:
        outside.delete(name)
        look()

    return look
