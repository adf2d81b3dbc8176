"""Where the master's state is kept: a ConfigMap in a cluster, a file otherwise.

Both replace the whole document at once; `edl_workflows.services.master.master` decides when to write.
"""

import os
import secrets
from pathlib import Path
from typing import Any, Protocol

from edl_workflows.core.exceptions import ConflictError, InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster

CLAIMS = 20
"""Attempts to take the ConfigMap over from a master that writes it, about once a second."""
MAX_CONFIG_MAP = 1_000_000
"""Bytes; the API server rejects more than 1 MiB."""


class StateStore(Protocol):
    """Keeps one document. Calls block; the loop makes one at a time, in a thread."""

    interval: float
    """Least seconds between two writes that are not urgent."""
    capacity: int
    """Greatest size of a document in bytes."""

    @property
    def place(self) -> str:
        """Where a person finds the document."""

    def load(self) -> bytes | None:
        """The document; None for a new job."""

    def save(self, document: bytes) -> None:
        """Replace the document. Once this returns, the document survives a crash of the master.

        Raises:
            ConflictError: another master wrote it; this one must end.
            UnavailableError: not possible now; call again.
        """


class FileStore:
    """A file, replaced by an atomic rename and flushed to disk.

    Args:
        path: the file; its folder must exist.
    """

    interval = 0.05
    capacity = 2**30

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def place(self) -> str:
        return str(self._path)

    def load(self) -> bytes | None:
        try:
            return self._path.read_bytes()
        except FileNotFoundError:
            return None

    def save(self, document: bytes) -> None:
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
    """The job's state ConfigMap, created by the controller. Its resourceVersion fences off a second master.

    The master that has loaded it last owns it: an earlier one, which may still run on a machine that has lost
    its contact, can't write any more.

    Args:
        cluster: with the job's namespace.
        job: the job's name.
    """

    interval = 1.0
    capacity = MAX_CONFIG_MAP

    def __init__(self, cluster: Cluster, job: str) -> None:
        self._cluster = cluster
        self._name = names.state_config_map_name(job)
        self._owner = secrets.token_hex(8)
        self._version = ""
        self._stored: str | None = None

    @property
    def place(self) -> str:
        return f"ConfigMap {self._cluster.namespace}/{self._name}, data.{names.STATE_KEY}"

    def load(self) -> bytes | None:
        """Take the ConfigMap over. Raise NotFoundError if there is none, ConflictError if another master
        keeps writing it."""
        for attempts_left in reversed(range(CLAIMS)):
            self._remember(client.get(self._cluster, resources.CONFIG_MAPS, self._name))
            claim = {names.STATE_OWNER_ANNOTATION: self._owner}
            body = {"metadata": {"resourceVersion": self._version, "annotations": claim}}
            try:
                self._remember(client.patch(self._cluster, resources.CONFIG_MAPS, self._name, body))
                break
            except ConflictError:  # the earlier master has just written
                if not attempts_left:
                    raise
        return self._stored.encode() if self._stored else None

    def save(self, document: bytes) -> None:
        text = document.decode()
        if len(document) > MAX_CONFIG_MAP:
            raise InvalidError(
                f"ConfigMap {self._name}: the state has {len(document)} bytes; at most {MAX_CONFIG_MAP} fit"
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
        """Find out why the ConfigMap changed: our own write, whose answer was lost; an edit of its metadata;
        or another master's write, which raises ConflictError. If it is gone, raise NotFoundError.
        """
        before = self._stored
        config_map = client.get(self._cluster, resources.CONFIG_MAPS, self._name)
        self._remember(config_map)
        owner = (config_map["metadata"].get("annotations") or {}).get(names.STATE_OWNER_ANNOTATION)
        if self._stored not in (before, text) or owner not in (None, self._owner):
            raise ConflictError(f"ConfigMap {self._name}: another master of this job wrote it; this one ends")

    def _remember(self, config_map: dict[str, Any]) -> None:
        self._version = config_map["metadata"]["resourceVersion"]
        self._stored = (config_map.get("data") or {}).get(names.STATE_KEY)
