"""The API for components in the same process (scheduler, runner): the server's semantics without HTTP.

Resources have the names that Kubernetes gives them in text: ``pods``, ``elasticjobs.elastic.iml.github.io``.
Objects are plain dicts, copies that the caller owns. All calls must be made in the thread of the server's
event loop.
"""

import copy
from collections.abc import AsyncIterator, Mapping
from typing import Any

from edl_workflows.local.apiserver import errors
from edl_workflows.local.apiserver.objects import patches, selectors
from edl_workflows.local.apiserver.objects.catalog import ServedResource
from edl_workflows.local.apiserver.objects.deletion import DeletionOptions
from edl_workflows.local.apiserver.objects.registry import Registry, WriteOptions
from edl_workflows.local.apiserver.storage.revisions import Object, StoreKey


class LocalClient:
    """In-process access to the registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    @property
    def revision(self) -> int:
        """The resourceVersion of the last change; a watch that starts here misses no later change."""
        return self._registry.store.revision

    def _resource(self, name: str) -> ServedResource:
        resource = self._registry.catalog.by_id(name)
        if resource is None:
            raise errors.no_such_path()
        return resource

    def get(self, resource: str, name: str, namespace: str = "") -> Object:
        """Read an object.

        Raises:
            ApiError: 404.
        """
        return self._registry.store.require(StoreKey(resource, namespace, name)).decode()

    def find(self, resource: str, name: str, namespace: str = "") -> Object | None:
        """Read an object; None if it does not exist."""
        revision = self._registry.store.get(StoreKey(resource, namespace, name))
        return revision.decode() if revision else None

    def list_objects(
        self, resource: str, namespace: str = "", *, label_selector: str = "", field_selector: str = ""
    ) -> list[Object]:
        """The objects that match the selectors, in one namespace or, if `namespace` is empty, in all."""
        match = selectors.make_match(
            label_selector, field_selector, self._resource(resource).selectable_fields
        )
        return [
            revision.decode()
            for revision in self._registry.store.list_objects(resource, namespace, match=match)
        ]

    def create(self, resource: str, obj: Object) -> Object:
        """Create an object in the namespace of its metadata.

        Raises:
            ApiError: as `Registry.create`.
        """
        namespace = obj["metadata"].get("namespace", "")
        return self._registry.create(self._resource(resource), namespace, copy.deepcopy(obj)).obj

    def update(self, resource: str, obj: Object, *, subresource: str = "") -> Object:
        """Replace an object, or with ``subresource="status"`` its status alone.

        Raises:
            ApiError: as `Registry.update`; 409 Conflict if `obj` was read before the last change.
        """
        meta = obj["metadata"]
        options = WriteOptions(subresource=subresource)
        place = (meta.get("namespace", ""), meta["name"])
        return self._registry.update(self._resource(resource), *place, copy.deepcopy(obj), options).obj

    def patch(
        self,
        resource: str,
        name: str,
        patch: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
    ) -> Object:
        """Merge-patch an object, or with ``subresource="status"`` its status alone.

        Raises:
            ApiError: as `Registry.patch`.
        """
        options = WriteOptions(subresource=subresource)
        served = self._resource(resource)
        return self._registry.patch(
            served, namespace, name, lambda obj: patches.merge_patch(obj, copy.deepcopy(patch)), options
        ).obj

    def bind(self, name: str, namespace: str, node: str) -> None:
        """Assign a node to a pod.

        Raises:
            ApiError: 404; 409 Conflict, the pod has a node or is being deleted.
        """
        self._registry.bind(namespace, name, node)

    def delete(
        self,
        resource: str,
        name: str,
        namespace: str = "",
        *,
        grace: int | None = None,
        uid: str = "",
        propagation: str = "Background",
    ) -> None:
        """Delete an object. A running pod is only marked; it is removed when the runner deletes it with
        ``grace=0``.

        Args:
            resource: its resource.
            name: its name.
            namespace: its namespace.
            grace: grace period in seconds; None: that of the pod.
            uid: delete only the object with this uid.
            propagation: ``Background``, ``Foreground`` or ``Orphan``.

        Raises:
            ApiError: 404; 409 Conflict, the object of that name now has another uid.
        """
        options = DeletionOptions(grace=grace, uid=uid, propagation=propagation)
        self._registry.delete(self._resource(resource), namespace, name, options)

    async def watch(
        self,
        resource: str,
        namespace: str = "",
        *,
        since: int,
        label_selector: str = "",
        field_selector: str = "",
    ) -> AsyncIterator[tuple[str, Object]]:
        """Yield (type, object) for each change after version `since`, without end.

        Raises:
            ApiError: 410 Expired: the caller must list again and watch from there.
        """
        match = selectors.make_match(
            label_selector, field_selector, self._resource(resource).selectable_fields
        )
        with self._registry.store.watch(resource, namespace, since=since, match=match) as watch:
            while True:
                for event in await watch.batch():
                    yield event.type, event.decode()
