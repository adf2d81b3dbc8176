"""Carries out one decision: creates, deletes, patches, the status and events, in this order. A guard is
called before each write.

The contract is `edl_workflows.core.jobs.actions.Actions`. A failure is raised; the caller then repeats the
whole decision later.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
)
from edl_workflows.core.jobs.actions import Actions, Deletion, Manifest, Patch, Refusal
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.events import EventNote, Recorder
from edl_workflows.runtime.kube.resources import Object
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster

_POLICY = re.compile(
    r"admission webhook \".*\" denied the request|ValidatingAdmissionPolicy '.*' with binding"
)
"""How a policy refuses: perhaps with the code of an invalid object (400, 422), but a policy can change."""

MOST_PARALLEL = 16
"""Pods of all jobs that are created at a time, besides those that workers create alone."""

log = structlog.get_logger(__name__)


@dataclass
class Creations:
    """The results of a decision's creates.

    Attributes:
        made: how many objects were created.
        clashes: existing objects, with any owner, that have the name of an object to be created.
        refused: refusals of the server that the decision did not take into account.
    """

    made: int = 0
    clashes: list[Object] = field(default_factory=list)
    refused: list[Refusal] = field(default_factory=list)

    def add(self, other: "Creations") -> None:
        """Count the results of other creates, too."""
        self.made += other.made
        self.clashes += other.clashes
        self.refused += other.refused


def _batches(manifests: Sequence[Manifest]) -> Iterator[Sequence[Manifest]]:
    """Objects that may be created at the same time: pods in batches that double, everything else alone."""
    start, most = 0, 1
    while start < len(manifests):
        pods = 0
        while start + pods < len(manifests) and pods < most and manifests[start + pods]["kind"] == "Pod":
            pods += 1
        most = min(2 * most, MOST_PARALLEL) if pods else 1
        size = max(pods, 1)
        yield manifests[start : start + size]
        start += size


def is_invalid(error: EdlError) -> bool:
    """Whether the API server will never accept the object, as it is (`Refusal.invalid`)."""
    return isinstance(error, InvalidError) and not _POLICY.search(str(error))


def _refusal_reason(manifest: Manifest, error: EdlError) -> str:
    """Why a create was rejected. "Not found" means that the kind is not installed: the namespace can't be
    missing while the job exists."""
    if isinstance(error, NotFoundError):
        kind, version = manifest["kind"], manifest["apiVersion"]
        return f"it does not have {kind} of {version}: install what brings this kind"
    return str(error)


class Applier:
    """Writes decisions to the API.

    Args:
        cluster: where.
        world: its cache gets our writes at once.
        recorder: writes events.
        guard: called before each write; raises if this process must not write, or no longer.
        fenced: whether each status is written only to the version on which the decision was based.
    """

    def __init__(
        self,
        cluster: Cluster,
        world: ObservedCluster,
        recorder: Recorder,
        guard: Callable[[], None],
        *,
        fenced: bool = False,
    ) -> None:
        self._cluster = cluster
        self._world = world
        self._recorder = recorder
        self._guard = guard
        self._fenced = fenced
        self._pool = ThreadPoolExecutor(MOST_PARALLEL, "pod creation")

    def stop(self) -> None:
        """Let the threads that create pods end when what they do is done. Nothing more is created."""
        self._pool.shutdown(wait=False)

    def create(
        self, actions: Actions, group: JobGroup, refused: Collection[tuple[str, str]] = ()
    ) -> Creations:
        """Create the decision's objects, but stop at anything that the decision did not know: a name that is
        taken, or a refusal. Pods are created in parallel, first one, then two, four and so on, so that a
        refusal of all of them costs one request.

        Args:
            actions: the decision.
            group: the job.
            refused: kind and name of the objects that were refused before, as the decision knows.

        Raises:
            EdlError: any other failure.
        """
        total = Creations()
        for batch in _batches(actions.create):
            if len(batch) == 1:
                total.add(self._create(batch[0], group, refused))
            else:
                creations = [self._pool.submit(self._create, pod, group, refused) for pod in batch]
                wait(creations)  # also after a failure: who has given a job up writes nothing more about it
                for creation in creations:
                    total.add(creation.result())
            if total.clashes or total.refused:
                break
        return total

    def _create(self, manifest: Manifest, group: JobGroup, refused: Collection[tuple[str, str]]) -> Creations:
        name, kind = manifest["metadata"]["name"], manifest["kind"]
        try:
            self._guard()
            self._world.wrote(client.create(self._cluster, manifest, group.namespace))
            log.info("created", kind=kind, name=name, namespace=group.namespace)
            return Creations(made=1)
        except AlreadyExistsError:
            return Creations(clashes=[self._read(manifest, group)])
        except (InvalidError, ForbiddenError, NotFoundError) as error:
            if (kind, name) in refused:
                return Creations()
            where = {"kind": kind, "name": name, "namespace": group.namespace}
            log.warning("create refused", **where, error=str(error))
            refusal = Refusal(kind, name, is_invalid(error), _refusal_reason(manifest, error))
            return Creations(refused=[refusal])

    def finish(self, manifest: Manifest, actions: Actions, group: JobGroup, now: datetime) -> int:
        """Carry out everything in a decision except the creates.

        Returns:
            How many objects were changed.
        """
        changed = 0
        for deletion in actions.delete:
            changed += self._delete(deletion, group)
        for patch in actions.patch:
            changed += self._patch(patch, group)
        if actions.status:
            changed += self._write_status(manifest, actions, group)
        for event in actions.events:
            self.record_event(manifest, EventNote(event.reason, event.message, event.type), now)
        return changed

    def record_event(self, manifest: Manifest, note: EventNote, now: datetime) -> None:
        """Write an event. A failure is only logged, since no decision depends on events."""
        try:
            self._guard()
            self._recorder.record(manifest, note, now)
        except EdlError as error:
            log.warning("event not written", reason=note.reason, note=note.message, error=str(error))

    def _read(self, manifest: Manifest, group: JobGroup) -> Object:
        """The object that has the wanted name.

        Raises:
            ConflictError: it has been deleted meanwhile.
        """
        name, resource = manifest["metadata"]["name"], resources.of_manifest(manifest)
        head = self._world.reads_metadata_only(resource)
        existing = client.find_listed(self._cluster, resource, name, group.namespace, metadata_only=head)
        if existing is None:
            raise ConflictError(f"{manifest['kind']} {group.namespace}/{name} came and went; trying again")
        return existing

    def _delete(self, deletion: Deletion, group: JobGroup) -> int:
        resource = resources.of_kind(deletion.api_version, deletion.kind)
        options = DeletionOptions(
            uid=deletion.uid,
            grace_seconds=deletion.grace_seconds,
            resource_version=deletion.resource_version or None,
        )
        self._guard()
        try:
            rest = client.delete(self._cluster, resource, deletion.name, group.namespace, options)
        except ConflictError:
            if deletion.resource_version:
                raise  # it may still exist in a newer version, so decide again
            log.info("not deleted: it was replaced meanwhile", kind=deletion.kind, name=deletion.name)
            rest = None
        if rest is not None:
            self._world.wrote(rest)
        else:
            self._forget(deletion, group)
        log.info("deleted", kind=deletion.kind, name=deletion.name, namespace=group.namespace)
        return 1

    def _forget(self, deletion: Deletion, group: JobGroup) -> None:
        cached = self._world.find(deletion.api_version, deletion.kind, group, deletion.name)
        if cached is not None and cached["metadata"].get("uid") == deletion.uid:
            self._world.removed(cached)

    def _patch(self, patch: Patch, group: JobGroup) -> bool:
        resource = resources.of_kind(patch.api_version, patch.kind)
        self._guard()
        try:
            answer = client.patch(self._cluster, resource, patch.name, patch.body, group.namespace)
        except NotFoundError:
            log.info("not patched: it is gone", kind=patch.kind, name=patch.name)
            return False
        self._world.wrote(answer)
        log.info("patched", kind=patch.kind, name=patch.name, namespace=group.namespace)
        return bool(answer["metadata"]["resourceVersion"] != patch.body["metadata"]["resourceVersion"])

    def _write_status(self, manifest: Manifest, actions: Actions, group: JobGroup) -> bool:
        """Write the status; return whether the object changed.

        The stored status may already be equivalent (without a pruned field, or with a time without
        fractions). Reconciling again at once would then never end.
        """
        metadata = manifest["metadata"]
        resource = resources.of_manifest(manifest)
        version = metadata.get("resourceVersion") if self._fenced else actions.status_version
        exactly = metadata.get("uid"), version
        status = actions.status or {}
        self._guard()
        try:
            answer = client.patch_status(
                self._cluster, resource, metadata["name"], status, group.namespace, *exactly
            )
        except NotFoundError:
            log.info("no status written: it is gone", kind=resource.kind, name=metadata["name"])
            return False
        self._world.wrote(answer)
        return bool(answer["metadata"]["resourceVersion"] != metadata["resourceVersion"])
