"""A PyTorchJob's life, row by row: what its pods are told, how it ends, how it is scaled."""

from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import RoleChange
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.pytorch_job.kind import elastic_role, to_elastic_job
from edl_workflows.core.jobs.pytorch_job.model import PyTorchJob
from tests.cases.kinds.pytorch_job import make_pytorch_job
from tests.jobs_namespace import JobsNamespace

NAME = "mnist"
MASTER = f"{NAME}-master-0.default.svc"


class TorchWorld:
    """One job in a world of its own."""

    def __init__(self, spec: dict[str, Any] | None = None, **kwargs: Any) -> None:
        manifest = make_pytorch_job(**kwargs)
        manifest["spec"] |= spec or {}
        self.namespace = JobsNamespace()
        self.namespace.add(manifest)
        self.namespace.settle()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.namespace.objects["PyTorchJob", NAME]["status"]
        return found

    @property
    def pods(self) -> dict[str, dict[str, Any]]:
        """By name without the job's."""
        found = {name: obj for (kind, name), obj in self.namespace.objects.items() if kind == "Pod"}
        return {name.removeprefix(f"{NAME}-"): pod for name, pod in found.items()}

    @property
    def uids(self) -> dict[str, str]:
        return {name: pod["metadata"]["uid"] for name, pod in self.pods.items()}

    def env(self, pod: str, container: int = 0) -> dict[str, str]:
        """What a container of a pod is told."""
        variables = self.pods[pod]["spec"]["containers"][container]["env"]
        return {variable["name"]: variable["value"] for variable in variables}

    def set(self, **phases: Any) -> None:
        """Pods' phases, as ``worker_0="Running"`` or ``worker_0=("Failed", 137)``, and what the controller
        makes of it.
        """
        for short, value in phases.items():
            phase, code = value if isinstance(value, tuple) else (value, None)
            name = f"{NAME}-{short.replace('_', '-')}"
            self.namespace.set_pod(name, phase, 0 if phase == "Succeeded" else code)
        self.namespace.settle()

    def scale(self, workers: int) -> None:
        """Ask for so many workers, and let deleted pods go."""
        spec = {"pytorchReplicaSpecs": {"Worker": {"replicas": workers}}}
        self.namespace.edit("PyTorchJob", NAME, {"spec": spec})
        for _ in range(3):
            self.namespace.settle()
            self.namespace.reap()
        self.namespace.settle()


def test_a_master_and_workers_are_told_of_each_other() -> None:
    """Pods have the variables of torch.distributed and torchrun that upstream sets: the master has rank 0,
    worker n has rank n + 1, and WORLD_SIZE counts processes."""
    world = TorchWorld({"nprocPerNode": "2"}, Master=1, Worker=2)
    common = {
        "PYTHONUNBUFFERED": "1",
        "MASTER_ADDR": MASTER,
        "MASTER_PORT": "23456",
        "WORLD_SIZE": "6",
        "PET_MASTER_ADDR": MASTER,
        "PET_MASTER_PORT": "23456",
        "PET_NPROC_PER_NODE": "2",
        "PET_NNODES": "3",
    }

    for pod, rank in (("master-0", "0"), ("worker-0", "1"), ("worker-1", "2")):
        assert world.env(pod) == common | {"RANK": rank, "PET_NODE_RANK": rank}


def test_an_elastic_job_is_told_where_to_meet() -> None:
    """Each field of elasticPolicy becomes torchrun's variable, and the rendezvous endpoint is worker 0."""
    policy = {
        "minReplicas": 1,
        "maxReplicas": 3,
        "rdzvBackend": "c10d",
        "rdzvId": "mine",
        "rdzvConf": [{"key": "timeout", "value": "900"}, {"key": "read_timeout", "value": "60"}],
        "nProcPerNode": 4,
        "maxRestarts": 10,
        "standalone": True,
    }

    assert TorchWorld(Worker=2, elastic=policy).env("worker-1") == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "4",
        "PET_NNODES": "1:3",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": f"{NAME}-worker-0.default.svc:23456",
        "PET_RDZV_ID": "mine",
        "PET_RDZV_CONF": "timeout=900,read_timeout=60",
        "PET_MAX_RESTARTS": "10",
        "PET_STANDALONE": "1",
    }


def test_the_least_that_an_elastic_job_is_told() -> None:
    """Options that elasticPolicy leaves out get no variable, apart from the backend and the processes per
    node. Host and port of the rendezvous may be the user's own."""
    told = TorchWorld(Worker=2, elastic={"rdzvHost": "etcd", "rdzvPort": 2379}).env("worker-0")

    assert told == {
        "PYTHONUNBUFFERED": "1",
        "PET_NPROC_PER_NODE": "auto",
        "PET_NNODES": "2:2",
        "PET_RDZV_BACKEND": "c10d",
        "PET_RDZV_ENDPOINT": "etcd:2379",
    }


def test_a_port_and_variables_of_the_users_own() -> None:
    """A port of the master's container becomes MASTER_PORT and the port of its service. Other variables of
    the user stay, and sidecar containers get the same variables."""
    manifest = make_pytorch_job(Master=1)
    main = manifest["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]["containers"]
    main[0] |= {
        "ports": [{"name": "pytorchjob-port", "containerPort": 29500}],
        "env": [{"name": "RANK", "value": "7"}, {"name": "DATA", "value": "/data"}],
    }
    main.append({"name": "logs", "image": "logs:1"})
    world = TorchWorld(manifest["spec"])
    service = world.namespace.objects["Service", f"{NAME}-master-0"]

    assert world.env("master-0")["MASTER_PORT"] == "29500"
    assert (world.env("master-0")["RANK"], world.env("master-0")["DATA"]) == ("0", "/data")
    assert world.env("master-0", 1)["MASTER_PORT"] == "29500"
    assert [port["port"] for port in service["spec"]["ports"]] == [29500]


ENDS: list[Any] = [
    pytest.param({"Master": 1, "Worker": 1}, {"master_0": "Succeeded"}, "Succeeded", id="the master decides"),
    pytest.param(
        {"Master": 1, "Worker": 1},
        {"master_0": "Running", "worker_0": "Succeeded"},
        "Running",
        id="and no worker",
    ),
    pytest.param({"Worker": 2}, {"worker_0": "Succeeded"}, "Running", id="without one not the first worker"),
    pytest.param(
        {"Worker": 2}, {"worker_0": "Succeeded", "worker_1": "Succeeded"}, "Succeeded", id="but all workers"
    ),
    pytest.param(
        {"Master": 1, "Worker": (1, "Never")},
        {"worker_0": ("Failed", 137)},
        "Failed",
        id="Never fails the job",
    ),
    pytest.param(
        {"Master": 1, "Worker": (1, "ExitCode")}, {"worker_0": ("Failed", 1)}, "Failed", id="permanent code"
    ),
    pytest.param(
        {"Master": 1, "Worker": (1, "ExitCode")},
        {"worker_0": ("Failed", 143)},
        "Running",
        id="a transient code replaces the pod",
    ),
]


@pytest.mark.parametrize(("types", "phases", "phase"), ENDS)
def test_how_a_job_ends(types: dict[str, Any], phases: dict[str, Any], phase: str) -> None:
    """With a master, its success ends the job; without one, the success of all workers does. Failures follow
    the restart policy."""
    world = TorchWorld(**types)
    world.set(**{name.replace("-", "_"): "Running" for name in world.pods})
    assert world.status["phase"] == "Running"
    world.set(**phases)

    assert world.status["phase"] == phase
    assert set(world.status["replicaStatuses"]) == set(types)


def test_other_numbers_of_workers_restart_a_job_without_a_policy() -> None:
    """Pods get WORLD_SIZE at their start only, so a change of the number of workers creates all pods again.
    With the annotation, old pods stay with the old WORLD_SIZE, as upstream."""
    world, static = (TorchWorld(Master=1, Worker=2, compat=compat) for compat in ("", "static-cluster"))
    before, kept = world.uids, static.uids
    world.scale(3)
    static.scale(3)

    assert {world.env(pod)["WORLD_SIZE"] for pod in world.pods} == {"4"}
    assert not set(world.uids.values()) & set(before.values())
    assert kept.items() < static.uids.items()


def test_workers_of_an_elastic_job_come_and_go() -> None:
    """If workers are added, the present ones are not restarted: torchrun forms the new group. Surplus workers
    are deleted, highest index first."""
    world = TorchWorld(Worker=2, elastic={"minReplicas": 1, "maxReplicas": 4})
    world.set(worker_0="Running", worker_1="Running")
    before = world.uids
    world.scale(4)
    assert before.items() < world.uids.items()
    assert len(world.pods) == 4
    world.scale(1)

    assert world.uids == {"worker-0": before["worker-0"]}
    assert world.status["phase"] == "Running"


def test_scaling_stays_within_the_policys_bounds() -> None:
    """`edl scale` rejects a number of workers outside the bounds of elasticPolicy, and says which are
    possible."""
    kind = kind_of("PyTorchJob")
    manifest = make_pytorch_job(Worker=2, elastic={"minReplicas": 1, "maxReplicas": 4})
    manifest["metadata"] |= {"uid": "u", "namespace": "default"}
    edit = kind.rescale(manifest, {"worker": RoleChange(4)})

    assert (edit.spec, edit.nodes) == ({"pytorchReplicaSpecs": {"Worker": {"replicas": 4}}}, 4)
    with pytest.raises(ManifestError, match="must be from 1 to 4"):
        kind.rescale(manifest, {"worker": RoleChange(5)})


def test_what_an_autoscaler_may_change() -> None:
    """An autoscaler may change the workers of an elastic job within its bounds, until one has succeeded, and
    nothing of other jobs."""
    manifest = make_pytorch_job(Worker=2, elastic={"minReplicas": 1, "maxReplicas": 4})
    found = elastic_role(PyTorchJob.parse(manifest))
    assert found is not None
    assert (found.role, found.minimum, found.maximum, found.replicas) == ("worker", 1, 4, 2)

    manifest["status"] = {"replicaStatuses": {"Worker": {"completed": [1]}}}
    assert elastic_role(PyTorchJob.parse(manifest)) is None
    assert elastic_role(PyTorchJob.parse(make_pytorch_job())) is None


def test_an_elastic_job_becomes_an_elasticjob() -> None:
    """Master and workers become workers, and the bounds of elasticPolicy those of the rendezvous. Notes name
    what has no equivalent."""
    policy = {"minReplicas": 1, "maxReplicas": 3, "rdzvBackend": "c10d"}
    converted = to_elastic_job(PyTorchJob.parse(make_pytorch_job(Master=1, Worker=2, elastic=policy)))
    spec = converted.manifest["spec"]

    assert spec["distributionStrategy"] == "AllreduceStrategy"
    assert spec["rendezvous"] == {"minNodes": 2, "maxNodes": 4}
    assert {role: one["replicas"] for role, one in spec["replicaSpecs"].items()} == {"worker": 3}
    assert "spec.elasticPolicy.rdzvBackend: an ElasticJob has no such setting" in converted.notes
    kind_of("ElasticJob").model.parse(converted.manifest)


def test_a_job_that_training_operator_finished_is_final() -> None:
    """If the conditions say that training-operator finished the job, the phase is added and nothing is
    created."""
    ended = {"type": "Succeeded", "status": "True", "reason": "PyTorchJobSucceeded", "message": "done"}
    namespace = JobsNamespace()
    namespace.add({**make_pytorch_job(), "status": {"conditions": [ended]}})
    namespace.settle()

    assert namespace.objects["PyTorchJob", NAME]["status"]["phase"] == "Succeeded"
    assert not [name for kind, name in namespace.objects if kind in ("Pod", "Service")]


def test_a_suspended_job_has_no_pods() -> None:
    """A suspended job gets its pods when it is resumed."""
    world = TorchWorld(Master=1, Worker=1, policies={"suspend": True})
    assert (world.pods, world.status["phase"]) == ({}, "Suspended")
    world.namespace.edit("PyTorchJob", NAME, {"spec": {"runPolicy": {"suspend": False}}})
    world.namespace.settle()

    assert sorted(world.pods) == ["master-0", "worker-0"]


def test_a_gang() -> None:
    """A job with a scheduling policy gets a PodGroup whose ``minMember`` is the number of all replicas, and
    its pods have the scheduler Volcano."""
    world = TorchWorld(Master=1, Worker=2, policies={"schedulingPolicy": {"queue": "gpu"}})
    group = world.namespace.objects["PodGroup", NAME]

    assert group["spec"] == {"minMember": 3, "queue": "gpu"}
    assert {pod["spec"]["schedulerName"] for pod in world.pods.values()} == {"volcano"}
