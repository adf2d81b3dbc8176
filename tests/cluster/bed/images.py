"""The two images that pods use, as an archive that containerd imports. No registry is asked.

``pause`` has one program. ``host`` is an empty tree: the runtime binds the machine's programs and this
checkout into every container, so a pod runs what the machine has.
"""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

PAUSE = "docker.io/local/pause:1"
HOST = "docker.io/local/host:1"
PROGRAMS = "/opt/cluster"
"""Where containers find the bed's own programs; argoexec may not lie in /tmp, over which Argo mounts a
volume."""

_PATH = f"PATH={PROGRAMS}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_FOLDERS = [
    "usr",
    "lib",
    "lib64",
    "bin",
    "sbin",
    "root",
    "etc",
    "etc/ssl",
    "etc/alternatives",
    "opt",
    "var",
    "var/run",
    "run",
    "proc",
    "sys",
    "dev",
]
_FILES = {
    "etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n",
    "etc/group": b"root:x:0:\n",
    "etc/ld.so.cache": b"",
}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


def write_archive(pause: Path, archive: Path) -> None:
    """Write both images in the format of `docker save`.

    Args:
        pause: the static program of that image.
        archive: the file to write.
    """
    pause_layer, host_layer = _Tar(), _Tar()
    pause_layer.file("pause", pause.read_bytes(), 0o755)
    for folder in _FOLDERS:
        host_layer.folder(folder, 0o755)
    host_layer.folder("tmp", 0o1777)
    for name, content in _FILES.items():
        host_layer.file(name, content)
    out = _Tar()
    manifest = [_image(out, PAUSE, pause_layer, ["/pause"]), _image(out, HOST, host_layer, ["/bin/sh"])]
    out.file("manifest.json", json.dumps(manifest).encode())
    archive.write_bytes(out.content())


class _Tar:
    """A tar archive in memory."""

    def __init__(self) -> None:
        self._buffer = io.BytesIO()
        self._tar = tarfile.open(fileobj=self._buffer, mode="w")  # noqa: SIM115 - content() closes it

    def file(self, name: str, content: bytes, mode: int = 0o644) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(content), mode
        self._tar.addfile(info, io.BytesIO(content))

    def folder(self, name: str, mode: int) -> None:
        info = tarfile.TarInfo(name)
        info.type, info.mode = tarfile.DIRTYPE, mode
        self._tar.addfile(info)

    def content(self) -> bytes:
        self._tar.close()
        return self._buffer.getvalue()


def _image(out: _Tar, tag: str, layer: _Tar, command: list[str]) -> dict[str, object]:
    """Add an image's configuration and its one layer; its entry in the manifest."""
    blob = layer.content()
    digest = hashlib.sha256(blob).hexdigest()
    config = {
        "architecture": _ARCHITECTURES[platform.machine()],
        "os": "linux",
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
        "config": {"Cmd": command, "Env": [_PATH]},
    }
    text = json.dumps(config).encode()
    name = f"{hashlib.sha256(text).hexdigest()}.json"
    out.file(f"{digest}/layer.tar", blob)
    out.file(name, text)
    return {"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]}
