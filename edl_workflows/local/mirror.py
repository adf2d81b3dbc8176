"""A parsed copy of one resource of the API server, kept current by a watch."""

from collections.abc import Callable
from typing import Generic, TypeVar

import structlog
from pydantic import ValidationError

from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.storage.revisions import DELETED, Object

T = TypeVar("T")
_EXPIRED = 410
_log = structlog.get_logger(__name__)


class Mirror(Generic[T]):
    """The objects of a resource by ``namespace/name``.

    Args:
        client: the API.
        resource: name of the resource, such as ``pods``.
        parse: converts an API object.
    """

    def __init__(self, client: LocalClient, resource: str, parse: Callable[[Object], T]) -> None:
        self._client = client
        self._resource = resource
        self._parse = parse
        self._listeners: list[Callable[[str], None]] = []
        self.objects: dict[str, T] = {}
        self._versions: dict[str, int] = {}

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with the key of every object that changes."""
        self._listeners.append(listener)

    def relist(self) -> int:
        """Read the current state. Returns its version."""
        since = self._client.revision
        listed = {_key(obj): obj for obj in self._client.list_objects(self._resource)}
        changed = self.objects.keys() | listed.keys()
        self._versions = {key: _version(obj) for key, obj in listed.items()}
        self.objects.clear()
        for key, obj in listed.items():
            self._store(key, obj)
        for key in changed:
            self._tell(key)
        return since

    async def run(self) -> None:
        """List and watch until cancelled."""
        while True:
            try:
                async for kind, obj in self._client.watch(self._resource, since=self.relist()):
                    self._apply(kind, obj)
            except ApiError as error:
                if error.code != _EXPIRED:
                    raise

    def record_write(self, obj: Object) -> None:
        """Store the result of a write by the caller, before the watch reports it."""
        self._apply("", obj)

    def _apply(self, kind: str, obj: Object) -> None:
        key = _key(obj)
        if _version(obj) <= self._versions.get(key, 0):
            return  # the watch reports an older version than the one that `record_write` stored
        if kind == DELETED:
            self.objects.pop(key, None)
            self._versions.pop(key, None)
        else:
            self._store(key, obj)
            self._versions[key] = _version(obj)
        self._tell(key)

    def _store(self, key: str, obj: Object) -> None:
        try:
            self.objects[key] = self._parse(obj)
        except ValidationError:
            # The API server validates objects. If it stores an invalid one nevertheless, that must not end
            # the cluster.
            self.objects.pop(key, None)
            _log.exception(
                "object ignored: required fields are missing or invalid", resource=self._resource, key=key
            )

    def _tell(self, key: str) -> None:
        for listener in self._listeners:
            try:
                listener(key)
            except Exception:  # noqa: BLE001 - an error of one object must not end the cluster
                _log.exception("change of an object not handled", resource=self._resource, key=key)


def _key(obj: Object) -> str:
    metadata = obj["metadata"]
    return f"{metadata.get('namespace', '')}/{metadata['name']}"


def _version(obj: Object) -> int:
    return int(obj["metadata"]["resourceVersion"])
