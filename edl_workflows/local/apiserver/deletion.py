"""When and how an object goes: preconditions, grace, finalizers. Pure; `registry` does it, `garbage` does
what follows."""

from dataclasses import dataclass

from edl_workflows.local.apiserver import admission, builtin, crds, errors
from edl_workflows.local.apiserver.catalog import Resource
from edl_workflows.local.apiserver.store import Object, Revision

_MAX_GRACE_SECONDS = 2**31 - 1
"""68 years: a longer grace period would end after the last date that a clock knows."""

BACKGROUND, FOREGROUND, ORPHAN = "Background", "Foreground", "Orphan"
FOREGROUND_FINALIZER, ORPHAN_FINALIZER = "foregroundDeletion", "orphan"


@dataclass(frozen=True)
class DeleteOptions:
    """How to delete.

    Attributes:
        grace: seconds between SIGTERM and SIGKILL (pods); None: what the object says.
        propagation: ``Background`` deletes dependents after, ``Foreground`` before, ``Orphan`` leaves them.
        uid: delete only this very object.
        rv: delete only this version of it.
        dry_run: do everything but store.
    """

    grace: int | None = None
    propagation: str = BACKGROUND
    uid: str = ""
    rv: str = ""
    dry_run: bool = False


def check_preconditions(resource: Resource, current: Revision, obj: Object, options: DeleteOptions) -> None:
    """Refuse to delete another object, or another version of it, than the caller means.

    Raises:
        ApiError: 409 Conflict.
    """
    uid = obj["metadata"]["uid"]
    if options.uid and options.uid != uid:
        why = f"Precondition failed: UID in precondition: {options.uid}, UID in object meta: {uid}"
        raise errors.conflict(resource.id, current.key.name, why)
    if options.rv and options.rv != str(current.rv):
        why = (
            f"Precondition failed: ResourceVersion in precondition: {options.rv}, ResourceVersion in "
            f"object meta: {current.rv}"
        )
        raise errors.conflict(resource.id, current.key.name, why)


def grace_seconds(resource: Resource, obj: Object, options: DeleteOptions) -> int:
    """How long an object may take to end; 0: it goes at once."""
    # Nobody runs a pod without a node or one that has ended, so nobody would finish its deletion.
    if not resource.graceful or not obj["spec"].get("nodeName"):
        return 0
    if obj.get("status", {}).get("phase") in ("Succeeded", "Failed"):
        return 0
    asked = options.grace if options.grace is not None else int(obj["spec"]["terminationGracePeriodSeconds"])
    return min(max(asked, 0), _MAX_GRACE_SECONDS)


def finalizers(resource: Resource, meta: Object, options: DeleteOptions) -> list[str]:
    """What will hold the object: its own finalizers and those of the propagation."""
    own = [one for one in meta.get("finalizers") or [] if one not in (FOREGROUND_FINALIZER, ORPHAN_FINALIZER)]
    if resource.id == builtin.CRDS and crds.CLEANUP_FINALIZER not in own:
        own.append(crds.CLEANUP_FINALIZER)
    extra = {FOREGROUND: [FOREGROUND_FINALIZER], ORPHAN: [ORPHAN_FINALIZER]}.get(options.propagation, [])
    return own + extra


def released(resource: Resource, obj: Object) -> bool:
    """Whether nothing holds an object that is to be deleted: its finalizers are gone, its grace is over."""
    meta = obj["metadata"]
    if not meta.get("deletionTimestamp") or meta.get("finalizers") or resource.id in admission.EMPTIED_FIRST:
        return False
    return not meta.get("deletionGracePeriodSeconds")
