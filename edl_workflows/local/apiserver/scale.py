"""The scale subresource: an object's replicas as an ``autoscaling/v1 Scale``."""

from collections.abc import Callable

from edl_workflows.local.apiserver import errors, schemas
from edl_workflows.local.apiserver.catalog import ServedResource
from edl_workflows.local.apiserver.store import Object


def read(resource: ServedResource, obj: Object) -> Object:
    """The ``Scale`` of an object."""
    paths = resource.scale
    assert paths is not None
    meta = {
        field: obj["metadata"][field]
        for field in ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
        if field in obj["metadata"]
    }
    status: Object = {"replicas": schemas.selectable(obj, paths.status_path) or 0}
    selector = schemas.selectable(obj, paths.selector_path) if paths.selector_path else None
    if selector:
        status["selector"] = selector
    spec = {"replicas": schemas.selectable(obj, paths.spec_path) or 0}
    return {
        "kind": "Scale",
        "apiVersion": "autoscaling/v1",
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def writer(resource: ServedResource, change: Callable[[Object], Object]) -> Callable[[Object], Object]:
    """Turn a `change` of a ``Scale`` into a change of the scaled object."""

    def write(obj: Object) -> Object:
        paths = resource.scale
        assert paths is not None
        wanted = change(read(resource, obj))
        replicas = (wanted.get("spec") or {}).get("replicas", 0)
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 0:
            message = f"Invalid value: {replicas!r}: must be greater than or equal to 0"
            cause = errors.Cause("FieldValueInvalid", message, "spec.replicas")
            raise errors.invalid("autoscaling", "Scale", obj["metadata"]["name"], [cause])
        schemas.assign(obj, paths.spec_path, replicas)
        for field in ("resourceVersion", "uid"):  # preconditions, if the caller sent them
            if value := (wanted.get("metadata") or {}).get(field):
                obj["metadata"][field] = value
        return obj

    return write
