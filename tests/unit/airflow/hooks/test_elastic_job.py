"""From an Airflow connection to a cluster."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.airflow.hooks.elastic_job import ConnectionSettings, ElasticJobHook
from edl_workflows.core.exceptions import InvalidError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES, Scope
from edl_workflows.testing import ApiServerProcess

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")


def hook(monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], **settings: Any) -> ElasticJobHook:
    """Of a connection with this extra."""
    monkeypatch.setenv("AIRFLOW_CONN_TEST", json.dumps({"conn_type": "kubernetes", "extra": extra}))
    return ElasticJobHook(ConnectionSettings(kubernetes_conn_id="test", **settings))


@pytest.mark.parametrize("way", ["path", "content", "override"])
def test_a_connection_leads_to_its_cluster(
    server: ApiServerProcess, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The kubeconfig comes from the connection's path, its content, or a path that the operator gives."""
    path = str(server.kubeconfig)
    extra: dict[str, Any] = {"namespace": cluster.namespace}
    settings: dict[str, Any] = {}
    if way == "path":
        extra["kube_config_path"] = path
    elif way == "content":
        extra["kube_config"] = Path(path).read_text()
    else:
        settings["config_file"] = path

    found = hook(monkeypatch, extra, **settings).cluster()

    assert found.namespace == cluster.namespace
    assert client.get(found, NAMESPACES, cluster.namespace)["metadata"]["name"] == cluster.namespace


@pytest.mark.parametrize("way", ["path", "content"])
def test_the_proxy_is_the_one_that_kubectl_would_use(
    server: ApiServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """A server of this machine is reached directly, whatever the environment says; the kubeconfig's
    ``proxy-url`` is used."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
    kubeconfig = yaml.safe_load(server.kubeconfig.read_text())

    def connect() -> Cluster:
        file = tmp_path / "config"
        file.write_text(yaml.safe_dump(kubeconfig))
        named = {"kube_config_path": str(file)} if way == "path" else {"kube_config": file.read_text()}
        return hook(monkeypatch, named).cluster()

    assert client.list_objects(connect(), Scope(NAMESPACES)).items

    kubeconfig["clusters"][0]["cluster"]["proxy-url"] = "http://proxy.example:3128"
    assert connect().route.endswith(" through the proxy http://proxy.example:3128")


def test_who_waits_by_one_connection_shares_its_watch(
    server: ApiServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two hooks with equal settings share a source; changed or overridden settings have another."""
    path = {"kube_config_path": str(server.kubeconfig)}
    first, second = hook(monkeypatch, path).source(), hook(monkeypatch, path).source()
    edited = hook(monkeypatch, path | {"namespace": "other"}).source()
    overridden = hook(monkeypatch, path, cluster_context="other").source()

    assert first == second
    assert len({first, edited, overridden}) == 3


@pytest.mark.parametrize(
    ("extra", "says"),
    [
        (
            {"kube_config_path": "/nowhere", "in_cluster": True},
            "mutually exclusive|in-cluster|service account",
        ),
        ({"kube_config_path": "/nowhere"}, "/nowhere"),
        ({"in_cluster": True}, "'test' leads to no cluster"),
    ],
)
def test_wrong_settings_name_the_connection(
    monkeypatch: pytest.MonkeyPatch, extra: dict[str, Any], says: str
) -> None:
    """Wrong settings raise InvalidError that says what is wrong, and no error of another library."""
    with pytest.raises(InvalidError, match=says):
        hook(monkeypatch, extra).cluster()


def test_an_absent_connection_says_what_to_do() -> None:
    """A missing connection is an error that names it and says to add one of type kubernetes."""
    with pytest.raises(InvalidError, match="no connection 'absent'; add one of type kubernetes"):
        ElasticJobHook(ConnectionSettings(kubernetes_conn_id="absent")).source()


def test_the_link_is_the_dashboard_of_the_connection_or_absent(monkeypatch: pytest.MonkeyPatch) -> None:
    """The link is made from the connection's URL pattern, without a request to the cluster. Without a pattern
    there is no link."""
    url = {"edl_dashboard_url": "https://dash.example/{namespace}/{kind}/{name}"}

    assert (
        hook(monkeypatch, url).link("ElasticJob", "ml", "mnist") == "https://dash.example/ml/elasticjob/mnist"
    )
    assert hook(monkeypatch, {}).link("ElasticJob", "ml", "mnist") == ""


@pytest.mark.parametrize(
    "url",
    [
        "https://dash.example/{cluster}",
        "https://dash.example/{",
        "{0}",
        "{name.x}",
        "dash.example/{name}",
        "javascript:{name}",
    ],
)
def test_a_malformed_dashboard_fails_no_task(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """A pattern for the dashboard that gives no URL gives no link. The task does not fail, since the job
    already runs."""
    made = hook(monkeypatch, {"edl_dashboard_url": url})

    assert made.link("ElasticJob", "ml", "mnist") == ""
