"""Jobs in every version of their kind that is served: `edl_workflows.pipelines.stages.submit`."""

from typing import Any

import pytest

from edl_workflows.core.jobs import kinds
from edl_workflows.core.kubernetes.api import TF_JOBS
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster

TEMPLATE = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
NESTED: dict[str, Any] = {"runPolicy": {"cleanPodPolicy": "All", "backoffLimit": 3}}
FLAT: dict[str, Any] = {"cleanPodPolicy": "All", "backoffLimit": 3}


@pytest.mark.parametrize(
    ("version", "policies"),
    [("v1", NESTED), ("v1alpha2", FLAT), ("v1beta1", FLAT), ("v1beta2", FLAT)],
)
def test_a_tf_job_of_each_version_is_submitted_as_it_is(
    cluster: Cluster, version: str, policies: dict[str, Any]
) -> None:
    """A manifest of each version that Kubeflow has served is accepted and means the same job. Submitted
    twice, there is one job."""
    manifest = {
        "apiVersion": f"kubeflow.org/{version}",
        "kind": "TFJob",
        "metadata": {"name": "mnist"},
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 2, "template": TEMPLATE}}, **policies},
    }
    me = StageIdentity(owner="tests/submit")
    handles = [SUBMIT.begin(cluster, SubmitRequest(manifest=manifest), me) for _ in range(2)]
    job = kinds.kind_of("TFJob").model.parse(client.get(cluster, TF_JOBS, "mnist"))

    assert handles[0].uid == handles[1].uid == job.metadata.uid
    assert job.api_version == "kubeflow.org/v1"
    assert (job.spec.policies.clean_pod_policy, job.spec.policies.backoff_limit) == ("All", 3)  # type: ignore[attr-defined]  # a TFJob's


def test_a_version_that_is_not_served_is_refused_with_those_that_are(cluster: Cluster) -> None:
    """The error for a version that is not served names the versions that are."""
    manifest = {"apiVersion": "kubeflow.org/v2", "kind": "TFJob", "metadata": {"name": "mnist"}, "spec": {}}
    with pytest.raises(Exception, match=r"kubeflow\.org/v1'.*kubeflow\.org/v1beta2'"):
        SUBMIT.begin(cluster, SubmitRequest(manifest=manifest), StageIdentity(owner="tests/submit"))
