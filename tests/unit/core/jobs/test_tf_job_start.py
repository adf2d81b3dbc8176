"""What a TFJob creates, and what each replica is told of the others."""

import pytest

from tests.cases.kinds.tf_job import make_tf_job
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.tf_jobs import NAME, Job


def test_a_pod_and_a_service_a_replica() -> None:
    """Each replica has a pod and a headless service with a stable name from 0, owned by the job, which is
    Created."""
    job = Job(PS=2, Worker=2)
    assert job.pods == job.services == ["ps-0", "ps-1", "worker-0", "worker-1"]
    assert job.world.objects["Service", "mnist-ps-0"]["spec"]["clusterIP"] == "None"
    assert job.pod("worker-0")["metadata"]["ownerReferences"][0]["kind"] == "TFJob"
    assert job.pod("worker-0")["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"
    assert "training.kubeflow.org/job-role" not in job.pod("worker-1")["metadata"]["labels"]
    assert job.phase == "Created"
    assert job.true_conditions() == ["Created"]


def test_each_replica_is_told_of_the_cluster() -> None:
    """TF_CONFIG has addresses by type and the replica's own task. The evaluator is not part of the
    cluster."""
    job = Job(Chief=1, PS=1, Worker=1, Evaluator=1)
    cluster = {kind: [f"mnist-{kind}-0.default.svc:2222"] for kind in ("chief", "ps", "worker")}
    task = {"type": "evaluator", "index": 0}
    assert job.config("evaluator-0") == {"cluster": cluster, "task": task, "environment": "cloud"}
    assert job.config("ps-0")["task"] == {"type": "ps", "index": 0}


def test_a_single_replica_trains_alone() -> None:
    """A job with one replica gets no TF_CONFIG."""
    job = Job(Worker=1)
    assert "env" not in job.pod("worker-0")["spec"]["containers"][0]


@pytest.mark.parametrize(("compat", "key"), [("", "cluster"), ("sparse-cluster-key", "sparseCluster")])
def test_a_dynamic_worker_knows_itself_and_the_servers(compat: str, key: str) -> None:
    """With enableDynamicWorker, TF_CONFIG of a worker lists no other workers, so that workers may be added
    and removed."""
    job = Job({"enableDynamicWorker": True}, PS=1, Worker=2, Chief=1, compat=compat)
    servers = ["mnist-ps-0.default.svc:2222"]
    assert job.config("worker-1")[key] == {"worker": {"1": "mnist-worker-1.default.svc:2222"}, "ps": servers}
    assert job.config("chief-0")[key]["chief"] == ["mnist-chief-0.default.svc:2222"]
    job.set(chief_0="Running", ps_0="Running", worker_0="Running", worker_1="Running")
    job.edit(tfReplicaSpecs={"Worker": {"replicas": 3}})
    assert "worker-2" in job.pods
    assert job.phase == "Running"
    job.edit(tfReplicaSpecs={"Worker": {"replicas": 1}})
    job.settle()
    assert [p for p in job.pods if p.startswith("worker")] == ["worker-0"]
    assert [s for s in job.services if s.startswith("worker")] == ["worker-0"]


def test_a_foreign_object_of_our_name_is_told() -> None:
    """If a pod that belongs to someone else has the name of a replica, the job's reason is NameConflict and
    no pod is created."""
    world = JobsNamespace()
    container = {"name": "x", "image": "y"}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "mnist-worker-1", "labels": {}}}
    world.add(pod | {"spec": {"containers": [container]}})
    world.add(make_tf_job(Worker=2))
    world.settle()
    status = world.objects["TFJob", NAME]["status"]
    assert status["reason"] == "NameConflict"
    assert "mnist-worker-1" in status["message"]
    assert sum(kind == "Pod" for kind, _ in world.objects) == 1


def test_a_job_that_another_cluster_runs_is_left_alone() -> None:
    """A job whose managedBy is MultiKueue is left alone."""
    world = JobsNamespace()
    world.add(make_tf_job(policies={"managedBy": "kueue.x-k8s.io/multikueue"}))
    world.settle()
    assert len(world.objects) == 1


def test_lost_pods_and_services_come_back() -> None:
    """Pods and services that disappear while the job runs are created again under the same names."""
    job = Job(PS=1, Worker=2)
    job.set(ps_0="Running", worker_0="Running", worker_1="Running")
    del job.world.objects["Service", "mnist-ps-0"]
    del job.world.objects["Pod", "mnist-worker-1"]
    job.settle()
    assert job.pods == job.services == ["ps-0", "worker-0", "worker-1"]
