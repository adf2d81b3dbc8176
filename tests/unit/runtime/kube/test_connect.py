"""How a cluster is found, and what is said when it is not."""

import base64
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes.config import kube_config

from edl_workflows.core.exceptions import ForbiddenError, InvalidError, UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS
from edl_workflows.testing import ApiServerProcess


def test_same_kubeconfig_same_key(server: ApiServerProcess) -> None:
    """Two handles of one server and identity have the same key and share watches, even with different
    namespaces."""
    one, other = server.cluster("a"), server.cluster("b")

    assert one.key == other.key
    assert (one.namespace, other.namespace) == ("a", "b")


def test_default_kubeconfig(server: ApiServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without options, the kubeconfig is that of $KUBECONFIG, as for kubectl."""
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig))

    assert server.cluster().server == Cluster.connect().server


def test_threads_connect_at_once(server: ApiServerProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    """The handle of each thread trusts the server's certificate, even while another thread still writes it to
    a file."""

    def write_slowly(file: str, mode: str = "r") -> Any:
        if mode == "wb":
            time.sleep(0.1)
        return Path(file).open(mode)

    settings = yaml.safe_load(server.kubeconfig.read_text())
    trusted = base64.b64decode(settings["clusters"][0]["cluster"]["certificate-authority-data"])
    monkeypatch.setattr(kube_config, "_temp_files", {})
    monkeypatch.setattr(kube_config, "open", write_slowly, raising=False)
    together = threading.Barrier(4)

    def certificate() -> bytes:
        together.wait(timeout=240)
        configuration = server.cluster().api_client.configuration
        return Path(configuration.ssl_ca_cert).read_bytes()

    with ThreadPoolExecutor(4) as pool:
        seen = [pool.submit(certificate) for _ in range(4)]

    assert [one.result() for one in seen] == [trusted] * 4


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param("", "kubeconfig", id="empty"),
        pytest.param("[1, 2]", "kubeconfig", id="not a mapping"),
        pytest.param("a: [", "kubeconfig", id="no YAML"),
        pytest.param("apiVersion: v1\nkind: Config\nclusters: []\n", "kubeconfig", id="no context"),
    ],
)
def test_malformed_kubeconfig(tmp_path: Path, text: str, says: str) -> None:
    """The error names the file."""
    file = tmp_path / "config"
    file.write_text(text)

    with pytest.raises(InvalidError, match=says) as caught:
        Cluster.from_kubeconfig(file)

    assert str(file) in str(caught.value)


def test_kubeconfig_that_can_not_be_read(tmp_path: Path) -> None:
    """The error names the file, and not the connection to an API server that was never tried."""
    with pytest.raises(InvalidError, match="directory") as caught:
        Cluster.from_kubeconfig(tmp_path)

    assert str(caught.value).startswith(f"cannot read the kubeconfig {tmp_path}: ")
    assert "connection" not in str(caught.value)


@pytest.mark.parametrize("named", ["argument", "variable"])
def test_kubeconfig_that_does_not_exist(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: str) -> None:
    """A kubeconfig that is gone, as after `edl local down --delete`, is not called invalid: the error says
    that there is no such file, and what to do."""
    file = tmp_path / "deleted" / "kubeconfig"
    monkeypatch.setenv("KUBECONFIG", str(file))

    with pytest.raises(InvalidError, match="no such file") as caught:
        Cluster.from_kubeconfig(file) if named == "argument" else Cluster.connect()

    message = str(caught.value)
    assert message.startswith(f"cannot read the kubeconfig {file}: ")
    assert "edl local up" in message
    assert "KUBECONFIG" in message
    assert "nvalid" not in message


def test_one_of_several_kubeconfigs_is_enough(
    server: ApiServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the files that $KUBECONFIG lists, some may not exist, as for kubectl."""
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'absent'}:{server.kubeconfig}")

    assert Cluster.connect().server == server.cluster().server


def test_unknown_context(server: ApiServerProcess) -> None:
    """The error for an unknown context names it."""
    with pytest.raises(InvalidError, match="elsewhere"):
        Cluster.from_kubeconfig(server.kubeconfig, "elsewhere")


def test_nothing_to_connect_to(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without a kubeconfig and outside of a cluster, the error says how to get a cluster."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(InvalidError, match="edl local up"):
        Cluster.connect()


def test_not_in_a_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """Using the in-cluster account outside of a cluster raises InvalidError."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)

    with pytest.raises(InvalidError, match="service account"):
        Cluster.in_cluster()


def test_importing_the_layer_is_cheap() -> None:
    """No module of the layer imports the client, which takes a second, before a cluster is connected."""
    code = (
        "import importlib, pkgutil, sys, edl_workflows.runtime.kube as kube\n"
        "for module in pkgutil.iter_modules(kube.__path__): "
        "importlib.import_module(f'{kube.__name__}.{module.name}')\n"
        "assert 'kubernetes' not in sys.modules"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)

    assert run.returncode == 0, run.stderr


def test_untrusted_certificate(server: ApiServerProcess, tmp_path: Path) -> None:
    """An untrusted certificate of the server is reported as such."""
    settings = yaml.safe_load(server.kubeconfig.read_text())
    settings["clusters"][0]["cluster"].pop("certificate-authority-data")
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(settings))

    with pytest.raises(UnavailableError, match="certificate"):
        client.get(Cluster.from_kubeconfig(file), PODS, "a")


def test_wrong_token(server: ApiServerProcess, tmp_path: Path) -> None:
    """A token that the server does not know raises ForbiddenError, which says to renew it."""
    settings = yaml.safe_load(server.kubeconfig.read_text())
    settings["users"][0]["user"]["token"] = "stale"
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(settings))

    with pytest.raises(ForbiddenError, match="renew"):
        client.get(Cluster.from_kubeconfig(file), PODS, "a")
