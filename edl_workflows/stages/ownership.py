"""Creating what is not there, adopting what is ours, and cancelling nothing else.

Every object that a stage makes carries its owner and the attempt that holds it. Adoption moves the second mark to the
adopter with a guarded write, and a cancellation is guarded likewise: whichever of the two comes second sees that it did.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from edl_workflows.exceptions import AlreadyExistsError, ConflictError, NotFoundError, UnavailableError
from edl_workflows.jobs import kinds
from edl_workflows.jobs.api import ApiResource
from edl_workflows.jobs.kind import Kind
from edl_workflows.jobs.manifests import is_terminating
from edl_workflows.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.jobs.view import JobView
from edl_workflows.kube import client
from edl_workflows.kube.client import DeleteOptions
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object
from edl_workflows.stages.goals import Handle, has_ended, has_failed, read_object
from edl_workflows.stages.identity import (
    ATTEMPT_ANNOTATION,
    GONE_ANNOTATION,
    OWNER_ANNOTATION,
    SUSPENDED_ANNOTATION,
    StageIdentity,
)

GONE_SECONDS = 120.0
"""How long to wait for a finished or killed predecessor to go: a pod's grace period, and some."""
POLL_SECONDS = 0.5
CANCEL_ATTEMPTS = 10
"""A status written at the same moment makes a guarded write fail; so many in a row do not happen."""

CancelAction = Literal["delete", "suspend", "keep"]


@dataclass(frozen=True)
class ObjectRef:
    """Where the object of a stage is, or will be."""

    kind: str
    namespace: str
    name: str

    @property
    def resource(self) -> ApiResource:
        """The kind as the API serves it."""
        return resource_of(self.kind)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


def resource_of(kind: str) -> ApiResource:
    """The API's resource of a kind.

    Raises:
        InvalidError: this package has no such kind.
    """
    return kinds.kind_of(kind).source.api


def create_or_adopt(
    cluster: Cluster, target: ObjectRef, make: Callable[[], Mapping[str, Any]], identity: StageIdentity
) -> Object:
    """The stage's object, made if it is not there.

    An object of ours that failed is replaced, as is one that succeeded for an earlier run of the task (`Identity.rerun`).
    One that still goes on is adopted, whoever of us began it.

    Args:
        cluster: where.
        target: kind, namespace and name.
        make: gives the manifest; called only if one must be made.
        identity: who asks.

    Raises:
        ConflictError: there is an object of that name, and it is not ours.
        UnavailableError: a predecessor does not go away.
    """
    deadline = time.monotonic() + GONE_SECONDS
    while time.monotonic() < deadline:
        found = client.find(cluster, target.resource, target.name, target.namespace)
        if found is None:
            try:
                return client.create(cluster, _with_owner_marks(make(), identity), target.namespace)
            except AlreadyExistsError:
                continue  # another attempt of ours, or somebody else, was quicker: look again
        _check_owner(found, target, identity)
        if is_terminating(found):
            time.sleep(POLL_SECONDS)
            continue
        try:
            if not _must_replace(found, target, identity):
                return _adopt(cluster, target, found, identity)
            # Foreground: the successor's pods have the same names.
            options = DeleteOptions(uid=found["metadata"]["uid"], propagation="Foreground")
            client.delete(cluster, target.resource, target.name, target.namespace, options)
        except (ConflictError, NotFoundError):
            continue  # it changed since it was read: look again
    raise UnavailableError(
        f"{target} of an earlier attempt is still being deleted after {GONE_SECONDS:.0f} s; look at its finalizers, then try again"
    )


def _with_owner_marks(manifest: Mapping[str, Any], identity: StageIdentity) -> dict[str, Any]:
    metadata = dict(manifest["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **identity.annotations}
    return {**manifest, "metadata": metadata}


def _check_owner(found: Object, target: ObjectRef, identity: StageIdentity) -> None:
    owner = annotation_of(found, OWNER_ANNOTATION)
    if owner != identity.owner:
        whose = f"belongs to {owner}" if owner else "was not made by a pipeline"
        raise ConflictError(f"{target} is there already and {whose}; choose another name, or delete it")


def _must_replace(found: Object, target: ObjectRef, identity: StageIdentity) -> bool:
    """Whether the object is a finished one that this attempt must not take for its own result."""
    if annotation_of(found, ATTEMPT_ANNOTATION) == identity.attempt:
        return False
    seen = read_object(target.kind, found)
    return seen is not None and has_ended(seen) and (identity.rerun or has_failed(seen))


def _adopt(cluster: Cluster, target: ObjectRef, found: Object, identity: StageIdentity) -> Object:
    left = {key: None for key in (GONE_ANNOTATION, SUSPENDED_ANNOTATION) if annotation_of(found, key)}
    if annotation_of(found, ATTEMPT_ANNOTATION) == identity.attempt and not left:
        return found
    body: dict[str, Any] = {
        "metadata": {**_version_guard(found), "annotations": {**identity.annotations, **left}}
    }
    if SUSPENDED_ANNOTATION in left:
        body["spec"] = kinds.kind_of(target.kind).suspension(suspend=False)
    return client.patch(cluster, target.resource, target.name, body, target.namespace)


def cancel_object(cluster: Cluster, handle: Handle, action: CancelAction = "delete", gone: str = "") -> bool:
    """End what the stage made, if it is still the stage's and still goes on.

    A ScalePlan is withdrawn only before its first step. Later it ends by itself, in the new cluster or rolled back to the
    old; taking it away in between could only make that harder.

    Args:
        cluster: where.
        handle: of the stage; of one that made nothing, nothing is touched.
        action: what to do with a job; "suspend" keeps its data position, "keep" does nothing. A plan is withdrawn by
            either of the other two.
        gone: only an object that still says so (see `record_abandonment`); "" for any.

    Returns:
        Whether something was done.
    """
    if action == "keep" or not handle.owner or not handle.uid:
        return False
    row = kinds.kind_of(handle.kind)
    # A plan can't be suspended, only withdrawn.
    chosen: CancelAction = "delete" if row.view is None else action

    def change(found: Object) -> bool:
        if gone and annotation_of(found, GONE_ANNOTATION) != gone:
            return False
        _cancel_unchanged(cluster, found, row, chosen)
        return True

    return _change_while_ours(cluster, handle, change)


def record_abandonment(cluster: Cluster, handle: Handle, since: str | None) -> bool:
    """Write on an object since when nobody waits for it any more, or with None that somebody does again.

    An adopter removes the note, so that who comes to cancel the object later sees that it was adopted meanwhile.

    Returns:
        Whether it was written: the object is still the handle's, and goes on.
    """
    resource = resource_of(handle.kind)

    def change(found: Object) -> bool:
        body = {"metadata": {**_version_guard(found), "annotations": {GONE_ANNOTATION: since}}}
        client.patch(cluster, resource, handle.name, body, handle.namespace)
        return True

    return _change_while_ours(cluster, handle, change)


def _change_while_ours(cluster: Cluster, handle: Handle, change: Callable[[Object], bool]) -> bool:
    """Make a guarded change of the handle's object as it is now; False where it is no longer the handle's or has ended."""
    resource = resource_of(handle.kind)
    for _attempt in range(CANCEL_ATTEMPTS):
        found = client.find(cluster, resource, handle.name, handle.namespace)
        if found is None or not is_cancellable(found, handle):
            return False
        try:
            return change(found)
        except ConflictError:
            continue
        except NotFoundError:
            return False
    raise ConflictError(f"{handle} changed faster than it could be cancelled; delete it by hand")


def is_cancellable(found: Object, handle: Handle) -> bool:
    """Whether an object is still the handle's, and whether `cancel_object` would do something about it."""
    marks = (annotation_of(found, OWNER_ANNOTATION), annotation_of(found, ATTEMPT_ANNOTATION))
    if (
        found["metadata"]["uid"] != handle.uid
        or marks != (handle.owner, handle.attempt)
        or is_terminating(found)
    ):
        return False
    seen = read_object(handle.kind, found)
    if isinstance(seen, JobView):
        return not seen.phase.final
    return seen is not None and seen.status.phase in (None, ScalePlanPhase.PENDING)


def _cancel_unchanged(cluster: Cluster, found: Object, row: Kind, action: CancelAction) -> None:
    metadata, resource = found["metadata"], row.source.api
    if action == "delete":
        options = DeleteOptions(uid=metadata["uid"], resource_version=metadata["resourceVersion"])
        client.delete(cluster, resource, metadata["name"], metadata["namespace"], options)
    elif not row.suspended(found):  # else somebody wanted it so, and resumes it
        mark = {SUSPENDED_ANNOTATION: annotation_of(found, ATTEMPT_ANNOTATION)}
        body = {
            "metadata": {**_version_guard(found), "annotations": mark},
            "spec": row.suspension(suspend=True),
        }
        client.patch(cluster, resource, metadata["name"], body, metadata["namespace"])


def _version_guard(found: Object) -> dict[str, Any]:
    """The metadata that makes a patch fail if the object changed since it was read."""
    return {key: found["metadata"][key] for key in ("uid", "resourceVersion")}


def annotation_of(obj: Object, key: str) -> str:
    """The value of an object's annotation; "" if it has none."""
    return str((obj["metadata"].get("annotations") or {}).get(key, ""))
