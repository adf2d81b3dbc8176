"""HTTP verbs on resources."""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from edl_workflows.local.apiserver import errors, off_loop, requests, subresources, views
from edl_workflows.local.apiserver.objects import selectors
from edl_workflows.local.apiserver.objects.registry import WriteResult
from edl_workflows.local.apiserver.off_loop import LONG_BYTES, Computations
from edl_workflows.local.apiserver.requests import RequestTarget
from edl_workflows.local.apiserver.server import ApiServer
from edl_workflows.local.apiserver.storage import revisions, store, watches
from edl_workflows.local.apiserver.storage.revisions import Object, StoreKey

BOOKMARK_SECONDS = 30.0
"""Interval of bookmarks in a watch without changes."""
_SHOWN_WHEN_DELETED = frozenset({"pods", "services", "serviceaccounts"})
"""Resources whose deletion returns the object, as in Kubernetes. Other deletions return a ``Status``."""
DEFAULT_WATCH_SECONDS = 3600
"""Duration of a watch if the client does not set one."""


def _view(request: Request, target: RequestTarget) -> views.View:
    form = views.negotiate(request.headers.get("accept", ""))
    return views.View(target.resource, form, request.query_params.get("includeObject") or "Metadata")


def _match(request: Request, target: RequestTarget) -> revisions.Match:
    query = request.query_params
    return selectors.make_match(
        query.get("labelSelector", ""), query.get("fieldSelector", ""), target.resource.selectable_fields
    )


async def get(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """One object, its scale or its log; or what a pod behind a Service answers."""
    if target.subresource == "log":
        return await subresources.logs(server.registry.store, server.logs, target, request.query_params)
    if target.subresource == "proxy":
        return await subresources.proxy(server.registry.store, server.proxy, target, request)
    if target.subresource not in ("", "status", "scale"):
        raise errors.method_not_allowed()
    revision = server.registry.store.require(StoreKey(target.resource.id, target.namespace, target.name))
    if target.subresource == "scale":
        return views.json_response(
            revisions.encode_object(subresources.read_scale(target.resource, revision.decode()))
        )
    return views.json_response(_view(request, target).one(revision.body))


async def list_objects(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """A collection or one page of it. All pages show the same version."""
    query, objects = request.query_params, server.registry.store
    view, match = _view(request, target), _match(request, target)
    limit, after, at = requests.read_number(query, "limit") or 0, ("", ""), None
    if token := query.get("continue"):
        at, after = requests.decode_continue(token)
    elif resource_version := requests.read_number(query, "resourceVersion"):
        if resource_version > objects.revision:
            raise errors.ApiError(
                504, "Timeout", f"Too large resource version: {resource_version}, current: {objects.revision}"
            )
        at = resource_version if query.get("resourceVersionMatch") == "Exact" else None
    version = at if at is not None else objects.revision
    matches = objects.list_objects(target.resource.id, target.namespace, match=match, at=at)
    if token:
        matches = [revision for revision in matches if (revision.key.namespace, revision.key.name) > after]
    list_metadata: Object = {"resourceVersion": str(version)}
    if limit and len(matches) > limit:
        last = matches[limit - 1].key
        list_metadata["continue"] = requests.encode_continue(version, last.namespace, last.name)
        list_metadata["remainingItemCount"] = len(matches) - limit
        matches = matches[:limit]
    return views.json_response(await view.many((revision.body for revision in matches), list_metadata))


@dataclass(frozen=True)
class _Terms:
    """Options of a watch.

    Attributes:
        since: the version after which changes are sent; 0: the current one.
        initial: send the current objects first.
        marked: send a marked bookmark after them (``sendInitialEvents``, streaming lists).
        bookmarks: send bookmarks.
        deadline: when the watch ends, on the monotonic clock.
    """

    since: int
    initial: bool
    marked: bool
    bookmarks: bool
    deadline: float


async def watch(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """A stream of changes. Without a resourceVersion (or with 0) it begins with the current objects."""
    query = request.query_params
    view, match = _view(request, target), _match(request, target)
    seconds = requests.read_number(query, "timeoutSeconds") or DEFAULT_WATCH_SECONDS
    since, marked = (
        requests.read_number(query, "resourceVersion") or 0,
        requests.read_flag(query, "sendInitialEvents"),
    )
    terms = _Terms(
        since=0 if marked else since,
        initial=marked or not since,
        marked=marked,
        bookmarks=requests.read_flag(query, "allowWatchBookmarks"),
        deadline=time.monotonic() + seconds,
    )
    lines = _lines(server.registry.store, target, view, match, terms)
    return StreamingResponse(lines, media_type="application/json")


async def _lines(
    objects: store.ObjectStore, target: RequestTarget, view: views.View, match: revisions.Match, terms: _Terms
) -> AsyncIterator[bytes]:
    place = (target.resource.id, target.namespace)
    present = objects.list_objects(*place, match=match) if terms.initial else []
    try:
        watched = objects.watch(*place, since=terms.since or objects.revision, match=match)
    except errors.ApiError as error:
        yield _error_line(error)
        return
    with watched:
        at = objects.revision
        for block in _blocks(view.event(revisions.ADDED, revision.body) for revision in present):
            yield block
            await asyncio.sleep(0)  # lets other requests run between two blocks
        if terms.marked:
            yield view.bookmark(at, ends_initial_events=True)
        try:
            async for line in _changes(objects, watched, view, terms):
                yield line
        except errors.ApiError as error:
            yield _error_line(error)


def _blocks(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines into blocks, so that a long list is not copied in memory for each reader."""
    block = bytearray()
    for line in lines:
        block += line
        if len(block) >= watches.BATCH_BYTES:
            yield bytes(block)
            block.clear()
    if block:
        yield bytes(block)


async def _changes(
    objects: store.ObjectStore, watched: watches.StoreWatch, view: views.View, terms: _Terms
) -> AsyncIterator[bytes]:
    while not watched.ended and (left := terms.deadline - time.monotonic()) > 0:
        events = await watched.batch(min(left, BOOKMARK_SECONDS))
        if events:
            yield b"".join(view.event(event.type, event.body) for event in events)
        elif terms.bookmarks:
            # Nothing is pending, so the watch is up to date with the store.
            yield view.bookmark(objects.revision)


def _error_line(error: errors.ApiError) -> bytes:
    return revisions.encode_object({"type": "ERROR", "object": error.to_status()}) + b"\n"


def _written(
    request: Request, server: ApiServer, target: RequestTarget, outcome: WriteResult, code: int
) -> Response:
    obj = server.registry.view(target.resource, outcome.obj)
    if target.subresource == "scale":
        return views.json_response(
            revisions.encode_object(subresources.read_scale(target.resource, obj)), code
        )
    form = views.negotiate(request.headers.get("accept", ""))
    body = (
        revisions.encode_object(obj)
        if form == views.WHOLE
        else _view(request, target).one(revisions.encode_object(obj))
    )
    return views.json_response(body, code, outcome.warnings)


async def _write(
    request: Request, server: ApiServer, target: RequestTarget, computations: Computations[WriteResult]
) -> WriteResult:
    """Carry out a write. If the body is large, its computations run in a worker thread."""
    present = server.registry.store.get(StoreKey(target.resource.id, target.namespace, target.name))
    size = int(request.headers.get("content-length", LONG_BYTES)) + (len(present.body) if present else 0)
    if size < LONG_BYTES and not target.resource.rules.iterate:
        return off_loop.run_computations(computations)
    return await off_loop.run_off_loop(computations)


async def create(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """Create an object, answer a review, or post to a subresource."""
    body = await requests.read_object(request)
    if target.subresource == "binding":
        return subresources.bind_pod(server.registry, target, body)
    if target.subresource == "eviction":
        return subresources.evict_pod(server.registry, target, body)
    if target.subresource == "token":
        return subresources.issue_token(server.authenticator, target, body)
    if target.subresource:
        raise errors.method_not_allowed()
    if "get" not in target.resource.verbs:
        asking = server.authenticator.identify(request.headers.get("authorization", ""))
        return views.json_response(
            revisions.encode_object(server.reviewer.answer(target.resource, asking, body)), 201
        )
    if target.resource.namespaced and not target.namespace:
        raise errors.method_not_allowed()
    options = requests.write_options(request)
    creation = server.registry.creation(target.resource, target.namespace, body, options)
    outcome = await _write(request, server, target, creation)
    return _written(request, server, target, outcome, 201)


async def update(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """Replace an object, its status or its scale."""
    body = await requests.read_object(request)
    place = (target.resource, target.namespace, target.name)
    if target.subresource == "scale":
        change = subresources.scale_change(target.resource, lambda _: body)
        write = server.registry.change(*place, change, requests.write_options(request))
    else:
        _refuse_other_subresources(target)
        options = requests.write_options(request, target.subresource)
        write = server.registry.replacement(*place, body, options)
    outcome = await _write(request, server, target, write)
    return _written(request, server, target, outcome, 200)


async def patch(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """Patch an object, its status or its scale."""
    change = await requests.read_patch(request, target.resource)
    place = (target.resource, target.namespace, target.name)
    if target.subresource == "scale":
        change = subresources.scale_change(target.resource, change)
        options = requests.write_options(request)
    else:
        _refuse_other_subresources(target)
        options = requests.write_options(request, target.subresource)
    outcome = await _write(request, server, target, server.registry.change(*place, change, options))
    return _written(request, server, target, outcome, 200)


def _refuse_other_subresources(target: RequestTarget) -> None:
    if target.subresource not in ("", "status"):
        raise errors.method_not_allowed()


async def delete(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """Delete one object. Returns the object if it still exists, or else a ``Status``."""
    if target.subresource:
        raise errors.method_not_allowed()
    options = await requests.delete_options(request)
    outcome = server.registry.delete(target.resource, target.namespace, target.name, options)
    if outcome.gone and target.resource.id not in _SHOWN_WHEN_DELETED:
        resource = target.resource
        details = {
            "name": target.name,
            "group": resource.group,
            "kind": resource.plural,
            "uid": outcome.obj["metadata"]["uid"],
        }
        body = subresources.success_status({key: value for key, value in details.items() if value})
        return views.json_response(revisions.encode_object(body))
    return _written(request, server, target, outcome, 200)


async def delete_collection(server: ApiServer, request: Request, target: RequestTarget) -> Response:
    """Delete the objects of a namespace that match the selectors."""
    match = _match(request, target)
    options = await requests.delete_options(request)
    deleted: list[bytes] = []
    for revision in server.registry.store.list_objects(target.resource.id, target.namespace, match=match):
        if server.registry.store.get(revision.key) is None:
            continue  # deleted together with its owner
        outcome = server.registry.delete(target.resource, revision.key.namespace, revision.key.name, options)
        deleted.append(revisions.encode_object(outcome.obj))
        await asyncio.sleep(0)  # lets other requests run between two deletions
    view = views.View(target.resource)
    return views.json_response(
        await view.many(deleted, {"resourceVersion": str(server.registry.store.revision)})
    )


BY_NAME = {
    "get": get,
    "list": list_objects,
    "watch": watch,
    "create": create,
    "update": update,
    "patch": patch,
    "delete": delete,
    "deletecollection": delete_collection,
}
"""The handler for each Kubernetes verb."""
