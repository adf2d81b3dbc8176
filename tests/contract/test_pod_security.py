"""Namespaces that enforce the Pod Security Standard `restricted` admit an installation's own pods, the pods
of every example, and what we add to a user's pods."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.local.runner.support import unsupported_fields
from edl_workflows.pipelines.argo.executor_plugin import PluginOptions, plugin_manifests
from edl_workflows.pipelines.install.manifests import installation_manifests
from tests.cases.kinds import KIND_CASES
from tests.example_pods import EXAMPLES, INSTALLATION, pods_of, read_example
from tests.pod_security import for_kubernetes, violations

Manifest = dict[str, Any]
HARDENED: Manifest = {
    "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
    "containers": [
        {
            "name": "main",
            "image": "train:1",
            "command": ["train"],
            "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        }
    ],
}
"""A pod as a user writes it for such a namespace."""


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_are_admitted(path: Path) -> None:
    """Each example's pods are admitted, once the lines are chosen that its comments mark for Kubernetes."""
    pods = pods_of(read_example(for_kubernetes(path.read_text())))

    assert pods
    assert {pod["metadata"]["name"]: violations(pod["spec"]) for pod in pods} == {
        pod["metadata"]["name"]: [] for pod in pods
    }


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_examples_differ_in_their_marked_lines_only(path: Path) -> None:
    """As it is, an example runs on the embedded cluster, also as root: it only mounts a folder of the
    machine, and runs as the cluster's user."""
    pods = pods_of(read_example(path.read_text()))
    training = [
        pod for pod in pods if pod["metadata"]["labels"].get(names.REPLICA_TYPE_LABEL) != names.MASTER_TYPE
    ]
    refused = {
        text.partition("]: ")[2] or text.partition(": ")[2]
        for pod in training
        for text in violations(pod["spec"])
    }

    assert refused <= {"hostPath", "runAsNonRoot is not true"}
    assert [problem for pod in training for problem in unsupported_fields(pod, mounts=True, uid=0)] == []


def test_the_installations_own_pods_are_admitted() -> None:
    """The controller, the Argo agent, the DI server and Brain."""
    deployments = [obj for obj in installation_manifests(INSTALLATION) if obj["kind"] == "Deployment"]
    specs = {obj["metadata"]["name"]: obj["spec"]["template"]["spec"] for obj in deployments}

    assert len(specs) == 4
    assert {name: violations(spec) for name, spec in specs.items()} == {name: [] for name in specs}


TEMPLATE: Manifest = {"spec": HARDENED}
REPLICAS: Manifest = {"replicas": 1, "template": TEMPLATE}
JOBS: dict[str, Manifest] = {
    **{
        kind: {"spec": cases.installed.make_spec(HARDENED, 1)}
        for kind, cases in KIND_CASES.items()
        if cases.installed and kind != "TrainingJob"
    },
    "ElasticJob": {
        "spec": {
            "distributionStrategy": "AllreduceStrategy",
            "replicaSpecs": {"worker": REPLICAS, "dlrover-master": {"template": TEMPLATE}},
        },
    },
    "TrainingJob": {
        "spec": {
            "image": "train:1",
            "fault_tolerant": True,
            "mountPath": "/work",
            "master": {},
            "pserver": {"min-instance": 1},
            "trainer": {"entrypoint": "train", "min-instance": 1, "max-instance": 2},
            "template": {"spec": HARDENED},
        },
    },
}


@pytest.mark.parametrize("kind", KIND_CASES)
def test_what_is_added_to_a_users_pods_is_admitted(kind: str) -> None:
    """A pod that is admitted as the user wrote it stays so with our containers, volumes and ports, such as
    the etcd beside the master of a TrainingJob."""
    api_version = KIND_CASES[kind].example["apiVersion"]
    pods = pods_of({"apiVersion": api_version, "kind": kind, "metadata": {"name": "job"}, **JOBS[kind]})

    assert pods
    assert [text for pod in pods for text in violations(pod["spec"])] == []


def test_argos_plugin_is_admitted() -> None:
    """The sidecar that is added to Argo's agent pods."""
    assert _container_violations(_sidecar()) == []


def _sidecar() -> Manifest:
    plugin = next(
        obj for obj in plugin_manifests(PluginOptions("edl:1", "training")) if obj["kind"] == "ConfigMap"
    )
    container: Manifest = yaml.safe_load(plugin["data"]["sidecar.container"])
    return container


def _container_violations(container: Manifest) -> list[str]:
    return violations({"containers": [container]})


RULES: dict[str, Manifest] = {
    "hostNetwork": {"hostNetwork": True},
    "hostPID": {"hostPID": True},
    "volume a: hostPath": {"volumes": [{"name": "a", "hostPath": {"path": "/a"}}]},
    "sysctl kernel.msgmax": {"securityContext": {"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}},
    "pod: runAsUser 0": {"securityContext": {"runAsUser": 0}},
    "pod: seccompProfile": {"securityContext": {"seccompProfile": {"type": "Unconfined"}}},
}
BOX_RULES: dict[str, Manifest] = {
    "hostPort": {"ports": [{"containerPort": 1, "hostPort": 1}]},
    "privileged": {"securityContext": {"privileged": True}},
    "added capabilities": {"securityContext": {"capabilities": {"drop": ["ALL"], "add": ["SYS_PTRACE"]}}},
    "runAsNonRoot false": {"securityContext": {"runAsNonRoot": False}},
    "procMount": {"securityContext": {"procMount": "Unmasked"}},
    "allowPrivilegeEscalation is not false": {"securityContext": {"allowPrivilegeEscalation": True}},
}


@pytest.mark.parametrize(("rule", "field"), [*RULES.items(), *BOX_RULES.items()])
def test_the_checker_sees_each_kind_of_violation(rule: str, field: Manifest) -> None:
    """The rules that these tests rely on are those of the profile."""
    box, pod = HARDENED["containers"][0], dict(HARDENED)
    if rule in BOX_RULES:
        context = box["securityContext"] | field.get("securityContext", {})
        pod["containers"] = [box | field | {"securityContext": context}]
    else:
        context = HARDENED["securityContext"] | field.get("securityContext", {})
        pod |= field | {"securityContext": context}

    assert violations(HARDENED) == []
    assert any(rule in text for text in violations(pod))
