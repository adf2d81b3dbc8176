"""Which options of an installation are valid."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart

IMAGE = "registry.example/edl:1"


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"image": ""}, "image ''"),
        ({"image": "a b"}, "image 'a b'"),
        ({"namespace": ""}, "namespace ''"),
        ({"namespace": "Edl"}, "namespace 'Edl'"),
        ({"jobs_namespace": "a.b"}, "jobs namespace 'a.b'"),
        ({"jobs_namespace": "edl-system"}, "the controller's own namespace"),
        ({"replicas": 0}, "0 replicas"),
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
    with pytest.raises(InvalidError, match=complaint):
        InstallOptions(**({"image": IMAGE} | wrong))
