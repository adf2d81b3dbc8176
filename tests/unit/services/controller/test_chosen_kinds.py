"""A controller of some kinds beside somebody else's of the others."""

from edl_workflows.core.jobs.kinds import choose_kinds
from edl_workflows.core.kubernetes.api import PODS
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.waiting.ownership import resource_of
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import RunOptions
from tests.controller_thread import run_in_thread
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import elastic_job, names_of, status_of

TF_JOBS = resource_of("TFJob")


def test_other_kinds_are_left_alone(cluster: Cluster) -> None:
    """A controller of ElasticJobs does not touch a TFJob, which gets neither pods nor a status."""
    pod = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
    tf_job = {
        "apiVersion": TF_JOBS.api_version,
        "kind": TF_JOBS.kind,
        "metadata": {"name": "kubeflows"},
        "spec": {"tfReplicaSpecs": {"Worker": {"template": pod}}},
    }
    client.create(cluster, tf_job)
    options = ManagerOptions(
        namespaces=NamespaceSelection.of(cluster.namespace), kinds=choose_kinds(("ElasticJob", "ScalePlan"))
    )
    running = run_in_thread(cluster, RunOptions(manager=options))
    try:
        assert running.wait_ready(240)
        client.create(cluster, elastic_job())
        eventually(lambda: status_of(cluster, "mnist").get("phase") == "Pending")

        assert "status" not in client.get(cluster, TF_JOBS, "kubeflows")
        pods = names_of(cluster, Scope(PODS, cluster.namespace))
        assert [name for name in pods if name.startswith("kubeflows")] == []
    finally:
        running.stop()
