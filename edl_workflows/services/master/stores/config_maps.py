"""The default store: the job's state ConfigMap.

A document that fits is in its key ``state``, with the head in ``head``, and one request replaces both. A
larger one is in several ConfigMaps, its parts: they are written first, then the head that names them. There
are two slots for parts, which are written in turn, so the head never names a part that is being written, and
the snapshot before stays whole. Versions that can't read parts refuse what is in ``state`` then.
"""

import contextlib
import secrets
from collections.abc import Iterable, Iterator
from typing import Any

import structlog

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    ConflictError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.master.stores.port import SnapshotHead, checksum_of, parse_head

CLAIMS = 20
"""Attempts to take the ConfigMap over from a master that writes it, about once a second."""
PART_BYTES = 900_000
"""The most bytes of a document in one ConfigMap; the API server rejects more than 1 MiB."""
IN_PARTS = "in the ConfigMaps that data.head names"
"""What ``state`` contains if the document is in parts."""
_RESET = "or empty data.state to begin the job anew"

log = structlog.get_logger(__name__)


class ConfigMapHead(SnapshotHead):
    """The head in the state ConfigMap.

    Attributes:
        before: the snapshot before, if that is in parts, too.
    """

    before: SnapshotHead | None = None


class ConfigMapStore:
    """The job's state ConfigMap, created by the controller, and its parts. Its resourceVersion fences off a
    second master.

    The master that has loaded it last owns it: an earlier one, which may still run on a machine that has lost
    its contact, can't write any more.

    Args:
        cluster: with the job's namespace.
        job: the job's name.
    """

    interval = 1.0
    capacity = names.STATE_PARTS * PART_BYTES

    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster = cluster
        self._job = job
        self._name = names.state_config_map_name(job)
        self._owner = secrets.token_hex(8)
        self._claim = {names.STATE_OWNER_ANNOTATION: self._owner}
        self._metadata: dict[str, Any] = {}
        self._stored: tuple[str, str] = ("", "")
        self._newest: SnapshotHead | None = None
        """The newest snapshot in parts; None if the document is in one piece."""
        self._part_versions: dict[str, str] = {}
        """The resourceVersion of each part that exists; "" if it was not read."""

    @property
    def place(self) -> str:
        return f"ConfigMap {self._cluster.namespace}/{self._name}, data.{names.STATE_KEY}"

    def load(self) -> bytes | None:
        """Take the ConfigMap over. Raise NotFoundError if there is none, ConflictError if another master
        keeps writing it."""
        for attempts_left in reversed(range(CLAIMS)):
            self._remember(client.get(self._cluster, resources.CONFIG_MAPS, self._name))
            last_owner = self._owner_annotation
            try:
                self._patch({"annotations": self._claim})
                break
            except ConflictError:  # the earlier master has just written
                if not attempts_left:
                    raise
        text, head = self._stored
        return self._read(text, head, last_owner) if text else None

    def save(self, document: bytes) -> None:
        parts = list(_split(document))
        if len(parts) > names.STATE_PARTS:
            raise InvalidError(
                f"ConfigMap {self._name}: the state has {len(document)} bytes; at most {self.capacity} fit"
            )
        head = ConfigMapHead(checksum=checksum_of(document), writer=self._owner)
        if len(parts) <= 1:
            self._replace(document.decode(), head)
            self._newest = None
            self._delete_parts(keep=())
            return
        before = self._newest
        head = head.model_copy(update={"parts": self._write_parts(parts), "before": before})
        self._replace(IN_PARTS, head)
        self._newest = _plain(head)
        self._delete_parts(keep=(*head.parts, *(before.parts if before is not None else ())))

    def _read(self, text: str, head_text: str, last_owner: str | None) -> bytes:
        """The newest whole document. One that an earlier version wrote, or a person who removed the head, has
        no checksum, or that of the document before."""
        head = parse_head(ConfigMapHead, head_text, self.place)
        if head is None or (not head.parts and head.writer != last_owner):
            return text.encode()
        if not head.parts:
            if head.matches(text.encode()):
                return text.encode()
            raise InvalidError(
                f"{self.place}: the state is not the one that the master wrote, by its checksum: put that "
                f"back, remove data.head to use the state as it is, {_RESET}"
            )
        return self._read_parts(head)

    def _read_parts(self, head: ConfigMapHead) -> bytes:
        snapshots = [head] if head.before is None else [head, head.before]
        self._part_versions = {name: "" for snapshot in snapshots for name in snapshot.parts}
        for snapshot in snapshots:
            document = self._join(snapshot.parts)
            if snapshot.matches(document):
                if snapshot is not head:
                    log.warning("the newest state is damaged; the one before is used", place=self.place)
                self._newest = _plain(snapshot)
                return document
        raise InvalidError(
            f"{self.place}: the state in {', '.join(head.parts)} is damaged, by its checksum, and so is the "
            f"one before: put back what the master wrote there, {_RESET}"
        )

    def _join(self, parts: Iterable[str]) -> bytes:
        texts = []
        for name in parts:
            part = client.find(self._cluster, resources.CONFIG_MAPS, name) or {}
            texts.append((part.get("data") or {}).get(names.STATE_KEY, ""))
        return "".join(texts).encode()

    def _write_parts(self, texts: list[str]) -> tuple[str, ...]:
        """Write the slot that the newest snapshot is not in. Return the names of the parts."""
        slots = [names.state_part_names(self._job, letter) for letter in "ab"]
        used = self._newest is not None and self._newest.parts[0] in slots[0]
        written = tuple(slots[used][: len(texts)])
        for name, text in zip(written, texts, strict=True):
            self._write_part(name, text)
        return written

    def _write_part(self, name: str, text: str) -> None:
        """Write one part. An earlier master can't overwrite it any more: it looks who owns the state after it
        has read the version of the part that it replaces."""
        for _ in range(CLAIMS):
            with contextlib.suppress(AlreadyExistsError, ConflictError, NotFoundError):
                version = self._part_versions.pop(name, "") or self._find_version(name)
                manifest = self._part_manifest(name, text)
                if version:
                    # With the claim, the first write of a master changes the version even of an equal part. A
                    # part of a former job of this name gets this job as its owner.
                    manifest["metadata"]["resourceVersion"] = version
                    part = client.patch(self._cluster, resources.CONFIG_MAPS, name, manifest)
                else:
                    part = client.create(self._cluster, manifest)
                self._part_versions[name] = part["metadata"]["resourceVersion"]
                return
            self._check_owner()
        raise UnavailableError(f"ConfigMap {name} is changed by somebody else all the time")

    def _find_version(self, name: str) -> str:
        """The part's version, as long as this master owns the state; "" if the part does not exist."""
        part = client.find(self._cluster, resources.CONFIG_MAPS, name)
        self._check_owner()
        return str(part["metadata"]["resourceVersion"]) if part is not None else ""

    def _part_manifest(self, name: str, text: str) -> dict[str, Any]:
        # Only the controller may make objects that the job controls; any owner is enough for their deletion.
        keys = ("apiVersion", "kind", "name", "uid")
        owners = [{key: owner[key] for key in keys} for owner in self._metadata.get("ownerReferences") or ()]
        metadata = {
            "name": name,
            "labels": {names.APP_LABEL: names.APP_VALUE},
            "annotations": self._claim,
            "ownerReferences": owners,
        }
        return {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": metadata,
            "data": {names.STATE_KEY: text},
        }

    def _delete_parts(self, keep: Iterable[str]) -> None:
        """Delete the other parts. What can't be deleted now is deleted after the next write."""
        for name in self._part_versions.keys() - set(keep):
            with contextlib.suppress(UnavailableError, ForbiddenError):
                if version := self._part_versions[name] or self._find_version(name):
                    options = DeletionOptions(resource_version=version)
                    with contextlib.suppress(ConflictError):  # a later master has written it
                        client.delete(self._cluster, resources.CONFIG_MAPS, name, options=options)
                del self._part_versions[name]

    def _replace(self, text: str, head: ConfigMapHead) -> None:
        """Write document and head in one request."""
        fresh = (text, head.model_dump_json(exclude_none=True))
        try:
            self._patch_data(*fresh)
        except ConflictError:
            before = self._stored
            self._check_owner()
            if self._stored not in (before, fresh):
                raise self._taken() from None
            if self._stored != fresh:  # an edit of its metadata, or our own write, whose answer was lost
                self._patch_data(*fresh)

    def _patch_data(self, text: str, head: str) -> None:
        self._patch({}, {names.STATE_KEY: text, names.STATE_HEAD_KEY: head})

    def _patch(self, metadata: dict[str, Any], data: dict[str, str] | None = None) -> None:
        body = {"metadata": metadata | {"resourceVersion": self._metadata["resourceVersion"]}}
        body |= {"data": data} if data else {}
        self._remember(client.patch(self._cluster, resources.CONFIG_MAPS, self._name, body))

    def _check_owner(self) -> None:
        """Raise ConflictError if another master has taken the state over, NotFoundError if it is gone."""
        self._remember(client.get(self._cluster, resources.CONFIG_MAPS, self._name))
        if self._owner_annotation not in (None, self._owner):
            raise self._taken()

    def _taken(self) -> ConflictError:
        return ConflictError(f"ConfigMap {self._name}: another master of this job wrote it; this one ends")

    @property
    def _owner_annotation(self) -> str | None:
        annotations = self._metadata.get("annotations") or {}
        return annotations.get(names.STATE_OWNER_ANNOTATION)

    def _remember(self, config_map: dict[str, Any]) -> None:
        self._metadata = config_map["metadata"]
        data = config_map.get("data") or {}
        self._stored = (data.get(names.STATE_KEY, ""), data.get(names.STATE_HEAD_KEY, ""))


def _split(document: bytes) -> Iterator[str]:
    """The document as texts of at most `PART_BYTES` bytes; a character is never split."""
    start = 0
    while start < len(document):
        text = document[start : start + PART_BYTES].decode(errors="ignore")
        yield text
        start += len(text.encode())


def _plain(head: SnapshotHead) -> SnapshotHead:
    """The head without the one before it."""
    return SnapshotHead.model_validate(head.model_dump(exclude={"before"}))
