"""The API server is reached through the proxy that kubectl would use, and through no other."""

from base64 import b64encode
from pathlib import Path

import pytest
import stamina
import yaml

from edl_workflows.core.exceptions import InvalidError, UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS, Scope
from tests.unit.runtime.kube.support import Answer, ScriptedApi

NO_PROXY_SERVER = "http://127.0.0.1:9"
"""Nobody listens there: a request to this proxy fails."""


@pytest.fixture(autouse=True)
def _no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)


def write_kubeconfig(file: Path, server: str, proxy: str = "") -> Path:
    """A kubeconfig of one cluster.

    Args:
        file: where.
        server: URL of the API server.
        proxy: the cluster's ``proxy-url``.
    """
    cluster = {"server": server} | ({"proxy-url": proxy} if proxy else {})
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "c", "cluster": cluster}],
        "users": [{"name": "u", "user": {"token": "t"}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u", "namespace": "ns"}}],
        "current-context": "x",
    }
    file.write_text(yaml.safe_dump(config))
    return file


def proxy_of(cluster: Cluster) -> str:
    """The proxy that a cluster's requests take."""
    return str(cluster.api_client.configuration.proxy or "")


@pytest.mark.parametrize("variable", ["HTTPS_PROXY", "HTTP_PROXY", "https_proxy", "http_proxy"])
def test_loopback_takes_no_proxy(
    scripted: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    """A server of this machine, as the embedded cluster, is reached directly, whatever the environment
    says."""
    monkeypatch.setenv(variable, NO_PROXY_SERVER)
    scripted.answers = [Answer(body={"items": []})]
    server = scripted.cluster().server

    for address in (server, server.replace("127.0.0.1", "localhost")):
        cluster = Cluster.from_kubeconfig(write_kubeconfig(tmp_path / "config", address))
        assert not client.list_objects(cluster, Scope(PODS, "ns")).items


@pytest.mark.parametrize(
    ("server", "environment", "proxy"),
    [
        pytest.param("https://api.example", {"HTTPS_PROXY": "http://p:1"}, "http://p:1", id="https"),
        pytest.param("https://api.example", {"https_proxy": "http://p:1"}, "http://p:1", id="lower case"),
        pytest.param("https://api.example", {"HTTPS_PROXY": "p:1"}, "http://p:1", id="without scheme"),
        pytest.param("https://api.example", {"HTTP_PROXY": "http://p:1"}, "", id="for http only"),
        pytest.param("http://api.example", {"HTTP_PROXY": "http://p:1"}, "http://p:1", id="http"),
        pytest.param("http://api.example", {"HTTPS_PROXY": "http://p:1"}, "", id="for https only"),
        pytest.param("https://[::1]:6443", {"HTTPS_PROXY": "http://p:1"}, "", id="loopback of IPv6"),
        pytest.param("https://127.9.9.9", {"HTTPS_PROXY": "http://p:1"}, "", id="loopback's network"),
    ],
)
def test_scheme(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, environment: dict[str, str], proxy: str
) -> None:
    """The variable of the server's scheme names the proxy."""
    for name, value in environment.items():
        monkeypatch.setenv(name, value)

    assert proxy_of(Cluster.from_kubeconfig(write_kubeconfig(tmp_path / "config", server))) == proxy


@pytest.mark.parametrize(
    ("server", "no_proxy", "direct"),
    [
        pytest.param("https://api.example", "*", True, id="all"),
        pytest.param("https://api.example", "example", True, id="a domain"),
        pytest.param("https://API.example", "api.EXAMPLE", True, id="a host"),
        pytest.param("https://api.example", ".example", True, id="subdomains"),
        pytest.param("https://example", ".example", False, id="subdomains only"),
        pytest.param("https://api.example", "*.example", True, id="subdomains by a star"),
        pytest.param("https://notexample", "example", False, id="the end of a word"),
        pytest.param("https://api.example:6443", "a.b, api.example:6443", True, id="the port"),
        pytest.param("https://api.example:6443", "api.example:443", False, id="another port"),
        pytest.param("https://api.example", "api.example:443", True, id="the scheme's port"),
        pytest.param("https://10.1.2.3:6443", "10.0.0.0/8", True, id="a network"),
        pytest.param("https://10.1.2.3:6443", "10.2.0.0/16", False, id="another network"),
        pytest.param("https://10.1.2.3:6443", "10.1.2.3", True, id="an address"),
        pytest.param("https://[fd00::5]:6443", "fd00::/8", True, id="a network of IPv6"),
        pytest.param("https://[fd00::5]:6443", "[fd00::5]:6443", True, id="an address of IPv6 with port"),
        pytest.param("https://api.example", "", False, id="none"),
    ],
)
def test_no_proxy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: str, no_proxy: str, *, direct: bool
) -> None:
    """NO_PROXY excludes domains, addresses and networks, as for kubectl."""
    monkeypatch.setenv("HTTPS_PROXY", "http://p:1")
    monkeypatch.setenv("NO_PROXY", no_proxy)

    cluster = Cluster.from_kubeconfig(write_kubeconfig(tmp_path / "config", server))

    assert proxy_of(cluster) == ("" if direct else "http://p:1")


def test_proxy_of_the_kubeconfig(
    scripted: ScriptedApi, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cluster's ``proxy-url`` is used, before the environment's proxy and in spite of NO_PROXY."""
    monkeypatch.setenv("HTTP_PROXY", NO_PROXY_SERVER)
    monkeypatch.setenv("NO_PROXY", "*")
    scripted.answers = [Answer(body={"items": []})]
    file = write_kubeconfig(tmp_path / "config", "http://api.example", scripted.cluster().server)

    client.list_objects(Cluster.from_kubeconfig(file), Scope(PODS, "ns"))

    assert scripted.requests[0][1].startswith("http://api.example/api/v1/namespaces/ns/pods")


def test_credentials_of_a_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """User and password of a proxy go to the proxy, and not into texts."""
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s%40cret@p:1")

    configuration = Cluster.from_kubeconfig(
        write_kubeconfig(tmp_path / "config", "https://api.example")
    ).api_client.configuration

    assert configuration.proxy == "http://p:1"
    expected = f"Basic {b64encode(b'me:s@cret').decode()}"
    assert configuration.proxy_headers == {"proxy-authorization": expected}


def test_errors_name_the_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed connection through a proxy names it, and what chose it; the password is not shown."""
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secret@127.0.0.1:9")
    cluster = Cluster.from_kubeconfig(write_kubeconfig(tmp_path / "config", "https://api.example"))

    stamina.set_testing(True, attempts=1)
    try:
        with pytest.raises(UnavailableError) as caught:
            client.list_objects(cluster, Scope(PODS, "ns"))
    finally:
        stamina.set_testing(False)

    assert "http://127.0.0.1:9" in str(caught.value)
    assert "HTTPS_PROXY" in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize("proxy", ["socks5://p:1", "ftp://p:1", "http://p:port", "http://"])
def test_unusable_proxy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str) -> None:
    """A proxy that can't be used is refused when the cluster is connected, with the way out."""
    monkeypatch.setenv("HTTPS_PROXY", proxy)

    with pytest.raises(InvalidError, match=r"proxy .*: give it as http://"):
        Cluster.from_kubeconfig(write_kubeconfig(tmp_path / "config", "https://api.example"))
