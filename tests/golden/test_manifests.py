"""Pods, services and the other children of a job, and the CRDs, compared with files. Rewrite them with
--update-golden.
"""

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.pipelines.install import crds as crd

FILES = Path(__file__).parent

JOB = """
apiVersion: elastic.iml.github.io/v1alpha1
kind: ElasticJob
metadata: {name: deepfm, namespace: ads, uid: 1f0e}
spec:
  envs: {DATA_DIR: {value: /data}}
  brainService: brain.dlrover.svc:50001
  replicaSpecs:
    ps:
      replicas: 2
      priority: high
      template:
        metadata: {labels: {team: ads}, annotations: {sidecar.istio.io/inject: "false"}}
        spec:
          restartPolicy: Always
          containers:
            - name: main
              image: train:1
              command: [edl, agent, run, --, python, train.py]
              env: [{name: NODE_RANK, value: "9"}, {name: OWN, value: $(NODE_ID)}]
              resources: {requests: {cpu: 1, memory: 4Gi}}
            - {name: sidecar, image: log:1}
    worker:
      replicas: 4
      priority: "0.5"
      BatchScheduler: volcano
      template: {spec: {containers: [{name: main, image: "train:1"}]}}
"""

MASTER_TEMPLATE = {
    "metadata": {"labels": {"team": "ads"}},
    "spec": {
        "nodeSelector": {"pool": "cpu"},
        "containers": [
            {"name": "trainer", "imagePullPolicy": "Always", "env": [{"name": "LOG", "value": "debug"}]}
        ],
    },
}

INSTALLATION_TEMPLATE = {
    "metadata": {"labels": {"team": "platform", "tier": "batch"}},
    "spec": {
        "imagePullSecrets": [{"name": "registry"}],
        "nodeSelector": {"pool": "any"},
        "securityContext": {"runAsNonRoot": True},
        "containers": [
            {
                "name": "main",
                "imagePullPolicy": "Never",
                "securityContext": {"allowPrivilegeEscalation": False},
                "env": [{"name": "LOG", "value": "info"}, {"name": "TZ", "value": "UTC"}],
            }
        ],
    },
}


def make_job(**roles: Any) -> ElasticJob:
    manifest = yaml.safe_load(JOB)
    manifest["spec"]["replicaSpecs"] |= copy.deepcopy(roles)
    return ElasticJob.parse(manifest)


def all_cases() -> dict[str, list[dict[str, Any]]]:
    job = make_job()
    own = make_job(**{"dlrover-master": {"priority": "high", "template": MASTER_TEMPLATE}})
    small = NodeResource(cpu="500m", memory="1Gi", gpu="1", gpu_type="Tesla-V100")
    ps = pods.NodeToMake("ps", 3, 1, 2, small)
    return {
        "master": [
            pods.master_pod(job, 0, 0, InstallationSettings()),
            pods.master_service(job),
            pods.nodes_service(job),
        ],
        "master-own-template": [pods.master_pod(own, 2, 1, InstallationSettings(master_image="master:7"))],
        "master-installation-template": [
            pods.master_pod(own, 0, 0, InstallationSettings(master_template=INSTALLATION_TEMPLATE))
        ],
        "ps": [pods.node_pod(job, ps)],
        "workers": [
            pods.node_pod(job, pods.NodeToMake("worker", 5, 1, 4)),
            pods.node_pod(job, pods.NodeToMake("worker", 6, 2, 4)),
        ],
        "chief-from-worker": [pods.node_pod(job, pods.NodeToMake("chief", 0, 0, 1))],
        "children": [
            pods.token_secret(job, "t" * 32),
            pods.state_config_map(job),
            pods.master_account(job),
            pods.master_role(job),
            pods.master_role_binding(job),
        ],
    }  # fmt: skip


@pytest.mark.parametrize("case", list(all_cases()))
def test_manifests_are_as_recorded(case: str, update_golden: bool) -> None:
    """The manifests that the controller creates equal the recorded ones, so that they change only on
    purpose."""
    text = yaml.safe_dump_all(all_cases()[case], sort_keys=False, width=110)
    path = FILES / "pods" / f"{case}.yaml"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")

    assert text == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("kind", kinds.KINDS, ids=lambda kind: kind.name)
def test_definitions_are_what_the_models_give(kind: Kind) -> None:
    """The shipped CRDs are those that `python -m edl_workflows.pipelines.install.crds --write` generates from
    the models."""
    shipped = FILES.parents[1] / "edl_workflows" / "core" / "jobs" / "crds" / f"{kind.source.api.plural}.yaml"

    assert crd.render_crd(kind) == shipped.read_text(encoding="utf-8")
