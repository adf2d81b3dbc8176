"""TrainingJobs as ElasticJobs: `edl_workflows.core.jobs.training_job.conversion`."""

from typing import Any

import yaml

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.training_job import conversion
from edl_workflows.core.jobs.training_job.model import TrainingJob

MANIFEST = """
apiVersion: paddlepaddle.org/v1
kind: TrainingJob
metadata: {name: ctr, namespace: team, resourceVersion: "7", labels: {a: b}}
spec:
  image: train:1
  fault_tolerant: true
  volumes: [{name: data, hostPath: {path: /data}}]
  VolumeMounts: [{name: data, mountPath: /data}]
  NodeSelector: {pool: cpu}
  template: {spec: {serviceAccountName: trainer, containers: [{name: main, env: [{name: OWN, value: "1"}]}]}}
  pserver: {min-instance: 2, resources: {limits: {cpu: 2}}}
  trainer:
    {entrypoint: python train.py, workspace: /work, passes: 3, min-instance: 2, max-instance: 6, \
parallelism: 4}
status: {phase: running}
"""


def job(**spec: Any) -> TrainingJob:
    manifest = yaml.safe_load(MANIFEST)
    manifest["spec"] |= spec
    return TrainingJob.parse(manifest)


def test_to_an_elastic_job() -> None:
    """Counts, image, volumes, placement and the user's environment stay, and the program runs under the
    agent. Upstream's variables and ports are removed."""
    found = conversion.to_elastic_job(job())
    elastic = ElasticJob.parse(found.manifest)
    assert elastic.metadata.labels == {"a": "b"}
    assert {role: spec.replicas for role, spec in elastic.spec.replica_specs.items()} == {
        "ps": 2,
        "worker": 4,
    }
    worker = elastic.spec.replica_specs["worker"].template["spec"]
    assert worker["nodeSelector"] == {"pool": "cpu"}
    assert worker["serviceAccountName"] == "trainer"
    assert worker["containers"] == [
        {
            "name": "main",
            "image": "train:1",
            "workingDir": "/work",
            "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            "command": ["edl", "agent", "run", "--", "sh", "-c", "python train.py"],
            "env": [{"name": "OWN", "value": "1"}],
        }
    ]
    servers = elastic.spec.replica_specs["ps"].template["spec"]["containers"][0]
    assert servers["resources"] == {"limits": {"cpu": "2"}}


def test_what_has_no_place_is_said() -> None:
    """The notes name each field that was set and has no equivalent in an ElasticJob."""
    told = "\n".join(conversion.to_elastic_job(job(backoffLimit=2, autoclean=True)).notes)
    for path in (
        "fault_tolerant",
        "master",
        "trainer.min-instance",
        "passes",
        "port",
        "backoffLimit",
        "autoclean",
    ):
        assert f"spec.{path}: " in told
    assert "PADDLE_*" in told
    plain = yaml.safe_load(MANIFEST)
    plain["spec"] = {"image": "train:1", "trainer": {"entrypoint": "python train.py"}}
    notes = conversion.to_elastic_job(TrainingJob.parse(plain)).notes
    assert [note.split(":")[0] for note in notes] == ["spec.port", "spec.replicaSpecs"]


def test_without_pservers_and_without_a_command() -> None:
    """Without pservers the strategy is allreduce. A note says that the command of the image is not known."""
    manifest = yaml.safe_load(MANIFEST)
    manifest["spec"] = {"image": "train:1", "suspend": True, "trainer": {}}
    found = conversion.to_elastic_job(TrainingJob.parse(manifest))
    assert found.manifest["spec"]["distributionStrategy"] == "AllreduceStrategy"
    assert found.manifest["spec"]["suspend"] is True
    assert any(note.startswith("spec.trainer.entrypoint: is empty") for note in found.notes)


def test_bounds_of_trainers_become_those_of_the_rendezvous() -> None:
    """Without pservers the trainers form a group, whose rendezvous has the bounds of the TrainingJob."""
    manifest = yaml.safe_load(MANIFEST)
    manifest["spec"] = {
        "image": "train:1",
        "trainer": {"entrypoint": "python train.py", "min-instance": 2, "max-instance": 5},
    }
    found = conversion.to_elastic_job(TrainingJob.parse(manifest))
    assert found.manifest["spec"]["rendezvous"] == {"minNodes": 2, "maxNodes": 5}
    assert not any("min-instance" in note for note in found.notes)
