"""One WATCH request: events as they arrive, until the server ends it or another thread closes it. The
informer resumes watches, lists, and maintains the cache.
"""

import json
import random
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.runtime.kube import errors, transport
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, Scope
from edl_workflows.runtime.kube.transport import ApiRequest

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
        self._cluster = cluster
        self._scope = scope
        self._resource_version = resource_version
        spread = random.randint(MIN_SECONDS, 2 * MIN_SECONDS)  # noqa: S311 - no secret
        self._seconds = seconds or spread
        self._response: Any = None
        self._closed = False

    def __iter__(self) -> Iterator[StreamedEvent]:
        """Events, in the server's order.

        Raises:
            ExpiredError: the server no longer knows the resourceVersion. The caller must list again.
            EdlError: any error of a request.
        """
        request = self._request()
        self._response = response = transport.open_stream(self._cluster, request)
        try:
            if self._closed:
                return
            with errors.mapping_errors(request.action, self._cluster.server):
                for line in transport.lines(response):
                    if line:
                        yield _parse(line, request.action)
        except EdlError:
            if not self._closed:  # reads of a closed watch fail; that is what closing means
                raise
        finally:
            response.close()

    def close(self) -> None:
        """End the iteration, from any thread, at once."""
        self._closed = True
        if self._response is not None:
            # Shutting the socket down wakes a reader that is blocked in it; closing would wait for it.
            with suppress(ValueError, RuntimeError, OSError):
                self._response.shutdown()

    def _request(self) -> ApiRequest:
        query = (
            *self._scope.query,
            ("watch", "true"),
            ("allowWatchBookmarks", "true"),
            ("resourceVersion", self._resource_version),
            ("timeoutSeconds", str(self._seconds)),
        )
        return ApiRequest(
            "watch",
            self._scope.resource.plural,
            self._scope.path,
            f"watch {self._scope}",
            query,
            read_seconds=self._seconds + 15.0,
        )


def _parse(line: bytes, action: str) -> StreamedEvent:
    try:
        event = json.loads(line)
        if event["type"] == "ERROR":
            raise errors.of_status(event["object"], action)
        version = event["object"]["metadata"]["resourceVersion"]
        return StreamedEvent(EventType(event["type"]), event["object"], version)
    except (ValueError, KeyError, TypeError) as error:
        text = line[:200].decode("utf-8", "replace")
        raise UnavailableError(
            f"cannot {action}: the server sent no event but {text!r}; watching anew"
        ) from error
