"""The verbs create, update, patch and delete, with the semantics that controllers rely on.

The HTTP server (`app`) and the in-process `client` call it; it reads and writes the `store`. `garbage`
deletes what a deletion leaves behind.
"""

import functools
import json
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from edl_workflows.core.schemas import structural
from edl_workflows.local.apiserver import errors, off_loop
from edl_workflows.local.apiserver.objects import admission, builtin, checks, crds, deletion, metadata
from edl_workflows.local.apiserver.objects.catalog import Catalog, ServedResource
from edl_workflows.local.apiserver.objects.deletion import DeletionOptions
from edl_workflows.local.apiserver.off_loop import Computations
from edl_workflows.local.apiserver.storage.revisions import Object, Revision, StoreKey
from edl_workflows.local.apiserver.storage.store import MAX_OBJECT_BYTES, MAX_STORED_BYTES, ObjectStore

STRICT, WARN, IGNORE = "Strict", "Warn", "Ignore"
_GENERATE_ATTEMPTS = 8
_DELETE = DeletionOptions()


@dataclass(frozen=True)
class WriteOptions:
    """Options of a write.

    Attributes:
        dry_run: do everything except storing.
        validation: treatment of fields that are not in the schema: ``Strict`` rejects the object, ``Warn``
            removes them with a warning, ``Ignore`` removes them.
        subresource: ``status`` to change only the status; empty to change everything else.
    """

    dry_run: bool = False
    validation: str = WARN
    subresource: str = ""


@dataclass(frozen=True)
class WriteResult:
    """The result of a write.

    Attributes:
        obj: the object as it is stored, or would be without `dry_run`.
        warnings: messages for the user.
        gone: whether the object no longer exists.
    """

    obj: Object
    warnings: tuple[str, ...] = ()
    gone: bool = False


class Registry:
    """The verbs on one store and one catalog.

    Args:
        objects: the store; the custom resources in it are added to the catalog.
        catalog: the resources.
        now: the clock.
    """

    def __init__(
        self, objects: ObjectStore, catalog: Catalog, now: metadata.Now = lambda: datetime.now(UTC)
    ) -> None:
        self.store = objects
        self.catalog = catalog
        self._now = now
        for revision in objects.list_objects(builtin.CRDS):
            self._serve(revision.decode())

    def create(
        self, resource: ServedResource, namespace: str, obj: Object, options: WriteOptions = WriteOptions()
    ) -> WriteResult:
        """Create an object from a manifest.

        Raises:
            ApiError: 400, it cannot be parsed; 409 AlreadyExists; 422 Invalid; 403 or 404, the namespace is
                terminating or absent.
        """
        return off_loop.run_computations(self.creation(resource, namespace, obj, options))

    def creation(
        self, resource: ServedResource, namespace: str, manifest: Object, options: WriteOptions
    ) -> Computations[WriteResult]:
        """`create` as a generator that yields its long computations."""
        obj, warnings = yield lambda: self._read(resource, namespace, manifest, options, checks.MAX_VALUES)
        meta = obj["metadata"]
        if meta.pop("resourceVersion", ""):
            raise errors.bad_request("resourceVersion should not be set on objects to be created")
        if resource.custom and resource.has_status:
            obj.pop("status", None)
        for field in ("deletionTimestamp", "deletionGracePeriodSeconds", "generation"):
            meta.pop(field, None)
        meta["uid"] = str(uuid.uuid4())
        meta["creationTimestamp"] = metadata.format_time(self._now())
        if resource.counts_generation:
            meta["generation"] = 1
        self._name(resource, meta)
        admission.admit(self.store, resource, obj)
        served: Sequence[ServedResource] = yield lambda: self._validate(resource, obj, None)
        admission.admit(self.store, resource, obj)  # again: the namespace may have been deleted meanwhile
        key = StoreKey(resource.id, meta.get("namespace", ""), meta["name"])
        if options.dry_run:
            if self.store.get(key) is not None:
                raise errors.already_exists(resource.id, key.name)
            return WriteResult(obj, warnings)
        return WriteResult(self._after(resource, self.store.create(key, obj), served), warnings)

    def update(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        obj: Object,
        options: WriteOptions = WriteOptions(),
    ) -> WriteResult:
        """Replace an object, or its status, by a manifest.

        Raises:
            ApiError: 404; 409 Conflict, the object has changed since `obj` was read; 422 Invalid; 400, it
                cannot be parsed.
        """
        return off_loop.run_computations(self.replacement(resource, namespace, name, obj, options))

    def replacement(
        self, resource: ServedResource, namespace: str, name: str, manifest: Object, options: WriteOptions
    ) -> Computations[WriteResult]:
        """`update` as a generator that yields its long computations."""
        key = StoreKey(resource.id, namespace, name)
        self.store.require(key)
        obj, warnings = yield lambda: self._read(resource, namespace, manifest, options)
        if obj["metadata"].setdefault("name", name) != name:
            given = obj["metadata"]["name"]
            raise errors.bad_request(
                f"the name of the object ({given}) does not match the name on the URL ({name})"
            )
        if resource.custom and not obj["metadata"].get("resourceVersion"):
            message = "Invalid value: 0: must be specified for an update"
            cause = errors.Cause("FieldValueInvalid", message, "metadata.resourceVersion")
            raise errors.invalid_error(resource.group, resource.kind, name, [cause])
        outcome = None
        while outcome is None:
            outcome = yield from self._replace(resource, self.store.require(key), obj, options, warnings)
        return outcome

    def patch(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        options: WriteOptions = WriteOptions(),
    ) -> WriteResult:
        """Change an object, or its status, by applying a function to its current state.

        Raises:
            ApiError: as `update`; 409 Conflict only if `change` sets another resourceVersion or uid.
        """
        return off_loop.run_computations(self.change(resource, namespace, name, change, options))

    def change(
        self,
        resource: ServedResource,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        options: WriteOptions,
    ) -> Computations[WriteResult]:
        """`patch` as a generator that yields its long computations."""
        outcome = None
        while outcome is None:
            current = self.store.require(StoreKey(resource.id, namespace, name))
            obj, warnings = yield functools.partial(
                self._read_changed, resource, namespace, current, change, options
            )
            if obj["metadata"].get("name") != name:
                raise errors.bad_request(f"the name of the object can't be changed from {name}")
            outcome = yield from self._replace(resource, current, obj, options, warnings)
        return outcome

    def _read_changed(
        self,
        resource: ServedResource,
        namespace: str,
        current: Revision,
        change: Callable[[Object], Object],
        options: WriteOptions,
    ) -> tuple[Object, tuple[str, ...]]:
        changed = change(self.view(resource, current.decode()))
        return self._read(resource, namespace, changed, options)

    def delete(
        self, resource: ServedResource, namespace: str, name: str, options: DeletionOptions = _DELETE
    ) -> WriteResult:
        """Delete an object, or mark it as being deleted while finalizers, dependents or its grace period
        delay its removal.

        Raises:
            ApiError: 404; 409 Conflict, a precondition does not hold.
        """
        current = self.store.require(StoreKey(resource.id, namespace, name))
        if resource.id == "namespaces" and name in admission.PROTECTED_NAMESPACES:
            raise errors.forbidden_error(resource.id, name, "this namespace may not be deleted")
        obj = current.decode()
        deletion.check_preconditions(resource, current, obj, options)
        meta = obj["metadata"]
        grace = deletion.grace_seconds(resource, obj, options)
        finalizers = deletion.deletion_finalizers(resource, meta, options)
        waiting = bool(finalizers) or grace > 0 or resource.id in admission.EMPTIED_FIRST
        if options.dry_run:
            return WriteResult(obj, gone=not waiting)
        if not waiting:
            return self._remove(resource, current, obj)
        already = meta.get("deletionTimestamp")
        if not already or grace < meta.get("deletionGracePeriodSeconds", 0):
            meta["deletionTimestamp"] = metadata.format_time(self._now() + timedelta(seconds=grace))
            meta["deletionGracePeriodSeconds"] = grace
        if not already and "generation" in meta:
            meta["generation"] += 1
        if finalizers:
            meta["finalizers"] = finalizers
        if resource.id == "namespaces":
            obj.setdefault("status", {})["phase"] = "Terminating"
        return WriteResult(self._after(resource, self.store.update(current.key, obj)))

    def bind(self, namespace: str, name: str, node: str) -> None:
        """Assign a node to a pod.

        Raises:
            ApiError: 404; 409 Conflict, the pod has a node or is being deleted.
        """
        key = StoreKey("pods", namespace, name)
        current = self.store.require(key)
        pod = current.decode()
        if current.deleting:
            raise errors.conflict_error(
                "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host"
            )
        if assigned := pod["spec"].get("nodeName"):
            raise errors.conflict_error(
                "pods/binding", name, f'pod {name} is already assigned to node "{assigned}"'
            )
        pod["spec"]["nodeName"] = node
        conditions = [
            condition
            for condition in pod["status"].get("conditions") or []
            if condition["type"] != "PodScheduled"
        ]
        scheduled = {
            "type": "PodScheduled",
            "status": "True",
            "lastTransitionTime": metadata.format_time(self._now()),
        }
        pod["status"]["conditions"] = [*conditions, scheduled]
        self.store.update(key, pod)

    def finish(self, key: StoreKey) -> None:
        """Remove a namespace whose contents are gone, unless it has finalizers."""
        current, resource = self.store.get(key), self.catalog.by_id(key.resource)
        if current and resource and not current.decode()["metadata"].get("finalizers"):
            self._remove(resource, current, current.decode())

    def amend(self, key: StoreKey, change: Callable[[Object], None]) -> None:
        """Change an object's metadata on behalf of the system. If the object is being deleted and the change
        released it, remove it."""
        current, resource = self.store.get(key), self.catalog.by_id(key.resource)
        if current is None or resource is None:
            return
        obj = current.decode()
        change(obj["metadata"])
        if deletion.can_be_removed(resource, obj):
            self._remove(resource, current, obj)
        else:
            self.store.update(key, obj)

    def view(self, resource: ServedResource, obj: Object) -> Object:
        """A stored object in the version that `resource` serves."""
        return {**obj, "apiVersion": resource.api_version, "kind": resource.kind}

    def _read(
        self,
        resource: ServedResource,
        namespace: str,
        obj: Object,
        options: WriteOptions,
        most: int = checks.MAX_STORED_VALUES,
    ) -> tuple[Object, tuple[str, ...]]:
        """The manifest after type checks, pruning and defaulting, with the warnings from these steps."""
        most = checks.MAX_DEFINITION_VALUES if resource.id == builtin.CRDS else most
        if problem := checks.size_problem(obj, most):
            raise errors.ApiError(
                413, "RequestEntityTooLarge", f"the {resource.kind} is too large: {problem}"
            )
        obj = {"apiVersion": resource.api_version, "kind": resource.kind, **obj}
        if (obj["apiVersion"], obj["kind"]) != (resource.api_version, resource.kind):
            given = f"{obj['apiVersion']}, Kind={obj['kind']}"
            raise errors.bad_request(
                f"the object provided is unrecognized: got {given}, expected {resource.api_version}, "
                f"Kind={resource.kind}"
            )
        obj.setdefault("metadata", {})
        if problem := metadata.shape_problem(obj["metadata"]):
            raise errors.bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled: {problem}'
            )
        lost = metadata.unknown_fields(obj["metadata"])
        obj["metadata"] = metadata.without_nulls(obj["metadata"])
        self._place(resource, namespace, obj["metadata"])
        if not resource.custom:
            obj = admission.without_nulls(obj)
        if resource.schema:
            lost += structural.prune_unknown_fields(obj, resource.schema, root=True)
            structural.set_defaults(obj, resource.schema)
        unknown = [f'unknown field "{field}"' for field in lost] if options.validation != IGNORE else []
        if unknown and options.validation == STRICT:
            raise errors.bad_request(
                f'{resource.kind} in version "{resource.version}" cannot be handled as a {resource.kind}: '
                f"strict decoding error: {', '.join(unknown)}"
            )
        obj["apiVersion"] = resource.stored_as
        return obj, tuple(unknown)

    def _place(self, resource: ServedResource, namespace: str, meta: Object) -> None:
        if not resource.namespaced:
            meta.pop("namespace", None)
            return
        if meta.setdefault("namespace", namespace) != namespace:
            message = (
                f"the namespace of the provided object ({meta['namespace']}) does not match the "
                f"namespace sent on the request ({namespace})"
            )
            raise errors.bad_request(message)

    def _name(self, resource: ServedResource, meta: Object) -> None:
        base = meta.get("generateName")
        if meta.get("name") or not base:
            return
        for _ in range(_GENERATE_ATTEMPTS):
            meta["name"] = metadata.generate_name(base)
            if self.store.get(StoreKey(resource.id, meta.get("namespace", ""), meta["name"])) is None:
                return

    def _validate(
        self, resource: ServedResource, obj: Object, old: Object | None
    ) -> Sequence[ServedResource]:
        """Validate an object. Returns the resources that it defines if it is a definition; otherwise nothing.

        Raises:
            ApiError: 422.
        """
        causes = metadata.check_metadata(obj, label_name=resource.label_name)
        below = admission.check_schema(resource, obj, old)
        if not below:
            resource.fill(obj)
            below = resource.check(obj, old)
        if causes or below:
            name = obj["metadata"].get("name") or obj["metadata"].get("generateName") or ""
            raise errors.invalid_error(resource.group, resource.kind, name, [*causes, *below])
        if resource.id != builtin.CRDS:
            return ()
        crds.mark_established(obj, self._now())
        return crds.resources_of_definition(obj)

    def _replace(
        self,
        resource: ServedResource,
        current: Revision,
        obj: Object,
        options: WriteOptions,
        warnings: tuple[str, ...],
    ) -> Computations[WriteResult | None]:
        """Store `obj` in place of `current`. The result is None if another write replaced `current`
        meanwhile."""
        old = current.decode()
        meta, before = obj["metadata"], old["metadata"]
        if meta.get("uid", before["uid"]) != before["uid"]:
            explanation = (
                f"Precondition failed: UID in precondition: {meta['uid']}, UID in object meta: "
                f"{before['uid']}"
            )
            raise errors.conflict_error(resource.id, current.key.name, explanation)
        if (meta.get("resourceVersion") or before["resourceVersion"]) != before["resourceVersion"]:
            raise errors.conflict_error(resource.id, current.key.name, errors.MODIFIED)
        combined = _combine(resource, old, obj, options.subresource)
        served: Sequence[ServedResource] = yield lambda: self._validate(resource, combined, old)
        if self.store.get(current.key) is not current:
            return None
        admission.check_finalizers(resource, combined, old)
        if resource.counts_generation and _spec_changed(resource, old, combined):
            combined["metadata"]["generation"] = before.get("generation", 0) + 1
        if options.dry_run:
            return WriteResult(combined, warnings)
        if deletion.can_be_removed(resource, combined):
            removed = self._remove(resource, current, combined)
            return WriteResult(removed.obj, warnings, gone=True)
        most = MAX_STORED_BYTES if options.subresource == "status" else MAX_OBJECT_BYTES
        return WriteResult(
            self._after(resource, self.store.update(current.key, combined, most=most), served), warnings
        )

    def _remove(self, resource: ServedResource, current: Revision, obj: Object) -> WriteResult:
        last = self.store.delete(current.key, last=obj).decode()
        if resource.id == builtin.CRDS:
            self.catalog.replace(current.key.name, ())
        return WriteResult(last, gone=True)

    def _after(
        self, resource: ServedResource, revision: Revision, served: Sequence[ServedResource] = ()
    ) -> Object:
        obj = revision.decode()
        if resource.id == builtin.CRDS:
            return self._serve(obj, served)
        if resource.id == "namespaces" and not obj["metadata"].get("deletionTimestamp"):
            self._default_account(revision.key.name)
        return obj

    def _serve(self, crd: Object, served: Sequence[ServedResource] = ()) -> Object:
        before_fields = self._custom_fields(crd["metadata"]["name"])
        self.catalog.replace(crd["metadata"]["name"], served or crds.resources_of_definition(crd))
        if self._custom_fields(crd["metadata"]["name"]) != before_fields:
            self.store.reindex(crd["metadata"]["name"])
        before = json.dumps(crd.get("status"))
        crds.mark_established(crd, self._now())
        if json.dumps(crd.get("status")) == before:
            return crd
        return self.store.update(StoreKey(builtin.CRDS, "", crd["metadata"]["name"]), crd).decode()

    def _custom_fields(self, resource_id: str) -> dict[str, str]:
        resource = self.catalog.by_id(resource_id)
        return dict(resource.field_paths) if resource else {}

    def _default_account(self, namespace: str) -> None:
        accounts = self.catalog.by_id("serviceaccounts")
        if accounts and self.store.get(StoreKey(accounts.id, namespace, "default")) is None:
            self.create(accounts, namespace, {"metadata": {"name": "default"}})


_KEPT = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "generation",
    "generateName",
    "namespace",
)
"""Metadata fields that only the server writes."""


def _combine(resource: ServedResource, old: Object, new: Object, subresource: str) -> Object:
    """`old` with the part of `new` that the resource or subresource may write."""
    if subresource == "status":
        combined = (
            {**old, "status": new.get("status")}
            if "status" in new
            else {k: v for k, v in old.items() if k != "status"}
        )
        return {**combined, "metadata": dict(old["metadata"])}
    combined = dict(new)
    if resource.has_status:
        combined.pop("status", None)
        if "status" in old:
            combined["status"] = old["status"]
    meta = {field: value for field, value in new["metadata"].items() if field not in _KEPT}
    meta.update({field: old["metadata"][field] for field in _KEPT if field in old["metadata"]})
    return {**combined, "metadata": meta}


def _spec_changed(resource: ServedResource, old: Object, new: Object) -> bool:
    skipped = {"metadata", "apiVersion"} | ({"status"} if resource.has_status else set())
    return any(old.get(field) != new.get(field) for field in (old.keys() | new.keys()) - skipped)
