"""What the tests may rely on of the cluster that they run on."""

import json
import subprocess
from pathlib import Path
from typing import Any

import httpx
import pytest

from edl_workflows import __version__
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES, PODS, SERVICES, Scope
from tests.cluster.bed import build, kwok, lifecycle
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.components import Site
from tests.cluster.bed.node import Network
from tests.cluster.bed.wait import until

_VERSION = (
    "import edl_workflows, pathlib, sys; pathlib.Path(sys.argv[1]).write_text(edl_workflows.__version__)"
)
_FETCH = """
import sys, time, urllib.error, urllib.request
while True:
    try:
        text = urllib.request.urlopen(sys.argv[1], timeout=5).read()
        break
    except urllib.error.URLError:  # the server begins
        time.sleep(0.2)
open(sys.argv[2], "wb").write(text)
"""


def _pod(bed: Bed, name: str, arguments: list[str], folder: Path | None) -> dict[str, Any]:
    """A pod that runs Python, with a folder of the machine."""
    container: dict[str, Any] = {
        "name": "main",
        "image": bed.image,
        "imagePullPolicy": "Never",
        "command": [bed.python, *arguments],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [container],
    }
    if folder:
        container["volumeMounts"] = [{"name": "data", "mountPath": str(folder)}]
        spec["volumes"] = [{"name": "data", "hostPath": {"path": str(folder)}}]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}


def _phase(cluster: Cluster, namespace: str, name: str) -> str:
    return str(client.get(cluster, PODS, name, namespace)["status"].get("phase"))


def test_pod_runs_the_package(bed: Bed, cluster: Cluster, namespace: str, shared_folder: Path) -> None:
    """A pod runs this checkout with the bed's interpreter and writes to a folder that the test reads."""
    program = ["-c", _VERSION, str(shared_folder / "version")]
    client.create(cluster, _pod(bed, "p", program, shared_folder), namespace)
    until(lambda: _phase(cluster, namespace, "p") in ("Succeeded", "Failed"), "the pod ends")

    assert (_phase(cluster, namespace, "p"), (shared_folder / "version").read_text()) == (
        "Succeeded",
        __version__,
    )


def test_audit_log_names_each_request(bed: Bed, cluster: Cluster, namespace: str) -> None:
    """An answered request is in the audit log with its verb and path."""

    def verbs() -> list[str]:
        lines = bed.audit_log.read_text().splitlines()
        return [json.loads(line)["verb"] for line in lines if f'"/api/v1/namespaces/{namespace}"' in line]

    client.get(cluster, NAMESPACES, namespace)
    until(lambda: "get" in verbs(), "the request is logged")


def test_services_are_reached_by_name(
    bed: Bed, cluster: Cluster, namespace: str, shared_folder: Path
) -> None:
    """A pod reaches another by its Service's DNS name, and so does a test by the Service's address."""
    (shared_folder / "page").write_text("served")
    served = _pod(
        bed, "server", ["-m", "http.server", "8080", "--directory", str(shared_folder)], shared_folder
    )
    served["metadata"]["labels"] = {"app": "server"}
    service = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "page"},
        "spec": {"selector": {"app": "server"}, "ports": [{"port": 80, "targetPort": 8080}]},
    }
    arguments = ["-c", _FETCH, f"http://page.{namespace}.svc/page", str(shared_folder / "fetched")]
    client.create(cluster, service, namespace)
    for pod in (served, _pod(bed, "client", arguments, shared_folder)):
        client.create(cluster, pod, namespace)

    until(lambda: _phase(cluster, namespace, "client") in ("Succeeded", "Failed"), "the client ends")
    address = client.get(cluster, SERVICES, "page", namespace)["spec"]["clusterIP"]
    seen_from_here = httpx.get(f"http://{address}/page").text

    assert ((shared_folder / "fetched").read_text(), seen_from_here) == ("served", "served")


def test_restarted_api_server_goes_on(bed: Bed, cluster: Cluster, namespace: str) -> None:
    """After a kill and a restart, the API server has the same objects, and clients can continue."""
    before = bed.daemon("apiserver").pid
    bed.restart_apiserver()

    assert client.get(cluster, NAMESPACES, namespace)["status"]["phase"] == "Active"
    assert bed.daemon("apiserver").pid not in (before, None)


def test_fake_nodes_run_pods_for_load(bed: Bed, cluster: Cluster, namespace: str) -> None:
    """Pods on fake nodes become Ready without running; nodes and controller are gone afterwards."""
    with kwok.fake_nodes(bed, 2) as placement:
        for number in range(5):
            pod = _pod(bed, f"p{number}", ["-c", "raise SystemExit(1)"], None)
            client.create(cluster, pod | {"spec": pod["spec"] | placement}, namespace)
        until(lambda: _running(cluster, namespace) == 5, "all pods run")

    assert bed.daemon(kwok.NAME).pid is None
    assert [node for node in bed.kubectl("get", "nodes", "-o", "name").split() if "kwok" in node] == []


def test_what_a_machine_lacks_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Missing programs are listed in one line, with the Debian packages to install."""
    with_all = build.missing()
    monkeypatch.setenv("PATH", str(tmp_path))
    without = build.missing()

    assert with_all == ""
    assert without.startswith(
        "Debian packages are needed: apt-get install conntrack containerd iproute2 iptables"
    )
    assert "\n" not in without


@pytest.mark.timeout(600)
def test_crashed_bed_is_cleared_away(tmp_path: Path) -> None:
    """After the programs of a bed were killed, clearing it leaves no process, mount, interface, route or
    cgroup."""
    site = Site(tmp_path / "bed", build.BIN, Network(223))
    build.build()
    second = lifecycle.up(site)
    pod = _pod(second, "left", ["-c", "import time; time.sleep(3600)"], None)
    second.kubectl("apply", "-f", "-", stdin=json.dumps(pod))
    of_second = Cluster.from_kubeconfig(second.kubeconfig)
    until(lambda: _phase(of_second, "default", "left") == "Running", "a pod runs")
    traces = _traces(site)
    for name in ("kubelet", "containerd", "apiserver"):
        second.daemon(name).stop(kill=True)
    lifecycle.down(site)

    assert all(traces.values()), f"the test looks in the wrong places: {traces}"
    assert not any(_traces(site).values()), _traces(site)
    assert [path.name for path in site.folder.iterdir()] == ["log"]


def _traces(site: Site) -> dict[str, list[str]]:
    """What of a bed is to be seen on the machine, by kind."""
    interface = site.network.interface
    commands = (path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists())
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=True).stdout
    return {
        "processes": [str(command) for command in commands if str(site.folder).encode() in command],
        "interfaces": [str(path) for path in Path("/sys/class/net").glob(interface)],
        "routes": [line for line in routes.splitlines() if interface in line],
        "cgroups": [str(path) for path in Path("/sys/fs/cgroup").glob(f"*/{interface}")],
    }


def _running(cluster: Cluster, namespace: str) -> int:
    pods = client.list_objects(cluster, Scope(PODS, namespace)).items
    return [pod["status"].get("phase") for pod in pods].count("Running")
