"""Which options of an installation are valid."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import EdlError
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart

IMAGE = "registry.example/edl:1"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"image": ""}, "image ''"),
        ({"image": "a b"}, "image 'a b'"),
        ({"namespace": ""}, "namespace ''"),
        ({"namespace": "Edl"}, "namespace 'Edl'"),
        ({"jobs_namespaces": NamespaceSelection.of("edl-system")}, "the controller's own namespace"),
        ({"jobs_namespaces": NamespaceSelection(("a", "edl-system"))}, "the controller's own namespace"),
        ({"jobs_namespaces": NamespaceSelection(("a", "b")), "autoscaler": True}, "the autoscaler needs"),
        ({"replicas": 0}, "0 replicas"),
        ({"replicas": 10}, "10 replicas: choose 1 to 9"),
        (
            {"progress_writes_per_second": 0.0},
            "0 progress writes per second: choose a number of at least 0.001",
        ),
        ({"progress_writes_per_second": float("nan")}, "nan progress writes"),
        ({"ttl_seconds_after_finished": -1}, "-1 seconds after which a finished job is deleted"),
        ({"pod_template": {"spec": {"containers": [{}]}}}, r"spec.containers.0.name: required"),
        ({"master_template": {"spec": {"containers": [{}]}}}, "pod template of masters"),
        ({"training_template": {"spec": {"containers": [{}]}}}, "pod template of training pods"),
        ({"controller_partitions": 17}, "17 controller partitions: choose 1 to 16"),
        ({"pull_secrets": ("a/b",)}, "pull secret 'a/b'"),
        ({"parts": {InstallPart.BRAIN}, "brain_database_secret": "A"}, "brain database secret 'A'"),
        ({"brain_database_secret": "a"}, "--with brain"),
        ({"parts": {InstallPart.DI_SERVER}}, "the DI server is for DIJobs"),
        ({"other_operators": ("kubeflow",)}, "name its ServiceAccount as namespace:name"),
        ({"other_operators": ("kubeflow:a' || 'b",)}, "other operator"),
        ({"parts": {InstallPart.BRAIN}, "kinds": ("TFJob",)}, "Brain is for ElasticJobs"),
    ],
)
def test_wrong_options_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    """A value that no cluster would accept is rejected with its name."""
    with pytest.raises(EdlError, match=complaint):
        InstallOptions(**({"image": IMAGE} | wrong))
