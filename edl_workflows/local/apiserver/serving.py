"""The API server's token and kubeconfig on disk, and its HTTP server."""

import base64
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import yaml
from starlette.applications import Starlette

from edl_workflows.local.apiserver import certificates
from edl_workflows.local.apiserver.store import ObjectStore
from edl_workflows.process.http import HttpServer, ListenOptions

HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 1
"""How long open requests, such as followed logs, may continue after a stop was requested."""


@dataclass(frozen=True)
class ServerAccess:
    """How to reach one API server.

    Attributes:
        url: ``https://127.0.0.1:PORT``.
        token: of the administrator.
        files: certificates and key.
        kubeconfig: the file with all of these (0600).
    """

    url: str
    token: str
    files: certificates.Certificates
    kubeconfig: Path


def prepare(directory: Path, port: int) -> ServerAccess:
    """Write what clients need into `directory`; existing tokens and certificates are kept.

    Args:
        directory: created if absent.
        port: where the server will listen.
    """
    directory.mkdir(parents=True, exist_ok=True)
    token_file = directory / "admin-token"
    if not token_file.exists():
        _write_private(token_file, secrets.token_urlsafe(32))
    files = certificates.ensure(directory / "pki")
    access = ServerAccess(f"https://{HOST}:{port}", token_file.read_text(), files, directory / "kubeconfig")
    _write_private(access.kubeconfig, kubeconfig(access.url, access.token, files.authority.read_bytes()))
    return access


def _write_private(path: Path, text: str) -> None:
    # Whole or not at all: others read the file while the server starts again.
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(0o600)
    draft.write_text(text)
    draft.replace(path)


def kubeconfig(url: str, token: str, authority: bytes, namespace: str = "default") -> str:
    """A kubeconfig with one cluster, user and context, all named ``edl-local``.

    Args:
        url: of the API server.
        token: the bearer token.
        authority: PEM of the certificate authority.
        namespace: of the context.
    """
    name = "edl-local"
    cluster = {"server": url, "certificate-authority-data": base64.b64encode(authority).decode()}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": name, "cluster": cluster}],
        "users": [{"name": name, "user": {"token": token}}],
        "contexts": [{"name": name, "context": {"cluster": name, "user": name, "namespace": namespace}}],
        "current-context": name,
    }
    return yaml.safe_dump(config)


class ApiHttpServer(HttpServer):
    """Serves the API over TLS on the loopback interface. When it stops, it ends the open watches, which would
    not end by themselves.

    Args:
        app: of `edl_workflows.local.apiserver.app.build_app`.
        access: certificate and key.
        port: where to listen.
        store: with the watches.
    """

    def __init__(self, app: Starlette, access: ServerAccess, port: int, store: ObjectStore) -> None:
        files = access.files
        super().__init__(
            app,
            ListenOptions(
                HOST, port, files.certificate, files.key, keep_alive=75, stop_seconds=SHUTDOWN_SECONDS
            ),
        )
        self._store = store

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._store.end_watches()
        await super().shutdown(sockets)
