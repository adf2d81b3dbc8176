"""TFJobs in another version and as ElasticJobs: `edl_workflows.core.jobs.tf_job.conversion`."""

from typing import Any

import yaml

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.tf_job import conversion
from edl_workflows.core.jobs.tf_job.model import TFJob

V1ALPHA2 = """
apiVersion: kubeflow.org/v1alpha2
kind: TFJob
metadata: {name: mnist, namespace: team, resourceVersion: "7", labels: {a: b}}
spec:
  cleanPodPolicy: All
  backoffLimit: 2
  tfReplicaSpecs:
    ps:
      template: {spec: {containers: [{name: tensorflow, image: "train:1", command: [python, train.py]}]}}
    Eval:
      template: {spec: {containers: [{name: tensorflow, image: "train:1"}]}}
    Worker:
      replicas: 3
      restartPolicy: ExitCode
      template: {spec: {containers: [{name: tensorflow, image: "train:1", command: [python, train.py]}]}}
status: {phase: Running}
"""


def job(**spec: Any) -> TFJob:
    manifest = yaml.safe_load(V1ALPHA2)
    manifest["spec"] |= spec
    return TFJob.parse(manifest)


def test_to_v1_and_back() -> None:
    """Flat policies become runPolicy, types get the names of v1, and the status is left out. Converting back
    keeps the policies."""
    found = conversion.to_v1(job())
    assert found.notes == ()
    assert found.manifest["apiVersion"] == "kubeflow.org/v1"
    assert found.manifest["metadata"] == {"name": "mnist", "namespace": "team", "labels": {"a": "b"}}
    assert list(found.manifest["spec"]["tfReplicaSpecs"]) == ["PS", "Evaluator", "Worker"]
    assert "status" not in found.manifest
    again = TFJob.parse(found.manifest)
    assert again.spec.policies == job().spec.policies
    assert again.spec.run_policy.clean_pod_policy == "All"
    back = conversion.to_v1alpha2(again)
    assert back.notes == ()
    assert TFJob.parse(back.manifest).spec.policies == job().spec.policies
    assert back.manifest["spec"]["backoffLimit"] == 2
    assert "runPolicy" not in back.manifest["spec"]


def test_what_is_newer_than_v1alpha2_is_said() -> None:
    """Fields that v1alpha2 does not have are named in the notes."""
    found = conversion.to_v1alpha2(job(enableDynamicWorker=True, runPolicy={"suspend": True}))
    assert found.notes == (
        "spec.runPolicy.suspend: v1alpha2 has no such field",
        "spec.enableDynamicWorker: v1alpha2 has no such field",
    )
    TFJob.parse(found.manifest)


def test_to_an_elastic_job() -> None:
    """The roles keep their counts, their commands run under the agent, and each setting that an ElasticJob
    lacks is named."""
    found = conversion.to_elastic_job(job(successPolicy="AllWorkers"))
    elastic = ElasticJob.parse(found.manifest)
    assert {role: spec.replicas for role, spec in elastic.spec.replica_specs.items()} == {
        "ps": 1, "evaluator": 1, "worker": 3,
    }  # fmt: skip
    container = elastic.spec.replica_specs["worker"].template["spec"]["containers"][0]
    assert container["command"] == ["edl", "agent", "run", "--", "python", "train.py"]
    told = "\n".join(found.notes)
    for part in (
        "cleanPodPolicy",
        "backoffLimit",
        "successPolicy",
        "evaluator.template: the image's own command",
    ):
        assert part in told


def test_a_chief_becomes_one_more_worker() -> None:
    """Since a collective ElasticJob has no chief, the chief of a TFJob for MultiWorkerMirroredStrategy
    becomes a worker."""
    manifest = yaml.safe_load(V1ALPHA2)
    template = {
        "spec": {"containers": [{"name": "tensorflow", "image": "i", "command": ["python", "train.py"]}]}
    }
    manifest["spec"] = {
        "tfReplicaSpecs": {
            kind: {"replicas": n, "template": template} for kind, n in (("Chief", 1), ("Worker", 2))
        }
    }
    manifest["apiVersion"] = "kubeflow.org/v1"
    found = conversion.to_elastic_job(TFJob.parse(manifest))
    elastic = ElasticJob.parse(found.manifest)
    assert elastic.spec.distribution_strategy == "AllreduceStrategy"
    assert {role: spec.replicas for role, spec in elastic.spec.replica_specs.items()} == {"worker": 3}
    assert any("one more worker" in note for note in found.notes)
