"""Owned objects: stages create or adopt them, and cancel nothing else.

Annotations on every object that a stage creates name its owner and the attempt that holds it. Adoption
changes the attempt with a write guarded by the resourceVersion, and a cancellation is guarded in the same
way: the later of the two fails.
"""

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    ConflictError,
    EdlError,
    ForbiddenError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.manifests import is_terminating
from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.core.jobs.view import JobView
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.pipelines.waiting import failed_pod
from edl_workflows.pipelines.waiting.goals import ExistsGoal, Handle
from edl_workflows.pipelines.waiting.identity import (
    ATTEMPT_ANNOTATION,
    LIFETIME_ANNOTATION,
    ON_CANCEL_ANNOTATION,
    OWNER_ANNOTATION,
    StageIdentity,
)
from edl_workflows.pipelines.waiting.observed import has_ended, has_failed, read_object
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, Scope

GONE_SECONDS = 120.0
"""How long to wait for the deletion of a predecessor: the grace period of a pod, with a margin."""
POLL_SECONDS = 0.5

log = logging.getLogger(__name__)

CancelAction = Literal["delete", "suspend", "keep"]


@dataclass(frozen=True)
class ObjectRef:
    """Kind, namespace and name of an object, which may not exist yet."""

    kind: str
    namespace: str
    name: str

    @property
    def resource(self) -> ApiResource:
        """The API resource of the kind."""
        return resource_of(self.kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def resource_of(kind: str) -> ApiResource:
    """The API resource of a kind.

    Raises:
        InvalidError: this package does not know the kind.
    """
    return kinds.kind_of(kind).source.api


def create_or_adopt(
    cluster: Cluster, target: ObjectRef, make: Callable[[], Mapping[str, Any]], identity: StageIdentity
) -> tuple[Object, bool]:
    """Return the stage's object, and whether an earlier attempt created it; create it if it does not exist.

    If it is being deleted, whoever owns it, this waits until it is gone.
    An object of the same owner is replaced if it failed, or if it succeeded for an earlier run of the task
    (`StageIdentity.rerun`). One that has not ended is adopted, whichever attempt created it.

    Args:
        cluster: the API server.
        target: the object.
        make: returns the manifest; called only if the object must be created.
        identity: who runs the stage.

    Raises:
        ConflictError: an object of that name exists and belongs to another owner.
        UnavailableError: the deletion of a predecessor takes too long.
    """
    deadline, waits = time.monotonic() + GONE_SECONDS, False
    while time.monotonic() < deadline:
        existing = client.find(cluster, target.resource, target.name, target.namespace)
        if existing is None:
            try:
                created = client.create(cluster, _with_owner_marks(make(), identity), target.namespace)
            except AlreadyExistsError:
                continue  # another attempt or somebody else created it first: read again
            identity.notify(f"{target} created (uid {created['metadata']['uid']})")
            return created, False
        if is_terminating(existing):  # whoever owns it, its name will be free
            if not waits:
                identity.notify(f"{target} is being deleted: it is created again when it is gone")
            waits = True
            time.sleep(POLL_SECONDS)
            continue
        _check_owner(existing, target, identity)
        try:
            if not _must_replace(existing, target, identity):
                is_adopted = annotation_of(existing, ATTEMPT_ANNOTATION) != identity.attempt
                adopted = _adopt(cluster, target, existing, identity)
                identity.notify(
                    f"{target} exists: {_describe_predecessor(existing)}; this attempt continues with it"
                )
                return adopted, is_adopted
            identity.notify(
                f"{target} has ended: {_describe_predecessor(existing)}; it is replaced by a new one"
            )
            _notify_failure(cluster, target, existing, identity)
            # Foreground: the pods of the successor have the same names.
            options = DeletionOptions(uid=existing["metadata"]["uid"], propagation="Foreground")
            client.delete(cluster, target.resource, target.name, target.namespace, options)
        except (ConflictError, NotFoundError):
            continue  # it changed since it was read: read again
    raise UnavailableError(
        f"{target} is still being deleted after {GONE_SECONDS:.0f} s; check its finalizers, then try again"
    )


def _with_owner_marks(manifest: Mapping[str, Any], identity: StageIdentity) -> dict[str, Any]:
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **identity.annotations}
    return {**manifest, "metadata": metadata}


def _check_owner(existing: Object, target: ObjectRef, identity: StageIdentity) -> None:
    owner = annotation_of(existing, OWNER_ANNOTATION)
    if owner != identity.owner:
        whose = f"belongs to {owner}" if owner else "was not created by a pipeline"
        raise ConflictError(f"{target} exists already and {whose}; choose another name, or delete it")


def _must_replace(existing: Object, target: ObjectRef, identity: StageIdentity) -> bool:
    """Whether the object has ended and is not the result of this attempt."""
    if annotation_of(existing, ATTEMPT_ANNOTATION) == identity.attempt:
        return False
    seen = read_object(target.kind, existing)
    return seen is not None and has_ended(seen) and (identity.rerun or has_failed(seen))


def _notify_failure(cluster: Cluster, target: ObjectRef, existing: Object, identity: StageIdentity) -> None:
    """Save the last lines of a failed job before its pods are deleted: its attempt may have died silently."""
    try:
        lines = failed_pod.describe_failed_pod(cluster, target.kind, existing)
    except EdlError as error:
        lines = [f"the output of its pods could not be read: {error}"]
    for line in lines:
        identity.notify(line)


def _describe_predecessor(predecessor: Object) -> str:
    phase = (predecessor.get("status") or {}).get("phase") or "no phase yet"
    attempt = annotation_of(predecessor, ATTEMPT_ANNOTATION)
    return f"{phase}, created {predecessor['metadata'].get('creationTimestamp')}, held by attempt {attempt}"


def _adopt(cluster: Cluster, target: ObjectRef, existing: Object, identity: StageIdentity) -> Object:
    left = {
        key: None
        for key in (names.GONE_ANNOTATION, names.SUSPENDED_ANNOTATION)
        if annotation_of(existing, key)
    }
    if annotation_of(existing, ATTEMPT_ANNOTATION) == identity.attempt and not left:
        return existing
    body: dict[str, Any] = {
        "metadata": {**_version_guard(existing), "annotations": {**identity.annotations, **left}}
    }
    if names.SUSPENDED_ANNOTATION in left:
        body["spec"] = kinds.kind_of(target.kind).suspension(suspend=False)
    return client.patch(cluster, target.resource, target.name, body, target.namespace)


def cancel_object(cluster: Cluster, handle: Handle, action: CancelAction = "delete", gone: str = "") -> bool:
    """End the object that a stage created, if the stage still owns it and it has not ended.

    A ScalePlan is withdrawn only before its first step. Later it ends by itself, completed or rolled back.

    Args:
        cluster: the API server.
        handle: handle of the stage; if the stage created nothing, nothing is done.
        action: what to do with a job: "suspend" keeps its data position, "keep" does nothing. A plan is
            withdrawn by either "delete" or "suspend".
        gone: end only an object that still has this time of abandonment (see `record_abandonment`); "" for
            any.

    Returns:
        Whether something was done.
    """
    if action == "keep" or not handle.owner or not handle.uid:
        return False
    kind = kinds.kind_of(handle.kind)
    # A plan can't be suspended, only withdrawn.
    chosen: CancelAction = "delete" if kind.view is None else action

    def change(manifest: Object) -> bool:
        if gone and annotation_of(manifest, names.GONE_ANNOTATION) != gone:
            return False
        _cancel_unchanged(cluster, manifest, kind, chosen)
        return True

    return _change_while_ours(cluster, handle, change)


def describe_cancellation(action: CancelAction, *, done: bool) -> str:
    """The line about an object after `cancel_object`, without the object's name.

    Args:
        action: what was to be done.
        done: what `cancel_object` returned.
    """
    return f"is cancelled ({action})" if done else "is left alone: this attempt has nothing to cancel there"


def record_abandonment(cluster: Cluster, handle: Handle, since: str | None) -> bool:
    """Annotate an object with the time since which nobody has been waiting for it.

    Adoption removes the annotation. So a cancellation notices if the object has been adopted in the meantime.

    Args:
        cluster: the API server.
        handle: handle of the object.
        since: the time; None removes the annotation.

    Returns:
        Whether the annotation was changed. It is not if the object has ended or has another owner.
    """
    resource = resource_of(handle.kind)

    def change(manifest: Object) -> bool:
        body = {"metadata": {**_version_guard(manifest), "annotations": {names.GONE_ANNOTATION: since}}}
        client.patch(cluster, resource, handle.name, body, handle.namespace)
        return True

    return _change_while_ours(cluster, handle, change)


def _change_while_ours(cluster: Cluster, handle: Handle, change: Callable[[Object], bool]) -> bool:
    """Change the object with a guarded write; False if the handle no longer owns it, or it has ended."""
    resource = resource_of(handle.kind)

    def attempt() -> bool:
        manifest = client.find(cluster, resource, handle.name, handle.namespace)
        if manifest is None or not is_cancellable(manifest, handle):
            return False
        try:
            return change(manifest)
        except NotFoundError:
            return False

    return client.retry_conflicts(attempt)


def is_cancellable(manifest: Object, handle: Handle) -> bool:
    """Whether the handle still owns the object, and `cancel_object` would end it."""
    marks = (annotation_of(manifest, OWNER_ANNOTATION), annotation_of(manifest, ATTEMPT_ANNOTATION))
    if (
        manifest["metadata"]["uid"] != handle.uid
        or marks != (handle.owner, handle.attempt)
        or is_terminating(manifest)
    ):
        return False
    seen = read_object(handle.kind, manifest)
    if isinstance(seen, JobView):
        return not seen.phase.final
    return seen is not None and seen.status.phase in (None, ScalePlanPhase.PENDING)


def _cancel_unchanged(cluster: Cluster, manifest: Object, kind: Kind, action: CancelAction) -> None:
    metadata, resource = manifest["metadata"], kind.source.api
    if action == "delete":
        options = DeletionOptions(uid=metadata["uid"], resource_version=metadata["resourceVersion"])
        client.delete(cluster, resource, metadata["name"], metadata["namespace"], options)
    elif not kind.suspended(manifest):  # a user who suspended it will resume it
        mark = {names.SUSPENDED_ANNOTATION: annotation_of(manifest, ATTEMPT_ANNOTATION)}
        body = {
            "metadata": {**_version_guard(manifest), "annotations": mark},
            "spec": kind.suspension(suspend=True),
        }
        client.patch(cluster, resource, metadata["name"], body, metadata["namespace"])


def _version_guard(manifest: Object) -> dict[str, Any]:
    """Metadata that makes a patch fail if the object has changed since it was read."""
    return {key: manifest["metadata"][key] for key in ("uid", "resourceVersion")}


def annotation_of(obj: Object, key: str) -> str:
    """The value of an annotation; "" if the object does not have it."""
    return str((obj["metadata"].get("annotations") or {}).get(key, ""))


@dataclass(frozen=True)
class OwnedObject:
    """An object that a stage created.

    Attributes:
        handle: the object, its owner and the attempt that holds it.
        on_cancel, lifetime, gone: values of the annotations of these names; "" for a missing annotation.
        suspended: the job is suspended now, or its owner suspended it and no attempt has adopted it since,
            even if somebody has resumed it.
    """

    handle: Handle
    on_cancel: str
    lifetime: str
    gone: str
    suspended: bool


def list_owned(cluster: Cluster, namespace: str, engine: str) -> list[OwnedObject]:
    """The objects of all kinds that an engine's tasks created and that have not ended. Kinds that the account
    has no rights on are left out: it has created none of them.

    Args:
        cluster: the API server.
        namespace: a namespace, or `ALL_NAMESPACES`.
        engine: the owner annotation's part before the first slash.

    Raises:
        ForbiddenError: the account has no rights on any kind.
    """
    owned_objects, refusals = [], []
    for kind in kinds.KINDS:
        try:
            objects = _list_if_installed(cluster, kind, namespace)
        except ForbiddenError as error:
            log.info("objects of kind %s are left out: %s", kind.name, error)
            refusals.append(error)
            continue
        for obj in objects:
            owned = _read_owned(kind, obj)
            if owned.handle.owner.startswith(f"{engine}/") and _may_be_cancelled(obj, owned.handle):
                owned_objects.append(owned)
    if len(refusals) == len(kinds.KINDS):
        raise refusals[0]
    return owned_objects


def list_of_owner(cluster: Cluster, kind: str, namespace: str, owner: str) -> list[Handle]:
    """The objects of a kind, in a namespace, that an owner created, even those that have ended. There are
    none if the kind is not installed.

    Args:
        cluster: the API server.
        kind: the kind.
        namespace: the namespace.
        owner: an owner annotation. One that ends in a slash stands for all with one more part.
    """
    known = kinds.kind_of(kind)
    handles = [_read_owned(known, obj).handle for obj in _list_if_installed(cluster, known, namespace)]
    return [handle for handle in handles if owner in (handle.owner, _all_instances(handle.owner))]


def _all_instances(owner: str) -> str:
    """The owner annotation that stands for all instances of the same mapped task."""
    return owner.rpartition("/")[0] + "/"


def _list_if_installed(cluster: Cluster, kind: Kind, namespace: str) -> list[Object]:
    try:
        return client.list_objects(cluster, Scope(kind.source.api, namespace)).items
    except NotFoundError:
        return []


def _may_be_cancelled(obj: Object, handle: Handle) -> bool:
    try:
        return is_cancellable(obj, handle)
    except EdlError:
        return True  # of another version of this package: the cancellation will report it


def _read_owned(kind: Kind, obj: Object) -> OwnedObject:
    metadata = obj["metadata"]
    handle = Handle(
        kind=kind.name,
        namespace=metadata["namespace"],
        name=metadata["name"],
        goal=ExistsGoal(),
        uid=metadata["uid"],
        owner=annotation_of(obj, OWNER_ANNOTATION),
        attempt=annotation_of(obj, ATTEMPT_ANNOTATION),
    )
    suspended = kind.view is not None and kind.suspended(obj)
    return OwnedObject(
        handle=handle,
        on_cancel=annotation_of(obj, ON_CANCEL_ANNOTATION),
        lifetime=annotation_of(obj, LIFETIME_ANNOTATION),
        gone=annotation_of(obj, names.GONE_ANNOTATION),
        suspended=suspended or bool(annotation_of(obj, names.SUSPENDED_ANNOTATION)),
    )
