"""Responses with objects in the form that the client accepts: whole, as table rows, or metadata only."""

import asyncio
import itertools
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice

from starlette.responses import Response

from edl_workflows.core.protocol.reported_text import escape_controls
from edl_workflows.local.apiserver import errors, tables
from edl_workflows.local.apiserver.objects.catalog import ServedResource
from edl_workflows.local.apiserver.storage import revisions
from edl_workflows.local.apiserver.storage.revisions import Object

MAX_WARNINGS = 50
"""Most warnings of a response: Python's HTTP clients read at most 100 headers."""
MAX_WARNING = 256
"""Longest warning in characters, as in Kubernetes."""
WHOLE, TABLE, PARTIAL = "whole", "table", "partial"
PORTION = 100
"""Number of list items that are formatted without a pause: about 10 ms as a table."""
_FORMS = {"Table": TABLE, "PartialObjectMetadata": PARTIAL, "PartialObjectMetadataList": PARTIAL}


def negotiate(accept: str) -> str:
    """The first form in an ``Accept`` header that the server supports.

    Raises:
        ApiError: 406.
    """
    for part in (accept or "*/*").split(","):
        media, *parameters = (piece.strip() for piece in part.split(";"))
        options = dict(parameter.partition("=")[::2] for parameter in parameters)
        if media not in ("application/json", "application/*", "*/*"):
            continue
        if "as" not in options:
            return WHOLE
        if options["as"] in _FORMS and options.get("g") == "meta.k8s.io" and options.get("v") == "v1":
            return _FORMS[options["as"]]
    raise errors.ApiError(
        406, "NotAcceptable", "only the following media types are accepted: application/json"
    )


@dataclass(frozen=True)
class View:
    """The form of a resource's objects in a response.

    Attributes:
        resource: the resource, in the version that the client requested.
        form: ``WHOLE``, ``TABLE`` or ``PARTIAL``.
        include: the part of its object that a table row carries.
    """

    resource: ServedResource
    form: str = WHOLE
    include: str = "Metadata"

    def one(self, body: bytes) -> bytes:
        """One stored object."""
        # Most objects were stored in the requested version and are sent as they are.
        if self.form == WHOLE and body.startswith(
            b'{"apiVersion":"%b",' % self.resource.api_version.encode()
        ):
            return body
        obj = {**json.loads(body), "apiVersion": self.resource.api_version}
        if self.form == TABLE:
            return revisions.encode_object(
                self._table([obj], {"resourceVersion": obj["metadata"]["resourceVersion"]})
            )
        return revisions.encode_object(tables.partial_metadata(obj) if self.form == PARTIAL else obj)

    async def many(self, bodies: Iterable[bytes], list_metadata: Object) -> bytes:
        """A list of stored objects. It is formatted in portions, between which other requests run."""
        if self.form == TABLE:
            table = self._table([], list_metadata)
            for portion in _portions(bodies):
                table["rows"] += self._table([json.loads(body) for body in portion], list_metadata)["rows"]
                await asyncio.sleep(0)
            return revisions.encode_object(table)
        kind, version = f"{self.resource.kind}List", self.resource.api_version
        if self.form == PARTIAL:
            kind, version = "PartialObjectMetadataList", "meta.k8s.io/v1"
        head = revisions.encode_object({"kind": kind, "apiVersion": version, "metadata": list_metadata})
        items: list[bytes] = []
        for portion in _portions(bodies):
            items += map(self.one, portion)
            await asyncio.sleep(0)
        return head[:-1] + b',"items":[' + b",".join(items) + b"]}"

    def event(self, kind: str, body: bytes) -> bytes:
        """One line of a watch."""
        return b'{"type":"' + kind.encode() + b'","object":' + self.one(body) + b"}\n"

    def bookmark(self, rv: int, *, ends_initial_events: bool = False) -> bytes:
        """A bookmark: a watch line with the version that the watch has reached, optionally marked as the end
        of the initial objects."""
        meta: Object = {"resourceVersion": str(rv), "creationTimestamp": None}
        if ends_initial_events:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        body: Object = {"kind": self.resource.kind, "apiVersion": self.resource.api_version, "metadata": meta}
        if self.form == TABLE:
            body = self._table([], {"resourceVersion": str(rv)})
        elif self.form == PARTIAL:
            body = tables.partial_metadata(body)
        return revisions.encode_object({"type": revisions.BOOKMARK, "object": body}) + b"\n"

    def _table(self, objects: list[Object], list_metadata: Object) -> Object:
        return tables.render_table(self.resource, objects, datetime.now(UTC), self.include, list_metadata)


def _portions(bodies: Iterable[bytes]) -> Iterator[list[bytes]]:
    remaining = iter(bodies)
    while portion := list(itertools.islice(remaining, PORTION)):
        yield portion


def json_response(body: bytes, code: int = 200, warnings: Iterable[str] = ()) -> Response:
    """A JSON response, with warnings that kubectl shows."""
    response = Response(body, code, media_type="application/json")
    for warning in islice(warnings, MAX_WARNINGS):
        line = escape_controls(warning[:MAX_WARNING], keep="")
        quoted = line.replace("\\", "\\\\").replace('"', '\\"')
        # In UTF-8, as Kubernetes sends them; Starlette's own encoding of headers is Latin-1.
        response.raw_headers.append((b"warning", f'299 - "{quoted}"'.encode()))
    return response


def refusal_response(error: errors.ApiError) -> Response:
    """The response to a rejected request: a ``Status``."""
    return json_response(revisions.encode_object(error.to_status()), error.code)
