"""The conditions of a deletion: preconditions, grace period, finalizers. This module is pure; `registry`
deletes the object, and `garbage` deletes its dependents."""

from dataclasses import dataclass

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.objects import admission, builtin, crds
from edl_workflows.local.apiserver.objects.catalog import ServedResource
from edl_workflows.local.apiserver.storage.revisions import Object, Revision

_MAX_GRACE_SECONDS = 2**31 - 1
"""68 years. A longer grace period could end after the last date that Python can represent."""

BACKGROUND, FOREGROUND, ORPHAN = "Background", "Foreground", "Orphan"
FOREGROUND_FINALIZER, ORPHAN_FINALIZER = "foregroundDeletion", "orphan"


@dataclass(frozen=True)
class DeletionOptions:
    """Options of a deletion.

    Attributes:
        grace: seconds between SIGTERM and SIGKILL (pods); None: those of the object.
        propagation: ``Background`` deletes dependents afterwards, ``Foreground`` before, ``Orphan`` keeps
            them.
        uid: delete only the object with this uid.
        rv: delete only this version of the object.
        dry_run: do everything except storing.
    """

    grace: int | None = None
    propagation: str = BACKGROUND
    uid: str = ""
    rv: str = ""
    dry_run: bool = False


def check_preconditions(
    resource: ServedResource, current: Revision, obj: Object, options: DeletionOptions
) -> None:
    """Reject the deletion of another object or version than the one in the preconditions.

    Raises:
        ApiError: 409 Conflict.
    """
    uid = obj["metadata"]["uid"]
    if options.uid and options.uid != uid:
        explanation = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {uid}"
        raise errors.conflict_error(resource.id, current.key.name, explanation)
    if options.rv and options.rv != str(current.rv):
        explanation = (
            f"Precondition failed: ResourceVersion in precondition: {options.rv}, ResourceVersion in "
            f"object meta: {current.rv}"
        )
        raise errors.conflict_error(resource.id, current.key.name, explanation)


def grace_seconds(resource: ServedResource, obj: Object, options: DeletionOptions) -> int:
    """The grace period of an object in seconds; 0: the object is removed at once."""
    # The runner handles neither pods without a node nor pods that have ended, so it would not complete their
    # deletion.
    if not resource.graceful or not obj["spec"].get("nodeName"):
        return 0
    if obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.grace if options.grace is not None else int(obj["spec"]["terminationGracePeriodSeconds"])
    return min(max(asked, 0), _MAX_GRACE_SECONDS)


def deletion_finalizers(resource: ServedResource, meta: Object, options: DeletionOptions) -> list[str]:
    """The object's own finalizers and the one that the propagation policy adds."""
    own = [
        finalizer
        for finalizer in meta.get("finalizers") or []
        if finalizer not in (FOREGROUND_FINALIZER, ORPHAN_FINALIZER)
    ]
    if resource.id == builtin.CRDS and crds.CLEANUP_FINALIZER not in own:
        own.append(crds.CLEANUP_FINALIZER)
    extra = {FOREGROUND: [FOREGROUND_FINALIZER], ORPHAN: [ORPHAN_FINALIZER]}.get(options.propagation, [])
    return own + extra


def can_be_removed(resource: ServedResource, obj: Object) -> bool:
    """Whether an object that is being deleted can be removed: its finalizers are gone and its grace period is
    over."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers") or resource.id in admission.EMPTIED_FIRST:
        return False
    return not meta.get("deletionGracePeriodSeconds")
