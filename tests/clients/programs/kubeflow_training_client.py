"""The SDK of Kubeflow's training operator, as users of TFJobs write it."""

import os
import sys

from kubeflow.training import (
    KubeflowOrgV1ReplicaSpec,
    KubeflowOrgV1RunPolicy,
    KubeflowOrgV1TFJob,
    KubeflowOrgV1TFJobSpec,
    TrainingClient,
)
from kubernetes.client import V1Container, V1ObjectMeta, V1PodSpec, V1PodTemplateSpec

NAMESPACE = os.environ["NAMESPACE"]


def make_job(client, script, workers=1):
    container = V1Container(name="tensorflow", image="none", command=["sh", "-c", script])
    template = V1PodTemplateSpec(spec=V1PodSpec(containers=[container]))
    worker = KubeflowOrgV1ReplicaSpec(replicas=workers, restart_policy="Never", template=template)
    spec = KubeflowOrgV1TFJobSpec(
        run_policy=KubeflowOrgV1RunPolicy(clean_pod_policy="None"), tf_replica_specs={"Worker": worker}
    )
    metadata = V1ObjectMeta(name="job", namespace=NAMESPACE)
    client.create_job(KubeflowOrgV1TFJob("kubeflow.org/v1", "TFJob", metadata, spec), namespace=NAMESPACE)


def connect():
    return TrainingClient(namespace=NAMESPACE, job_kind="TFJob")


def check_a_job_succeeds():
    """A TFJob is made, waited for, asked for its conditions, and deleted."""
    client = connect()
    make_job(client, "true", workers=2)
    client.wait_for_job_conditions("job", timeout=120, polling_interval=1)

    assert client.is_job_succeeded("job")
    assert not client.is_job_failed("job")
    assert [one.metadata.name for one in client.list_jobs()] == ["job"]
    assert sorted(client.get_job_pod_names("job")) == ["job-worker-0", "job-worker-1"]
    client.delete_job("job")


def check_logs():
    """The logs of a job are read and followed."""
    client = connect()
    make_job(client, "echo one; sleep 1; echo two")
    client.wait_for_job_conditions(
        "job", expected_conditions={"Running", "Succeeded"}, timeout=120, polling_interval=1
    )
    client.get_job_logs("job", follow=True)
    logs, _ = client.get_job_logs("job")
    assert list(logs.values()) == ["one\ntwo\n"], logs


def check_a_job_fails():
    """A job that fails says so."""
    client = connect()
    make_job(client, "exit 1")
    client.wait_for_job_conditions("job", expected_conditions={"Failed"}, timeout=120, polling_interval=1)

    assert client.is_job_failed("job")


if __name__ == "__main__":
    globals()[sys.argv[1]]()
