"""``edl controller run`` as a process: its probes, its log and its end."""

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from edl_workflows.core.kubernetes.api import DI_JOBS
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.cli import root
from edl_workflows.pipelines.cli.options import NamespacesFlags, expand_options
from edl_workflows.pipelines.cli.services.controller import JobFlags
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import LEASES, NODES, PODS
from edl_workflows.testing import ApiServerProcess, api_server, free_port
from tests.cases.kinds.di_job import make_di_job, task
from tests.unit.core.jobs.di_jobs import NAME
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import crds, elastic_job, status_of


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ApiServerProcess]:
    """An API server with the kinds installed."""
    with api_server(tmp_path) as running:
        for crd in crds():
            client.create(running.cluster(), crd)
        yield running


def _start(server: ApiServerProcess, port: int, *options: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "edl_workflows", "controller", "run"]
    command += ["--kubeconfig", str(server.kubeconfig), "--metrics-port", str(port), *options]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.parametrize("how", ["option", "variable", "neither"])
def test_the_domain_of_the_cluster(how: str) -> None:
    """``--tf-cluster-domain``, or the variable ``CUSTOM_CLUSTER_DOMAIN`` as in tf-operator, reaches the
    addresses of TFJobs."""
    domains = []
    app = typer.Typer()

    @app.command()
    @expand_options
    def show(*, jobs: JobFlags) -> None:
        domains.append(jobs.settings().tf_cluster_domain)

    arguments = ["--tf-cluster-domain", "corp.example"] if how == "option" else []
    env = {"CUSTOM_CLUSTER_DOMAIN": "corp.example" if how == "variable" else None}
    result = CliRunner().invoke(app, arguments, env=env)

    assert result.exit_code == 0, result.output
    assert domains == ["" if how == "neither" else "corp.example"]


@pytest.fixture
def nowhere(tmp_path: Path) -> str:
    """Path of a kubeconfig for a server that does not exist."""
    path = tmp_path / "kubeconfig"
    user = [{"name": "u", "user": {"token": "t"}}]
    cluster = [{"name": "c", "cluster": {"server": "http://127.0.0.1:1"}}]
    context = [{"name": "x", "context": {"cluster": "c", "user": "u"}}]
    config = {"clusters": cluster, "users": user, "contexts": context, "current-context": "x"}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "Config", **config}))
    return str(path)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("- spec: {}\n", "must be a map with metadata and spec"),
        ("spec: {containers: [{image: a}]}\n", "spec.containers.0.name: required field is missing"),
        ("spec: [\n", "not valid YAML"),
    ],
)
def test_a_wrong_master_template_ends_the_controller(
    tmp_path: Path, nowhere: str, capsys: pytest.CaptureFixture[str], text: str, complaint: str
) -> None:
    """The error is reported at the start, with the file, and not later by the master of each job."""
    path = tmp_path / "master.yaml"
    path.write_text(text)

    code = root.run(["controller", "run", "--kubeconfig", nowhere, "--master-template", str(path)])

    assert code == 2
    said = capsys.readouterr().err
    assert str(path) in said
    assert complaint in said


@pytest.mark.parametrize(
    ("option", "text", "complaint"),
    [
        ("--di-job-resources", "cpu", "'cpu' is not a list of NAME=VALUE"),
        ("--di-job-resources", "cpu=much", "requests of DIJobs: cpu: 'much' is not a Kubernetes quantity"),
        ("--di-priority-classes", "=urgent", "'=urgent' is not a list of NAME=VALUE"),
        ("--max-load", "cpu=all", "--max-load: cpu: 'all' is not a number"),
        ("--max-load", "cpu=1.5", "maximum load: cpu: 1.5 must be above 0 and at most 1"),
        ("--max-load", "cpu=nan", "maximum load: cpu: nan must be"),
        ("--jobs-namespace", "a.b", "jobs namespace 'a.b'"),
        ("--jobs-namespace-selector", "a b", "jobs namespace selector 'a b'"),
    ],
)
def test_wrong_options_end_the_controller(
    nowhere: str, capsys: pytest.CaptureFixture[str], option: str, text: str, complaint: str
) -> None:
    """The message has the wrong value and what is expected instead."""
    command = ["controller", "run", "--autoscaler", "--kubeconfig", nowhere, option, text]
    assert root.run(command) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--all-namespaces", "--jobs-namespace", "a"], "--all-namespaces serves every namespace"),
        (["--all-namespaces", "--jobs-namespace-selector", "a"], "--all-namespaces serves every namespace"),
        (["--jobs-namespace", "a", "--jobs-namespace-selector", "a"], "choose one of the two"),
        (["--partitions", "2", "--no-leader-elect"], "2 partitions: replicas share the jobs by Leases"),
    ],
)
def test_options_that_contradict_each_other(
    nowhere: str, capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    """The error names both."""
    assert root.run(["controller", "run", "--kubeconfig", nowhere, *options]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "selection"),
    [
        (NamespacesFlags(), NamespaceSelection(("mine",))),
        (NamespacesFlags(all_namespaces=True), NamespaceSelection()),
        (NamespacesFlags(jobs_namespace=["a", "b"]), NamespaceSelection(("a", "b"))),
        (NamespacesFlags(jobs_namespace_selector="t=a"), NamespaceSelection(selector="t=a")),
    ],
)
def test_which_namespaces_are_served(flags: NamespacesFlags, selection: NamespaceSelection) -> None:
    """By default it is the namespace of the context."""
    assert flags.selection(Cluster(None, "mine", "key")) == selection


@pytest.mark.slow
def test_options_reach_the_pods_of_di_jobs(server: ApiServerProcess) -> None:
    """Server address, domain, PriorityClass and default resources reach the pods of DIJobs."""
    port = free_port()
    process = _start(
        server, port, "--kinds", "DIJob", "--di-server-url", "http://di:1",
        "--di-service-domain", "svc.example", "--di-priority-classes", "high=urgent",
        "--di-job-resources", "cpu=250m",
    )  # fmt: skip
    cluster, node = server.cluster(), {"kubernetes.io/hostname": "a"}
    try:
        client.create(
            cluster, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "a", "labels": node}}
        )
        offers = {"cpu": "1", "memory": "1Gi", "pods": "9"}
        ready = [{"type": "Ready", "status": "True"}]
        client.patch_status(
            cluster, NODES, "a", {"allocatable": offers, "capacity": offers, "conditions": ready}
        )
        one = task("none", name="serial", maxReplicas=1)
        client.create(cluster, make_di_job(one, preemptible=True))
        client.create(cluster, make_di_job(one, priority="high") | {"metadata": {"name": "other"}})
        eventually(lambda: client.find(cluster, PODS, f"{NAME}-serial-0") is not None)
        # There is no such PriorityClass, so the server refuses the pod that names it.
        eventually(lambda: "urgent" in str(client.get(cluster, DI_JOBS, "other").get("status")))
    finally:
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=240)

    pod = client.get(cluster, PODS, f"{NAME}-serial-0")["spec"]
    told = {v["name"]: v.get("value") for v in pod["containers"][0]["env"]}
    assert told["DI_SERVER_URL"] == "http://di:1"
    assert told["DI_NODES"] == f"{NAME}-serial-0.di-{NAME}.default.svc.example"
    assert pod["containers"][0]["resources"] == {"requests": {"cpu": "250m"}}


@pytest.mark.slow
def test_works_and_ends_on_sigterm(server: ApiServerProcess) -> None:
    """It reconciles jobs, logs one JSON event per line, releases its lease on SIGTERM and exits with 0."""
    port = free_port()
    process = _start(server, port)
    try:
        eventually(lambda: _ready(port))
        cluster = server.cluster()
        client.create(cluster, elastic_job())
        eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")
    finally:
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=240)

    assert process.returncode == 0, log
    events = [json.loads(line) for line in log.splitlines()]
    assert {"controller started", "created", "controller stopped"} <= {event["event"] for event in events}
    assert client.get(cluster, LEASES, "edl-controller")["spec"]["holderIdentity"] == ""


@pytest.mark.slow
def test_the_port_is_taken(server: ApiServerProcess) -> None:
    """A port in use gives one line on stderr and exit code 6."""
    port = free_port()
    first = _start(server, port, "--no-leader-elect")
    try:
        eventually(lambda: _ready(port))
        second = _start(server, port, "--no-leader-elect")
        _, log = second.communicate(timeout=240)
    finally:
        first.terminate()
        first.communicate(timeout=240)

    assert second.returncode == 6
    assert f"edl: can't listen on 127.0.0.1:{port}" in log
