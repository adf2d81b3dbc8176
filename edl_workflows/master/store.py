"""Where the master's state survives the master: a ConfigMap in a cluster, a file where there is none.

Both replace the whole document at once. Neighbour: `edl_workflows.master.master` decides when to write.
"""

import os
from pathlib import Path
from typing import Any, Protocol

from edl_workflows.exceptions import ConflictError, InvalidError, NotFoundError
from edl_workflows.jobs import names
from edl_workflows.kube import client, resources
from edl_workflows.kube.connect import Cluster

MAX_CONFIG_MAP = 1_000_000
"""Bytes; the API server refuses more than 1 MiB."""


class StateStore(Protocol):
    """Keeps one document. Blocking: the loop calls it in a thread, one call at a time."""

    interval: float
    """Seconds between two writes when there is no hurry."""
    capacity: int
    """Bytes that a document may have."""

    @property
    def place(self) -> str:
        """What a person looks for to see the document."""

    def load(self) -> bytes | None:
        """What was stored last, or None for a new job."""

    def save(self, document: bytes) -> None:
        """Replaces it. When this returns, it survives the process and, where the adapter says so, the machine.

        Raises:
            ConflictError: somebody else wrote it: another master runs, and this one must end.
            UnavailableError: not now; call again.
        """


class FileStore:
    """A file, replaced by an atomic rename and flushed to the disk.

    Args:
        path: the file; its folder must exist.
    """

    interval = 0.05
    capacity = 2**30

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        """The file's path."""
        return str(self._path)

    def load(self) -> bytes | None:
        """See `StateStore`."""
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, document: bytes) -> None:
        """See `StateStore`."""
        fresh = self._path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(document)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


class ConfigMapStore:
    """The job's state ConfigMap, which the controller made. Its resourceVersion fences off a second master.

    Args:
        cluster: with the job's namespace.
        job: the job's name.
    """

    interval = 1.0
    capacity = MAX_CONFIG_MAP

    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster = cluster
        self._name = names.state_config_map_name(job)
        self._version = ""
        self._stored: str | None = None

    @property
    def place(self) -> str:
        """The ConfigMap and its key."""
        return f"ConfigMap {self._cluster.namespace}/{self._name}, data.{names.STATE_KEY}"

    def load(self) -> bytes | None:
        """See `StateStore`.

        Raises:
            NotFoundError: there is no such ConfigMap.
        """
        found = client.get(self._cluster, resources.CONFIG_MAPS, self._name)
        self._remember(found)
        return self._stored.encode() if self._stored else None

    def save(self, document: bytes) -> None:
        """See `StateStore`."""
        text = document.decode()
        if len(document) > MAX_CONFIG_MAP:
            raise InvalidError(
                f"ConfigMap {self._name}: the state has {len(document)} bytes, more than fit ({MAX_CONFIG_MAP})"
            )
        try:
            self._patch(text)
        except ConflictError:
            self._check_still_ours(text)
            if self._stored != text:
                self._patch(text)

    def _patch(self, text: str) -> None:
        body = {"metadata": {"resourceVersion": self._version}, "data": {names.STATE_KEY: text}}
        self._remember(client.patch(self._cluster, resources.CONFIG_MAPS, self._name, body))

    def _check_still_ours(self, text: str) -> None:
        """The version moved: by an answer of ours that was lost, by somebody's labels, or by another master."""
        before = self._stored
        try:
            self._remember(client.get(self._cluster, resources.CONFIG_MAPS, self._name))
        except NotFoundError as error:
            raise ConflictError(f"ConfigMap {self._name} is gone: the job was deleted") from error
        if self._stored not in (before, text):
            raise ConflictError(f"ConfigMap {self._name}: another master of this job wrote it; this one ends")

    def _remember(self, found: dict[str, Any]) -> None:
        self._version = found["metadata"]["resourceVersion"]
        self._stored = (found.get("data") or {}).get(names.STATE_KEY)
