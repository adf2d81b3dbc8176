"""Submitting a program with its job."""

import pytest

from edl_workflows.core.exceptions import ConflictError, InvalidError
from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions, render_job
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.kubernetes.api import CONFIG_MAPS, ELASTIC_JOBS
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from tests.airflow.support import elastic_job

PROGRAM = TrainingProgram.of_script("train.py", "print('hello')\n")
ME = StageIdentity("tests/program")


def submit(cluster: Cluster, who: StageIdentity = ME) -> Handle:
    manifest = render_job(PROGRAM, ProgramOptions(workers=1))
    return SUBMIT.begin(cluster, SubmitRequest(manifest=manifest, hint="hello", program=PROGRAM), who)


def test_submitting_twice_is_one_job_with_one_program(cluster: Cluster) -> None:
    """Submitting twice gives one job with one program, even if the first attempt died after it had created
    the job."""
    handle = submit(cluster)
    name = PROGRAM.config_map_name(handle.name)
    client.delete(cluster, CONFIG_MAPS, name)
    again = submit(cluster)
    found = client.get(cluster, CONFIG_MAPS, name)

    assert again.uid == handle.uid
    assert found["data"] == {"program.json": PROGRAM.text}
    assert found["metadata"]["ownerReferences"][0]["uid"] == handle.uid


def test_the_program_of_a_former_job_is_replaced(cluster: Cluster) -> None:
    """If a job of the same name was deleted and the garbage collector has not removed its ConfigMap yet, the
    program is replaced."""
    first = submit(cluster)
    client.delete(cluster, ELASTIC_JOBS, first.name)
    second = submit(cluster)
    found = client.get(cluster, CONFIG_MAPS, PROGRAM.config_map_name(second.name))

    assert second.uid != first.uid
    assert found["metadata"]["ownerReferences"][0]["uid"] == second.uid


def test_a_config_map_of_somebody_else_is_left_alone(cluster: Cluster) -> None:
    """If a ConfigMap of the program's name belongs to somebody else, submitting fails, and the error says
    whose it is."""
    manifest = render_job(PROGRAM, ProgramOptions(workers=1))
    name = PROGRAM.config_map_name("mine")
    client.create(cluster, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {}})
    request = SubmitRequest(manifest=manifest | {"metadata": {"name": "mine"}}, hint="hello", program=PROGRAM)
    with pytest.raises(ConflictError, match="belongs to no controller"):
        SUBMIT.begin(cluster, request, ME)


def test_only_elastic_jobs_take_programs(cluster: Cluster) -> None:
    """A program with a manifest of another kind is an error."""
    manifest = elastic_job("mnist") | {"kind": "TFJob", "apiVersion": "kubeflow.org/v1"}
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
    manifest["spec"] = {"tfReplicaSpecs": {"Worker": {"replicas": 1, "template": template}}}
    with pytest.raises(InvalidError, match="ElasticJob only"):
        SUBMIT.begin(cluster, SubmitRequest(manifest=manifest, program=PROGRAM), ME)
