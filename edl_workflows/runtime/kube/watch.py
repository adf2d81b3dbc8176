"""One WATCH request: events as they arrive, until the server ends it or another thread closes it. The
informer resumes watches, lists, and maintains the cache.
"""

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.runtime.kube import errors
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, Scope
from edl_workflows.runtime.kube.transport import ApiRequest, LineStream

MIN_SECONDS = 300
"""A watch lives for MIN to twice MIN seconds, as with client-go's reflectors. The random duration prevents
all watches of a server from ending at once. With 5 to 10 minutes, all waiters of a process together make 0.1
to 0.2 requests a minute."""


class EventType(StrEnum):
    """What a watch reports of an object, as the API server spells it."""

    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"


@dataclass(frozen=True)
class StreamedEvent:
    """One event. A bookmark's object has only a resourceVersion. A new watch continues from
    `resource_version`."""

    type: EventType
    object: Object
    resource_version: str


class WatchStream:
    """Iterate to open the watch and get its events; `close` ends it from any thread.

    Args:
        cluster: the API server.
        scope: what to watch.
        resource_version: the version to continue from, taken from a LIST or a later event.
        seconds: how long the server keeps the watch; by default a random time, see `MIN_SECONDS`.
    """

    def __init__(
        self, cluster: Cluster, scope: Scope, resource_version: str, seconds: int | None = None
    ) -> None:
        spread = random.randint(MIN_SECONDS, 2 * MIN_SECONDS)  # noqa: S311 - no secret
        kept = seconds or spread
        query = (
            *scope.query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", resource_version),
            ("timeoutSeconds", str(kept)),
        )
        self._action = f"watch {scope}"
        self._scope = scope
        request = ApiRequest(
            "watch",
            scope.resource.plural,
            scope.path,
            self._action,
            query,
            accept=scope.accept("PartialObjectMetadata"),
            read_seconds=kept + 15.0,
        )
        self._lines = LineStream(cluster, request)
        self.close = self._lines.close

    def __iter__(self) -> Iterator[StreamedEvent]:
        """Events, in the server's order.

        Raises:
            ExpiredError: the server no longer knows the resourceVersion. The caller must list again.
            EdlError: any error of a request.
        """
        for line in self._lines:
            if line and not self._lines.closed:  # the last line of a closed watch may be a part of one
                yield self._parse(line)

    def _parse(self, line: bytes) -> StreamedEvent:
        try:
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise errors.of_status(event["object"], self._action)
            version = event["object"]["metadata"]["resourceVersion"]
            return StreamedEvent(EventType(event["type"]), self._scope.name_kind(event["object"]), version)
        except (ValueError, KeyError, TypeError) as error:
            text = line[:200].decode("utf-8", "replace")
            raise UnavailableError(
                f"cannot {self._action}: the server sent no event but {text!r}; watching anew"
            ) from error
