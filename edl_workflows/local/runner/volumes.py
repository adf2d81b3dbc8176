"""Volumes: their contents on disk, and their mounts.

ConfigMaps and Secrets are written as kubelet writes them: files are links through ``..data``, which is
replaced atomically. So a reader sees one version of all files, and an update reaches a running container.
"""

import contextlib
import os
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edl_workflows.core.kubernetes.objects import parse_quantity
from edl_workflows.local.pods import Container, FieldRef, ResourceFieldRef, VolumeMount
from edl_workflows.local.runner.attempts import Mount
from edl_workflows.local.runner.environment import (
    ContainerConfigError,
    ValueSources,
    expand_variables,
    field_value,
    resource_value,
)
from edl_workflows.local.runner.support import in_place

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - where emptyDir volumes of medium Memory belong
_BLOCK_BYTES = 512
"""Unit of ``st_blocks`` on every file system."""
Files = dict[str, bytes]
Binary = Callable[[str], Mapping[str, bytes] | None]


@dataclass(frozen=True)
class Lookups:
    """Functions that return the data of a ConfigMap (including binary data) and of a Secret by name; None if
    it does not exist."""

    config_map: Binary
    secret: Binary


class PodVolumes:
    """The volumes of one pod.

    Args:
        folder: folder for the pod's volumes.
        uid: uid of the pod.
        declared: ``spec.volumes``.
        lookups: contents of ConfigMaps and Secrets.
    """

    def __init__(self, folder: Path, uid: str, declared: list[dict[str, Any]], lookups: Lookups) -> None:
        self._folder = folder
        self._uid = uid
        self._declared = {volume["name"]: volume for volume in declared}
        self._lookups = lookups

    def prepare(self, sources: ValueSources) -> None:
        """Create or update all volumes.

        Raises:
            ContainerConfigError: an object that a volume refers to is missing, or a path is not of the
                required type.
        """
        for name, volume in self._declared.items():
            if "emptyDir" in volume:
                if self._in_memory(name):
                    self._make_memory()
                self._source(name).mkdir(parents=True, exist_ok=True)
                self._source(name).chmod(0o777)
            elif "hostPath" in volume:
                _check_host_path(name, volume["hostPath"])
            else:
                _publish(self._source(name), self._content(name, volume, sources))

    def mounts(self, container: Container, values: Mapping[str, str]) -> Iterator[Mount]:
        """The mounts of a container.

        Args:
            container: the container.
            values: variables of the container, for ``subPathExpr``.

        Raises:
            ContainerConfigError: a sub-path points outside of its volume.
        """
        for mount in container.volume_mounts:
            volume = self._declared[mount.name]
            if not in_place(mount.model_dump(by_alias=True), volume):
                source = self._inside(self._source(mount.name), mount, values)
                read_only = mount.read_only or not {"emptyDir", "hostPath"} & volume.keys()
                yield Mount(str(source), mount.mount_path, read_only)

    def excess(self) -> str:
        """Kubelet's message about an emptyDir volume that exceeds its sizeLimit; empty if there is none.

        Reads all files of those volumes; call it in a thread.
        """
        for name, volume in self._declared.items():
            limit = (volume.get("emptyDir") or {}).get("sizeLimit")
            if limit is not None and _size(self._source(name)) > parse_quantity(str(limit)):
                return f'Usage of EmptyDir volume "{name}" exceeds the limit "{limit}".'
        return ""

    def shared_memory(self, container: Container) -> Path:
        """The path of a container's shared memory: its volume at ``/dev/shm``, or a folder in the machine's
        ``/dev/shm`` that is removed with the pod. In Kubernetes every pod has its own ``/dev/shm``; here pods
        share that of the machine."""
        if any(Path(mount.mount_path) == _SHARED_MEMORY for mount in container.volume_mounts):
            return _SHARED_MEMORY
        folder = _memory_of(self._uid) / "_pod"  # not a valid name of a volume
        if _SHARED_MEMORY.is_dir():
            self._make_memory()
            folder.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _in_memory(self, name: str) -> bool:
        return (self._declared[name].get("emptyDir") or {}).get("medium") == "Memory"

    def _make_memory(self) -> None:
        """Create the pod's folder in shared memory. Other users cannot access it, whatever the modes of the
        volumes in it are."""
        folder = _memory_of(self._uid)
        with contextlib.suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        if not _is_ours(folder):
            raise ContainerConfigError(f"{folder} is not a private folder of this user; remove it")
        with contextlib.suppress(FileExistsError):
            _owner(folder).symlink_to(self._folder.parent.absolute())

    def _source(self, name: str) -> Path:
        volume = self._declared[name]
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if self._in_memory(name):
            return _memory_of(self._uid) / name
        return self._folder / name

    def _inside(self, source: Path, mount: VolumeMount, values: Mapping[str, str]) -> Path:
        inner = expand_variables(mount.sub_path_expr, values) if mount.sub_path_expr else mount.sub_path
        if not inner:
            return source
        if "\0" in inner:  # of a variable from a ConfigMap
            raise ContainerConfigError(f"subPath {inner!r} of volume {mount.name!r} has a NUL character")
        target = source / inner
        if not target.resolve().is_relative_to(source.resolve()):
            raise ContainerConfigError(f"subPath {inner!r} points outside of volume {mount.name!r}")
        if not target.exists():
            target.mkdir(parents=True)
        return target

    def _content(self, name: str, volume: Mapping[str, Any], sources: ValueSources) -> Files:
        projected = (volume.get("projected") or {}).get("sources")
        content: Files = {}
        for source in [volume] if projected is None else projected:
            content |= self._projection(name, source, sources)
        return content

    def _projection(self, volume: str, source: Mapping[str, Any], sources: ValueSources) -> Files:
        if config := source.get("configMap"):
            return _chosen(volume, "configmap", config.get("name", ""), config, self._lookups.config_map)
        if secret := source.get("secret"):
            name = secret.get("secretName") or secret.get("name", "")
            return _chosen(volume, "secret", name, secret, self._lookups.secret)
        return dict(_downward(item, sources) for item in (source.get("downwardAPI") or {}).get("items") or [])


def remove_memory(uid: str) -> None:
    """Remove a pod's shared memory and its emptyDir volumes of medium Memory, which are outside of its
    folder."""
    shutil.rmtree(_memory_of(uid), ignore_errors=True)


def remove_orphaned_memory() -> None:
    """Remove the shared memory of this user's pods whose folder no longer exists because their cluster's
    state was deleted.

    Data of a cluster in another mount namespace is kept: it may share the machine's ``/dev/shm`` but not its
    file systems.
    """
    for folder in _SHARED_MEMORY.glob("edl-*"):
        owner = _owner(folder)
        with contextlib.suppress(OSError):  # it belongs to another user, or its own cluster is removing it
            if _is_ours(folder) and owner.is_symlink() and not owner.exists():
                shutil.rmtree(folder, ignore_errors=True)


def _memory_of(uid: str) -> Path:
    return _SHARED_MEMORY / f"edl-{uid}"


def _owner(folder: Path) -> Path:
    """A link in the pod's folder in shared memory that points to its folder on disk. Its name contains the
    mount namespace in which that path is valid."""
    return folder / f".pod-{Path('/proc/self/ns/mnt').stat().st_ino}"


def _is_ours(folder: Path) -> bool:
    status = folder.lstat()
    return stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o077


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):  # it has just been removed
            total += path.lstat().st_blocks * _BLOCK_BYTES
    return total


def _chosen(volume: str, kind: str, name: str, source: Mapping[str, Any], lookup: Binary) -> Files:
    data = lookup(name)
    if data is None:
        if source.get("optional"):
            return {}
        raise ContainerConfigError(
            f'MountVolume.SetUp failed for volume "{volume}" : {kind} "{name}" not found'
        )
    if not source.get("items"):
        return dict(data)
    content: Files = {}
    for item in source["items"]:
        if item["key"] in data:
            content[item["path"]] = data[item["key"]]
        elif not source.get("optional"):
            raise ContainerConfigError(
                f"references non-existent {kind} key: {item['key']} (volume {volume!r})"
            )
    return content


def _downward(item: Mapping[str, Any], sources: ValueSources) -> tuple[str, bytes]:
    if reference := item.get("fieldRef"):
        text = field_value(FieldRef.model_validate(reference).field_path, sources)
    else:
        parsed = ResourceFieldRef.model_validate(item["resourceFieldRef"])
        text = resource_value(parsed, sources.pod.spec.containers[0], sources)
    return item["path"], text.encode()


def _check_host_path(name: str, source: Mapping[str, Any]) -> None:
    path, kind = Path(source["path"]), source.get("type") or ""
    if kind == "DirectoryOrCreate":
        path.mkdir(parents=True, exist_ok=True)
    elif kind == "FileOrCreate":
        path.touch()
    checks = {
        "DirectoryOrCreate": path.is_dir,
        "Directory": path.is_dir,
        "FileOrCreate": path.is_file,
        "File": path.is_file,
    }
    if not checks.get(kind, path.exists)():
        raise ContainerConfigError(
            f'MountVolume.SetUp failed for volume "{name}" : hostPath type check failed: {path} is not a '
            f"{kind or 'path'}"
        )


def _publish(folder: Path, content: Files) -> None:
    """Replace the contents of the folder with these files, atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    present = folder / "..data"
    if present.exists() and _read(present) == content:
        return
    version = folder / f"..{uuid.uuid4().hex}"
    version.mkdir()
    for name, data in content.items():
        target = version / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    old = present.readlink().name if present.is_symlink() else ""
    fresh = folder / "..data.new"
    fresh.symlink_to(version.name)
    fresh.replace(present)
    tops = {Path(name).parts[0] for name in content}
    for top in tops:
        if not (folder / top).is_symlink():
            (folder / top).symlink_to(Path("..data") / top)
    for entry in folder.iterdir():
        if entry.is_symlink() and not entry.name.startswith("..") and entry.name not in tops:
            entry.unlink()
    if old:
        shutil.rmtree(folder / old)


def _read(folder: Path) -> Files:
    root = folder.resolve()
    return {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
