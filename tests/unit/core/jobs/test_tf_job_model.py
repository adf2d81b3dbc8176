"""What a TFJob's manifest may say: `edl_workflows.core.jobs.tf_job.model`."""

import json
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.kubeflow import pods
from edl_workflows.core.jobs.kubeflow.model import RestartPolicy
from edl_workflows.core.jobs.tf_job.model import TFJob, TFReplicaType
from edl_workflows.core.jobs.tf_job.pods import TENSORFLOW
from tests.cases.kinds.tf_job import make_tf_job


@pytest.mark.parametrize(
    ("extra", "message"),
    [
        ({"Chief": 1, "Master": 1}, "is Chief once more"),
        ({"worker": 1}, "is Worker once more"),
        ({"Chief": 2}, "a job has one Chief"),
        ({"Evaluator": 2}, "a job has one Evaluator"),
    ],
)
def test_which_types_go_together(extra: dict[str, int], message: str) -> None:
    """A job has at most one chief (Chief or Master) and one evaluator, and each type only once."""
    manifest = make_tf_job()
    template = manifest["spec"]["tfReplicaSpecs"]["PS"]["template"]
    for key, replicas in extra.items():
        manifest["spec"]["tfReplicaSpecs"][key] = {"replicas": replicas, "template": template}
    with pytest.raises(ManifestError, match=message):
        TFJob.parse(manifest)


def test_both_spellings_of_the_policies_mean_the_same() -> None:
    """v1alpha2 has the policies beside the replicas, and v1 in runPolicy. Having them in both places is an
    error."""
    flat, nested = make_tf_job(), make_tf_job()
    flat["apiVersion"] = "kubeflow.org/v1alpha2"
    flat["spec"] |= {"cleanPodPolicy": "All", "backoffLimit": 3}
    nested["spec"]["runPolicy"] = {"cleanPodPolicy": "All", "backoffLimit": 3}
    assert TFJob.parse(flat).spec.policies == TFJob.parse(nested).spec.policies
    nested["spec"]["backoffLimit"] = 2
    with pytest.raises(ManifestError, match=r"backoffLimit: stands in runPolicy\.backoffLimit, too"):
        TFJob.parse(nested)


def test_spellings_of_types_and_defaults() -> None:
    """The names of replica types may have any case, as upstream allows. The defaults are one replica and the
    template's restart policy, or else Never."""
    manifest = make_tf_job()
    template = manifest["spec"]["tfReplicaSpecs"]["PS"]["template"]
    on_failure = {"spec": template["spec"] | {"restartPolicy": "OnFailure"}}
    manifest["spec"]["tfReplicaSpecs"] = {"ps": {"template": on_failure}, "Eval": {"template": template}}
    replicas = TFJob.parse(manifest).spec.replicas
    assert list(replicas) == [TFReplicaType.PS, TFReplicaType.EVALUATOR]
    assert [spec.policy for spec in replicas.values()] == [RestartPolicy.ON_FAILURE, RestartPolicy.NEVER]
    assert replicas[TFReplicaType.PS].replicas == 1


def test_addresses_in_a_cluster_with_a_domain_of_its_own() -> None:
    """Each address in TF_CONFIG ends with the installation's cluster domain. Changing the domain restarts no
    running job."""
    job = TFJob.parse(make_tf_job())
    plain = json.loads(
        config_of(pods.make_pod(TENSORFLOW, job, TFReplicaType.WORKER, 0, InstallationSettings()))
    )
    named = pods.make_pod(
        TENSORFLOW, job, TFReplicaType.WORKER, 0, InstallationSettings(tf_cluster_domain="corp.example")
    )
    cluster = json.loads(config_of(named))["cluster"]

    assert cluster == {
        role: [address.replace(".svc:", ".svc.corp.example:") for address in addresses]
        for role, addresses in plain["cluster"].items()
    }
    assert (
        named["metadata"]["labels"]
        == pods.make_pod(TENSORFLOW, job, TFReplicaType.WORKER, 0, InstallationSettings())["metadata"][
            "labels"
        ]
    )


def config_of(pod: dict[str, Any]) -> str:
    """The pod's TF_CONFIG."""
    (found,) = [v["value"] for v in pod["spec"]["containers"][0]["env"] if v["name"] == "TF_CONFIG"]
    return str(found)
