"""TLS certificates of the API server: clients such as kubectl send bearer tokens only over TLS.

A certificate authority signs one server certificate; its key is then thrown away.
"""

import datetime as dt
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_LIFE = dt.timedelta(days=3650)
_RENEW_BEFORE = dt.timedelta(days=30)


@dataclass(frozen=True)
class Certificates:
    """Paths of the PEM files: the authority's certificate (public), the server's certificate and its key
    (0600)."""

    authority: Path
    certificate: Path
    key: Path


def ensure(directory: Path) -> Certificates:
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
    # The server's certificate goes first and comes last, whole: while it stands, the three fit together.
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
