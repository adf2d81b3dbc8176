"""Checks of a write beyond the object's own fields: the schema, the namespace, priority, finalizers."""

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.errors import Cause
from edl_workflows.local.apiserver.objects import builtin, quantities, rules, schemas
from edl_workflows.local.apiserver.objects.catalog import ServedResource
from edl_workflows.local.apiserver.storage.revisions import Object, StoreKey
from edl_workflows.local.apiserver.storage.store import ObjectStore

EMPTIED_FIRST = frozenset({"namespaces"})
"""Resources whose objects are removed only when everything in them is gone."""
PROTECTED_NAMESPACES = frozenset({"default", "kube-system"})


def without_nulls(obj: Object) -> Object:
    """A built-in object without its null fields: to Kubernetes' typed decoders, null means absent."""
    return {key: _clean(value) for key, value in obj.items() if value is not None}


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return {key: _clean(child) for key, child in value.items() if child is not None}
    if isinstance(value, list):
        return [_clean(child) for child in value]
    return value


def check_schema(resource: ServedResource, obj: Object, old: Object | None) -> list[Cause]:
    """The violations of the schema and its rules.

    Raises:
        ApiError: 400, a built-in object has a value of the wrong type, which Kubernetes cannot even decode.
    """
    if not resource.custom:
        builtin.zero_status(obj, resource)
    if not resource.schema:
        return []
    causes = schemas.find_schema_errors(obj, resource.schema)
    wrong = [cause for cause in causes if cause.reason == "FieldValueTypeInvalid"]
    if wrong and not resource.custom:
        text = ", ".join(str(cause) for cause in wrong)
        raise errors.bad_request(
            f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: {text}'
        )
    if not resource.custom:
        return causes or list(quantities.check_quantities(obj, old, resource.schema))
    return causes or rules.evaluate(obj, old, resource.rules)


def admit(objects: ObjectStore, resource: ServedResource, obj: Object) -> None:
    """Check a new object against the objects that it refers to (namespace, a pod's service account and
    priority class), and complete it from them.

    Raises:
        ApiError: 404, no such namespace; 403, it is terminating, or a pod names an absent account or priority
            class.
    """
    if resource.namespaced:
        _admit_namespace(objects, resource, obj["metadata"])
    if resource.id == "pods" and isinstance(obj.get("spec"), dict):
        _admit_account(objects, obj)
        _admit_priority(objects, obj)


def _admit_namespace(objects: ObjectStore, resource: ServedResource, meta: Object) -> None:
    namespace = objects.require(StoreKey("namespaces", "", meta["namespace"]))
    if namespace.fields.get("status.phase") == "Terminating":
        explanation = (
            f"unable to create new content in namespace {meta['namespace']} because it is being terminated"
        )
        error = errors.forbidden_error(resource.id, meta.get("name", ""), explanation)
        error.details["causes"] = [
            Cause(
                "NamespaceTerminating",
                f"namespace {meta['namespace']} is being terminated",
                "metadata.namespace",
            ).to_dict()
        ]
        raise error


def _admit_account(objects: ObjectStore, pod: Object) -> None:
    meta, account = pod["metadata"], pod["spec"].get("serviceAccountName") or "default"
    if objects.get(StoreKey("serviceaccounts", meta["namespace"], account)) is None:
        explanation = (
            f'error looking up service account {meta["namespace"]}/{account}: serviceaccount "{account}" '
            "not found"
        )
        raise errors.forbidden_error("pods", meta.get("name", ""), explanation)


def _admit_priority(objects: ObjectStore, pod: Object) -> None:
    spec, name = pod["spec"], pod["spec"].get("priorityClassName")
    classes = [revision.decode() for revision in objects.list_objects("priorityclasses.scheduling.k8s.io")]
    if name:
        priority_class = next(
            (priority_class for priority_class in classes if priority_class["metadata"]["name"] == name), None
        )
        if priority_class is None:
            raise errors.forbidden_error(
                "pods", pod["metadata"].get("name", ""), f"no PriorityClass with name {name} was found"
            )
    else:
        priority_class = next(
            (priority_class for priority_class in classes if priority_class.get("globalDefault")), None
        )
    spec["priority"] = priority_class["value"] if priority_class else 0
    spec["preemptionPolicy"] = (priority_class or {}).get("preemptionPolicy", "PreemptLowerPriority")


def check_finalizers(resource: ServedResource, obj: Object, old: Object) -> None:
    """Refuse new finalizers on an object that is being deleted.

    Raises:
        ApiError: 422.
    """
    if not old["metadata"].get("deletionTimestamp"):
        return
    new = set(obj["metadata"].get("finalizers") or []) - set(old["metadata"].get("finalizers") or [])
    if new:
        message = (
            "Forbidden: no new finalizers can be added if the object is being deleted, found new "
            f"finalizers {sorted(new)}"
        )
        cause = Cause("FieldValueForbidden", message, "metadata.finalizers")
        raise errors.invalid_error(resource.group, resource.kind, obj["metadata"]["name"], [cause])
