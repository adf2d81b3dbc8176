"""What clients need on disk: token, certificates, kubeconfig."""

import ssl
from pathlib import Path

import yaml

from edl_workflows.local.apiserver import serving


def test_prepared_twice(tmp_path: Path) -> None:
    """A second start keeps the token and the certificates, and updates the port."""
    first, second = serving.prepare_access(tmp_path, 1000), serving.prepare_access(tmp_path, 2000)
    config = yaml.safe_load(second.kubeconfig.read_text())

    assert first.token == second.token
    assert config["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:2000"
    assert config["users"][0]["user"]["token"] == second.token
    assert second.kubeconfig.stat().st_mode & 0o077 == 0


def test_interrupted_renewal(tmp_path: Path) -> None:
    """If the server's certificate, which is written last, is missing, all three files are created again."""
    files = serving.ensure_certificates(tmp_path)
    authority = files.authority.read_bytes()
    files.certificate.unlink()
    made = serving.ensure_certificates(tmp_path)
    context = ssl.create_default_context(cafile=made.authority)
    context.load_cert_chain(made.certificate, made.key)

    assert made.authority.read_bytes() != authority
