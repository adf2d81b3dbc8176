"""A namespace in memory for tests of kinds, with a loop that decides and applies as the controller does.

It simulates only what the reconcile functions rely on: uids, generations, resource versions, AlreadyExists,
graceful deletion of pods, garbage collection by owner. For API semantics use the embedded cluster.
"""

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.actions import (
    Actions,
    Deletion,
    Event,
    InstallationSettings,
    Manifest,
    Observed,
    Patch,
    Refusal,
)
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.services.controller.delayed_writes import DelayedWrites

Key = tuple[str, str]
"""(kind, name); the world has one namespace."""

NAMESPACE = "default"
MAX_ROUNDS = 50


class JobsNamespace:
    """One namespace.

    Attributes:
        objects: by (kind, name).
        events: all that were emitted.
        settings: of the installation.
        refuse: names whose creation the API server refuses, with the answer.
        delayed: the status writes that the controller holds back; None: each is made at once.
    """

    def __init__(self) -> None:
        self.now = datetime(2026, 1, 1, tzinfo=UTC)
        self.objects: dict[Key, dict[str, Any]] = {}
        self.events: list[Event] = []
        self.settings = InstallationSettings()
        self.refuse: dict[str, Refusal] = {}
        self.delayed: DelayedWrites | None = None
        self._serial = itertools.count(1)

    def add(self, manifest: Manifest) -> dict[str, Any]:
        """Create an object as a user would, with the fields that the API server fills in.

        Raises:
            FileExistsError: the name is taken.
        """
        obj: dict[str, Any] = copy.deepcopy(dict(manifest))
        key = (obj["kind"], obj["metadata"]["name"])
        if key in self.objects:
            raise FileExistsError(f"{key[0]} {key[1]} exists")
        time = self.now.isoformat().replace("+00:00", "Z")
        serial = next(self._serial)
        obj["metadata"] |= {
            "namespace": NAMESPACE, "uid": f"uid-{serial}", "resourceVersion": str(serial), "generation": 1,
            "creationTimestamp": time,
        }  # fmt: skip
        if obj["kind"] == "Pod":
            obj.setdefault("status", {"phase": "Pending"})
        self.objects[key] = obj
        return obj

    def edit(self, kind: str, name: str, body: Mapping[str, Any]) -> None:
        """Merge-patch an object; a changed spec is a new generation."""
        obj = self.objects[kind, name]
        before = copy.deepcopy(obj.get("spec"))
        _merge(obj, body)
        obj["metadata"]["resourceVersion"] = str(next(self._serial))
        if obj.get("spec") != before:
            obj["metadata"]["generation"] += 1

    def delete(self, kind: str, name: str, *, force: bool = False) -> None:
        """Delete an object. A pod that has not ended is only marked for deletion, see `reap`; everything else
        is removed at once, and with `force` a pod without finalizers, too."""
        obj = self.objects[kind, name]
        metadata = obj["metadata"]
        if kind == "Pod" and force and metadata.get("finalizers"):
            metadata.setdefault("deletionTimestamp", self.now.isoformat())
            metadata["deletionGracePeriodSeconds"] = 0
            return
        if kind == "Pod" and obj["status"]["phase"] in ("Pending", "Running") and not force:
            metadata.setdefault("deletionTimestamp", self.now.isoformat())
            return
        del self.objects[kind, name]
        self._collect_garbage()

    def reap(self) -> None:
        """Remove the pods that are marked for deletion."""
        for key, obj in list(self.objects.items()):
            if obj["metadata"].get("deletionTimestamp"):
                del self.objects[key]

    def set_pod(self, name: str, phase: str, exit_code: int | None = None, reason: str = "") -> None:
        """Set a pod's status as its node would report it."""
        pod = self.objects["Pod", name]
        container = pod["spec"]["containers"][0]["name"]
        status: dict[str, Any] = {"phase": phase}
        if phase == "Running":
            status["conditions"] = [{"type": "Ready", "status": "True"}]
        if exit_code is not None:
            ended = {"exitCode": exit_code, "finishedAt": self.now.isoformat().replace("+00:00", "Z")}
            status["containerStatuses"] = [{"name": container, "state": {"terminated": ended}}]
        if reason:
            status["reason"] = reason
        pod["status"] = status

    def pods(self, node_type: str) -> list[str]:
        """Names of the present pods of this type that are not being deleted."""
        return sorted(
            name
            for (kind, name), obj in self.objects.items()
            if kind == "Pod"
            and obj["metadata"]["labels"].get("elasticjob.dlrover/replica-type") == node_type
            and not obj["metadata"].get("deletionTimestamp")
        )

    def tick(self, seconds: float) -> None:
        """Let time pass."""
        self.now += timedelta(seconds=seconds)

    def wake(self, kind: str, name: str) -> float:
        """Let the time pass until the controller decides about an object again by itself; return it in
        seconds."""
        seconds = self.decide(kind, name).requeue_after
        assert seconds is not None
        self.tick(seconds)
        self.settle()
        return seconds

    def observe(self, kind: Kind, manifest: Manifest) -> Observed:
        """The input of a decision about an object, as the loop's caches provide it."""
        job = kind.source.job_of(manifest)
        seen = {
            source.api.kind: [
                source.keep(o)
                for (k, _), o in self.objects.items()
                if k == source.api.kind and source.job_of(o) == job
            ]
            for source in kind.observes
        }
        return Observed(now=self.now, objects=seen, new_token="t" * 32, settings=self.settings)

    def decide(self, kind: str, name: str) -> Actions:
        """Decide about an object as the controller's loop does: again after each create that failed."""
        job_kind = kinds.kind_of(kind)
        manifest = job_kind.source.keep(self.objects[kind, name])
        if self.settings.network_policies:
            job_kind = job_kind.isolated()
        observed = self.observe(job_kind, manifest)
        for _ in range(MAX_ROUNDS):
            actions = job_kind.decide(copy.deepcopy(manifest), observed)
            again = self._after_creations(actions, observed)
            if again is None:
                return actions
            observed = again
        raise AssertionError(f"{kind} {name} wants to create for ever what can't be")

    def _after_creations(self, actions: Actions, observed: Observed) -> Observed | None:
        for manifest in actions.create:
            key = (manifest["kind"], manifest["metadata"]["name"])
            if key in self.objects:
                objects = dict(observed.objects)
                objects[key[0]] = [*objects.get(key[0], ()), copy.deepcopy(self.objects[key])]
                return replace(observed, objects=objects)
            refusal = self.refuse.get(key[1])
            if refusal and refusal not in observed.refused:
                return replace(observed, refused=(*observed.refused, refusal))
        return None

    def apply(self, kind: str, name: str, actions: Actions, steps: int | None = None) -> None:
        """Apply a decision; with `steps`, only this number of its parts, as if the controller died then."""
        for part in itertools.islice(_parts(actions), steps):
            match part:
                case Deletion():
                    if (part.kind, part.name) in self.objects:
                        self.delete(part.kind, part.name, force=part.grace_seconds == 0)
                case Patch():
                    self.edit(part.kind, part.name, _without_version(part.body))
                case Event():
                    self.events.append(part)
                case ("create", manifest):
                    if manifest["metadata"]["name"] not in self.refuse:
                        self.add(manifest)
                case ("status", status):
                    self.edit(kind, name, {"status": json.loads(json.dumps(status))})  # as it is sent

    def reconcile(self, steps: int | None = None) -> bool:
        """One round over every object of our kinds.

        Returns:
            Whether anything was done.
        """
        busy = False
        ours = [key for key in self.objects if key[0] in {job_kind.name for job_kind in kinds.KINDS}]
        for kind, name in ours:
            if (kind, name) in self.objects:
                actions = self._without_delayed(kind, name, self.decide(kind, name))
                busy = busy or next(_parts(actions), None) is not None
                self.apply(kind, name, actions, steps)
        return busy

    def _without_delayed(self, kind: str, name: str, actions: Actions) -> Actions:
        """The decision without its status, while the controller would hold it back."""
        if self.delayed is None:
            return actions
        uid = self.objects[kind, name]["metadata"]["uid"]
        left = self.delayed.left(uid, actions.status_may_wait if actions.status else 0.0)
        return replace(actions, status=None) if left else actions

    def settle(self) -> None:
        """Reconcile until nothing is left to do.

        Raises:
            AssertionError: it never ends: some decision asks for changes again after its own actions were
                applied.
        """
        for _ in range(MAX_ROUNDS):
            if not self.reconcile():
                return
        raise AssertionError("reconcile finds no fixed point")

    def _collect_garbage(self) -> None:
        uids = {obj["metadata"]["uid"] for obj in self.objects.values()}
        for (kind, name), obj in list(self.objects.items()):
            owners = obj["metadata"].get("ownerReferences") or []
            if owners and not any(owner["uid"] in uids for owner in owners) and (kind, name) in self.objects:
                self.delete(kind, name)


def _parts(actions: Actions) -> Iterator[Any]:
    yield from (("create", manifest) for manifest in actions.create)
    yield from actions.delete
    yield from actions.patch
    if actions.status is not None:
        yield ("status", actions.status)
    yield from actions.events


def _without_version(body: Mapping[str, Any]) -> dict[str, Any]:
    metadata = {k: v for k, v in body.get("metadata", {}).items() if k != "resourceVersion"}
    return {**body, "metadata": metadata}


def _merge(target: dict[str, Any], patch: Mapping[str, Any]) -> None:
    for key, value in patch.items():
        if value is None:
            target.pop(key, None)
        elif isinstance(value, Mapping):
            below = target.get(key)
            target[key] = below = below if isinstance(below, dict) else {}
            _merge(below, value)
        else:
            target[key] = copy.deepcopy(value)
