"""What a TFJob's manifest may say: `edl_workflows.core.jobs.tf_job.model`."""

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.kubeflow import pods
from edl_workflows.core.jobs.kubeflow.model import RestartPolicy
from edl_workflows.core.jobs.tf_job.model import TFJob, TFReplicaType
from edl_workflows.core.jobs.tf_job.pods import TENSORFLOW

Manifest = dict[str, Any]
Change = Callable[[Manifest], None]


def make() -> Manifest:
    template = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
    roles = {"PS": {"replicas": 1, "template": template}, "Worker": {"replicas": 2, "template": template}}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "TFJob",
        "metadata": {"name": "mnist"},
        "spec": {"tfReplicaSpecs": copy.deepcopy(roles), "runPolicy": {}},
    }


def put(path: str, value: Any) -> Change:
    """A change of one field."""

    def change(manifest: Manifest) -> None:
        *way, last = path.split("/")
        node: Any = manifest
        for part in way:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if value is None:
            del node[last]
        else:
            node[int(last) if isinstance(node, list) else last] = value

    return change


WORKER = "spec/tfReplicaSpecs/Worker"
CONTAINER = f"{WORKER}/template/spec/containers/0"
BAD: list[Any] = [
    pytest.param(put("spec/tfReplicaSpecs", {}), "tfReplicaSpecs", id="no replicas"),
    pytest.param(put("spec/tfReplicaSpecs", None), "spec.tfReplicaSpecs", id="no map of replicas"),
    pytest.param(put("spec", None), "spec", id="no spec"),
    pytest.param(put("spec/tfReplicaSpecs/Wrker", {}), "Wrker", id="unknown type"),
    pytest.param(put(f"{WORKER}/replicas", 0), "Worker.replicas", id="zero replicas"),
    pytest.param(put(f"{WORKER}/replicas", -1), "Worker.replicas", id="negative replicas"),
    pytest.param(put(f"{WORKER}/replicas", "many"), "Worker.replicas", id="replicas no number"),
    pytest.param(put(f"{WORKER}/replicas", 10_001), "Worker.replicas", id="too many replicas"),
    pytest.param(put(f"{WORKER}/template", None), "Worker.template.spec.containers", id="no template"),
    pytest.param(put(f"{WORKER}/template/spec/containers", []), "containers", id="no container"),
    pytest.param(put(f"{CONTAINER}/image", None), "containers.0.image", id="no image"),
    pytest.param(put(f"{CONTAINER}/name", ""), "containers.0.name", id="no name"),
    pytest.param(put(f"{CONTAINER}/env", {"A": "b"}), "containers.0.env", id="env no list"),
    pytest.param(put(f"{CONTAINER}/resources", {"limits": {"cpu": "much"}}), "limits.cpu", id="no quantity"),
    pytest.param(put(f"{WORKER}/restartPolicy", "Sometimes"), "Worker.restartPolicy", id="unknown policy"),
    pytest.param(
        put(f"{WORKER}/template/spec/restartPolicy", "ExitCode"),
        "template.spec.restartPolicy",
        id="policy misplaced",
    ),
    pytest.param(put(f"{WORKER}/replica", 1), "did you mean 'replicas'", id="misspelt field"),
    pytest.param(
        put("spec/runPolicy/cleanPodPolicy", "Some"), "runPolicy.cleanPodPolicy", id="clean-up policy"
    ),
    pytest.param(put("spec/runPolicy/backoffLimit", -1), "runPolicy.backoffLimit", id="negative limit"),
    pytest.param(
        put("spec/runPolicy/activeDeadlineSeconds", "1h"), "activeDeadlineSeconds", id="deadline no number"
    ),
    pytest.param(
        put("spec/runPolicy/ttlSecondsAfterFinished", -5), "ttlSecondsAfterFinished", id="negative TTL"
    ),
    pytest.param(put("spec/runPolicy/managedBy", "me"), "runPolicy.managedBy", id="unknown manager"),
    pytest.param(
        put("spec/runPolicy/schedulingPolicy", {"minAvailable": 4}), "minAvailable", id="gang too large"
    ),
    pytest.param(put("spec/successPolicy", "Any"), "spec.successPolicy", id="unknown success policy"),
    pytest.param(put("metadata/name", "Mnist"), "metadata.name", id="capitals in the name"),
    pytest.param(put("metadata/name", "m" * 49), "metadata.name", id="name too long"),
    pytest.param(put("apiVersion", "kubeflow.org/v2"), "apiVersion", id="unknown version"),
    pytest.param(
        put("metadata/annotations", {"elastic.iml.github.io/tfjob-compat": "bugs"}),
        "'bugs' is unknown",
        id="compat",
    ),
]


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_wrong_manifest_is_refused_by_its_field(change: Change, message: str) -> None:
    """Each mistake in a manifest gives an error that names the field."""
    manifest = make()
    change(manifest)
    with pytest.raises(ManifestError, match=message):
        TFJob.parse(manifest)


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
    manifest = make()
    template = manifest["spec"]["tfReplicaSpecs"]["PS"]["template"]
    for key, replicas in extra.items():
        manifest["spec"]["tfReplicaSpecs"][key] = {"replicas": replicas, "template": template}
    with pytest.raises(ManifestError, match=message):
        TFJob.parse(manifest)


def test_both_spellings_of_the_policies_mean_the_same() -> None:
    """v1alpha2 has the policies beside the replicas, and v1 in runPolicy. Having them in both places is an
    error."""
    flat, nested = make(), make()
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
    manifest = make()
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
    job = TFJob.parse(make())
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
