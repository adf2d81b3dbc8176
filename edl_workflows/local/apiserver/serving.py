"""The API server's TLS certificates, token and kubeconfig on disk, and its HTTP server.

A certificate authority signs one server certificate; the authority's key is then discarded.
"""

import base64
import datetime as dt
import ipaddress
import secrets
import socket
from dataclasses import dataclass
from pathlib import Path

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from starlette.applications import Starlette

from edl_workflows.local.apiserver.storage.store import ObjectStore
from edl_workflows.runtime.process.http import HttpServer, ListenOptions

_LIFE = dt.timedelta(days=3650)
_RENEW_BEFORE = dt.timedelta(days=30)


@dataclass(frozen=True)
class Certificates:
    """Paths of the PEM files: the authority's certificate (readable by everyone), and the server's
    certificate and key (mode 0600)."""

    authority: Path
    certificate: Path
    key: Path


def ensure_certificates(directory: Path) -> Certificates:
    """Certificates for 127.0.0.1, ::1 and localhost in `directory`; created if absent or about to expire."""
    files = Certificates(directory / "ca.crt", directory / "server.crt", directory / "server.key")
    if all(path.exists() for path in (files.authority, files.certificate, files.key)):
        end = x509.load_pem_x509_certificate(files.certificate.read_bytes()).not_valid_after_utc
        if end - _RENEW_BEFORE > dt.datetime.now(dt.UTC):
            return files
    directory.mkdir(parents=True, exist_ok=True)
    authority_key, server_key = (
        ec.generate_private_key(ec.SECP256R1()),
        ec.generate_private_key(ec.SECP256R1()),
    )
    authority = _authority(authority_key)
    pem = serialization.Encoding.PEM
    # The server's certificate is removed first and written last, atomically: while it exists, the three files
    # match.
    files.certificate.unlink(missing_ok=True)
    files.key.touch(0o600)
    files.key.write_bytes(
        server_key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    files.authority.write_bytes(authority.public_bytes(pem))
    draft = files.certificate.with_suffix(".new")
    draft.write_bytes(_server(server_key, authority, authority_key).public_bytes(pem))
    draft.replace(files.certificate)
    return files


def _builder(
    name: str, public_key: ec.EllipticCurvePublicKey, issuer: x509.Name | None
) -> x509.CertificateBuilder:
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer or subject)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(
            now - dt.timedelta(minutes=5)
        )  # clocks differ a little between machines and containers
        .not_valid_after(now + _LIFE)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(public_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _authority(key: ec.EllipticCurvePrivateKey) -> x509.Certificate:
    return (
        _builder("edl-local-ca", key.public_key(), None)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .sign(key, hashes.SHA256())
    )


def _server(
    key: ec.EllipticCurvePrivateKey, authority: x509.Certificate, authority_key: ec.EllipticCurvePrivateKey
) -> x509.Certificate:
    addresses = [x509.IPAddress(ipaddress.ip_address(text)) for text in ("127.0.0.1", "::1")]
    return (
        _builder("edl-local", key.public_key(), authority.subject)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost"), *addresses]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key()), critical=False
        )
        .sign(authority_key, hashes.SHA256())
    )


HOST = "127.0.0.1"
SHUTDOWN_SECONDS = 1
"""How long open requests, such as ``kubectl logs -f``, may continue after the server was told to stop."""


@dataclass(frozen=True)
class ServerAccess:
    """How to reach one API server.

    Attributes:
        url: ``https://127.0.0.1:PORT``.
        token: the administrator's bearer token.
        files: certificates and key.
        kubeconfig: path of the kubeconfig with all of these (mode 0600).
    """

    url: str
    token: str
    files: Certificates
    kubeconfig: Path


def prepare_access(directory: Path, port: int) -> ServerAccess:
    """Write kubeconfig, token and certificates into `directory`. Existing tokens and certificates are kept.

    Args:
        directory: created if absent.
        port: where the server will listen.
    """
    directory.mkdir(parents=True, exist_ok=True)
    token_file = directory / "admin-token"
    if not token_file.exists():
        _write_private(token_file, secrets.token_urlsafe(32))
    files = ensure_certificates(directory / "pki")
    access = ServerAccess(f"https://{HOST}:{port}", token_file.read_text(), files, directory / "kubeconfig")
    _write_private(
        access.kubeconfig, render_kubeconfig(access.url, access.token, files.authority.read_bytes())
    )
    return access


def _write_private(path: Path, text: str) -> None:
    # Replaced atomically: clients may read the file while the server restarts.
    draft = path.with_name(f".{path.name}.new")
    draft.unlink(missing_ok=True)
    draft.touch(0o600)
    draft.write_text(text)
    draft.replace(path)


def render_kubeconfig(url: str, token: str, authority: bytes, namespace: str = "default") -> str:
    """A kubeconfig with one cluster, user and context, all named ``edl-local``.

    Args:
        url: URL of the API server.
        token: bearer token of the user.
        authority: certificate of the authority as PEM.
        namespace: default namespace of the context.
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
    """Serves the API over TLS on the loopback interface. When it stops, it first ends the open watches,
    because it would otherwise wait for them.

    Args:
        app: the application from `edl_workflows.local.apiserver.app.build_app`.
        access: certificate and key.
        port: where to listen.
        store: the store whose watches are ended.
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
