"""What users do with kubectl to pods that run; its verbs on objects are among the conformance cases."""

import functools
import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.runtime.kube.connect import Cluster
from tests.local_cluster import LocalCluster
from tests.unit.local.support import eventually

pytestmark = pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not on PATH")
Kubectl = Callable[..., str]
RUN = ("run", "p", "--image=none", "--restart=Never", "--command", "--", "sh", "-c")


@pytest.fixture
def command(local: LocalCluster, handle: Cluster, tmp_path: Path) -> list[str]:
    """kubectl, in the namespace."""
    place = ["--kubeconfig", str(local.kubeconfig), "--namespace", handle.namespace]
    return ["kubectl", *place, "--cache-dir", str(tmp_path / "cache")]


@pytest.fixture
def kubectl(command: list[str]) -> Kubectl:
    """Runs kubectl, which must succeed; what it prints."""

    def call(*arguments: str) -> str:
        done = subprocess.run([*command, *arguments], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return call


def test_run_wait_logs_delete(kubectl: Kubectl) -> None:
    """A pod is run, waited for, described and deleted. Its log has times, and can start at a later time."""
    kubectl(*RUN, "echo one; echo two")
    kubectl("wait", "pod/p", "--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    stamped = kubectl("logs", "p", "--timestamps").splitlines()

    assert kubectl("logs", "p", "--since=1h", "--tail=1") == "two\n"
    assert kubectl("logs", "p", "--since-time=2001-01-01T00:00:00Z", "--limit-bytes=4") == "one\n"
    assert [line.partition("Z ")[2] for line in stamped] == ["one", "two"]
    assert "Started container" in kubectl("describe", "pod", "p")
    kubectl("delete", "pod", "p", "--timeout=60s")


def test_follow(kubectl: Kubectl, command: list[str], tmp_path: Path) -> None:
    """Logs are followed to the end of the container, also those of all pods with a label."""
    kubectl(*RUN, f"echo one; until [ -e {tmp_path}/go ]; do sleep 0.05; done; echo two")
    kubectl("wait", "pod/p", "--for=jsonpath={.status.phase}=Running", "--timeout=60s")
    with subprocess.Popen([*command, "logs", "-f", "p"], stdout=subprocess.PIPE, text=True) as followed:
        assert followed.stdout is not None
        first = followed.stdout.readline()
        (tmp_path / "go").touch()
        rest = followed.stdout.read()

    assert (first, rest) == ("one\n", "two\n")
    assert "[pod/p/p] " in kubectl("logs", "-l", "run=p", "--prefix", "--timestamps")


def test_unknown_kinds_and_lists(kubectl: Kubectl, command: list[str]) -> None:
    """``kubectl apply`` names a kind that is not defined, and applies lists; a field that is none is refused,
    by the server."""
    maps = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}} for name in "ab"]
    whole = {"apiVersion": "v1", "kind": "List", "items": maps}

    def refused(manifest: dict[str, Any]) -> str:
        text = json.dumps(manifest)
        done = subprocess.run(
            [*command, "apply", "-f", "-"], input=text, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 1
        return done.stderr

    kinds = ("example.com/v1", "Thing"), (f"{names.GROUP}/v1alpha1", "ElasticJobb")
    for version, kind in kinds:
        unknown = {"apiVersion": version, "kind": kind, "metadata": {"name": "x"}}
        assert f'no matches for kind "{kind}" in version "{version}"' in refused(unknown)
    assert 'unknown field "dataa"' in refused({**whole, "items": [{**maps[0], "dataa": {}}]})
    file = Path(command[-1]).with_name("list.json")
    file.write_text(json.dumps(whole))
    assert kubectl("apply", "-f", str(file)).count("created") == 2
    assert "hostNetwork\t<boolean>" in kubectl("explain", "pods.spec")


def test_services_have_endpoints(kubectl: Kubectl) -> None:
    """``kubectl expose`` makes a service whose endpoints name the pod."""
    kubectl("run", "p", "--image=none", "--port=8080", "--command", "--", "sleep", "60")
    kubectl("expose", "pod", "p", "--port=80")
    shown = functools.partial(kubectl, "get", "endpoints")
    eventually(lambda: ":80" in shown(), shown)
    kubectl("delete", "pod", "p", "--grace-period=0", "--force")


def test_rights(kubectl: Kubectl) -> None:
    """``kubectl auth`` says what one may do."""
    assert kubectl("auth", "can-i", "create", "elasticjobs.elastic.iml.github.io") == "yes\n"
    assert "*.*" in kubectl("auth", "can-i", "--list")
