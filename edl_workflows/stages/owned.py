"""The objects that pipelines made and that still go on, as their marks tell it: what is looked through for orphans."""

from dataclasses import dataclass

from edl_workflows.exceptions import EdlError, NotFoundError
from edl_workflows.jobs.kind import Kind
from edl_workflows.jobs.kinds import KINDS
from edl_workflows.kube import client
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object, Scope
from edl_workflows.stages.goals import ExistsGoal, Handle
from edl_workflows.stages.identity import (
    ATTEMPT_ANNOTATION,
    GONE_ANNOTATION,
    LIFETIME_ANNOTATION,
    ON_CANCEL_ANNOTATION,
    OWNER_ANNOTATION,
    SUSPENDED_ANNOTATION,
)
from edl_workflows.stages.ownership import annotation_of, is_cancellable


@dataclass(frozen=True)
class OwnedObject:
    """An object with an owner's mark.

    Attributes:
        handle: the object, its owner and the attempt that holds it.
        on_cancel, lifetime, gone: values of the annotations of these names; "" where there is none.
        suspended: a job that shall have no pods, or that somebody resumed after its owner had suspended it.
    """

    handle: Handle
    on_cancel: str
    lifetime: str
    gone: str
    suspended: bool


def list_owned(cluster: Cluster, namespace: str, engine: str) -> list[OwnedObject]:
    """The objects of all kinds in a namespace, or in all, that an engine's tasks made and that a cancellation would end.

    Args:
        cluster: where.
        namespace: or `ALL_NAMESPACES`.
        engine: what the owner's mark begins with, up to the first slash.
    """
    return [
        found
        for kind in KINDS
        for obj in _installed(cluster, Scope(kind.source.api, namespace))
        if annotation_of(obj, OWNER_ANNOTATION).startswith(f"{engine}/")
        for found in [_read(kind, obj)]
        if _goes_on(obj, found.handle)
    ]


def _installed(cluster: Cluster, scope: Scope) -> list[Object]:
    """The objects of a kind; none of one that is not installed."""
    try:
        return client.list_objects(cluster, scope).items
    except NotFoundError:
        return []


def _goes_on(obj: Object, handle: Handle) -> bool:
    try:
        return is_cancellable(obj, handle)
    except EdlError:
        return True  # of another version of this package: who cancels it will say so


def _read(kind: Kind, obj: Object) -> OwnedObject:
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
    rests = kind.view is not None and kind.suspended(obj)
    return OwnedObject(
        handle=handle,
        on_cancel=annotation_of(obj, ON_CANCEL_ANNOTATION),
        lifetime=annotation_of(obj, LIFETIME_ANNOTATION),
        gone=annotation_of(obj, GONE_ANNOTATION),
        suspended=rests or bool(annotation_of(obj, SUSPENDED_ANNOTATION)),
    )
