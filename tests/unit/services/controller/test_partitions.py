"""Controllers that share the jobs, in one process, against the embedded API server."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.jobs.kinds import choose_kinds
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.partitions import owner_of
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import LEASES, PODS, Scope
from edl_workflows.runtime.process.leader import Election, LeadershipLostError
from edl_workflows.runtime.process.partition import CLUSTER_WIDE, Partition
from edl_workflows.services.controller import manager
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import ObservedCluster
from edl_workflows.services.controller.run import RunOptions
from tests.controller_thread import RunningController, run_in_thread
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import elastic_job, status_of

pytestmark = pytest.mark.slow

JOBS = 12


@dataclass
class Replicas:
    """Controllers that share the jobs of a namespace.

    Attributes:
        cluster: the API server.
        running: by identity.
    """

    cluster: Cluster
    running: dict[str, RunningController] = field(default_factory=dict)

    def start(self, identity: str) -> RunningController:
        """Start one, and wait until it acts on its partition."""
        namespace = self.cluster.namespace
        election = Election(namespace, identity=identity, retry_seconds=0.2)
        kinds = choose_kinds(("ElasticJob", "ScalePlan"))
        options = ManagerOptions(NamespaceSelection.of(namespace), 2, kinds=kinds, partitions=2)
        self.running[identity] = run_in_thread(self.cluster, RunOptions(manager=options, election=election))
        assert self.running[identity].wait_ready(240)
        return self.running[identity]

    def create_jobs(self, name: str) -> list[str]:
        """Create jobs, and wait until they have their masters. Return their names."""
        jobs = [f"{name}-{index}" for index in range(JOBS)]
        for job in jobs:
            client.create(self.cluster, elastic_job(job))
        eventually(lambda: all(status_of(self.cluster, job).get("phase") == "Pending" for job in jobs))
        return jobs

    def count_decisions(self, identity: str) -> float:
        """The number of decisions about jobs that a replica has made."""
        registry = self.running[identity].controller.metrics.registry
        labels = {"kind": "ElasticJob", "result": "success"}
        return registry.get_sample_value("edl_controller_reconcile_total", labels) or 0.0


@pytest.fixture
def replicas(cluster: Cluster) -> Iterator[Replicas]:
    """None yet."""
    made = Replicas(cluster)
    yield made
    for running in made.running.values():
        running.stop()


def test_replicas_share_the_jobs_and_take_over(replicas: Replicas, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second replica gets a partition of the jobs. A replica that can no longer renew its Lease ends, and
    the other one reconciles all jobs, as soon as the Lease has expired."""
    lost = replicas.start("one")
    replicas.create_jobs("early")
    replicas.start("two")
    before = replicas.count_decisions("one"), replicas.count_decisions("two")
    jobs = replicas.create_jobs("both")
    assert {owner_of(f"{replicas.cluster.namespace}/{job}", (0, 1)) for job in jobs} == {0, 1}
    assert replicas.count_decisions("one") > before[0]
    assert replicas.count_decisions("two") > before[1]
    elector = lost.controller._process._elector
    assert elector is not None
    monkeypatch.setattr(elector, "attempt", lambda: False)
    eventually(lambda: isinstance(lost.error, LeadershipLostError))

    replicas.create_jobs("late")
    holders = [
        client.get(replicas.cluster, LEASES, name)["spec"]["holderIdentity"]
        for name in ("edl-controller", "edl-controller-1")
    ]
    assert holders == ["one", "two"], "nobody has taken the slot of the lost replica"


def test_a_controller_of_an_older_version_is_waited_for(replicas: Replicas) -> None:
    """A replica acts on no job while a controller without partitions holds its Lease, since that one acts on
    all of them. When its Lease has expired, the replica acts on all jobs."""
    spec = {"holderIdentity": "old", "leaseDurationSeconds": 2}
    lease = {
        "apiVersion": LEASES.api_version,
        "kind": LEASES.kind,
        "metadata": {"name": "edl-controller"},
        "spec": spec,
    }
    lease = client.create(replicas.cluster, lease)
    client.create(replicas.cluster, elastic_job("early"))
    replicas.start("new")

    taken = client.get(replicas.cluster, LEASES, "edl-controller-1")
    assert taken["spec"]["holderIdentity"] == "new"
    eventually(lambda: status_of(replicas.cluster, "early").get("phase") == "Pending")


class GivenUpPartition(Partition):
    """One that loses its jobs between the moments when they are queued and when a worker takes them."""

    def owns(self, key: str) -> bool:
        """Whether it was owned when it was queued."""
        return True


class WatchedPartition(Partition):
    """One that notes what workers take from the queue."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: set[str] = set()

    @contextmanager
    def acting(self, key: str) -> Iterator[bool]:
        """Note the key."""
        self.taken.add(key)
        with super().acting(key) as owned:
            yield owned


def run_until_idle(cluster: Cluster, partition: Partition) -> tuple[set[str], set[str]]:
    """Run a manager with the first of two partitions over new jobs, until it has done its work. Return its
    jobs, and those of the other partition."""
    groups = {f"job-{index}": f"{cluster.namespace}/job-{index}" for index in range(JOBS)}
    for job in groups:
        client.create(cluster, elastic_job(job))
    partition.begin(0, frozenset({0, 1}))
    own = {job for job, group in groups.items() if owner_of(group, (0, 1)) == 0}
    options = ManagerOptions(
        NamespaceSelection.of(cluster.namespace),
        2,
        kinds=choose_kinds(("ElasticJob", "ScalePlan")),
        partitions=2,
    )
    replica = Manager(cluster, options, ControllerMetrics(), lambda: None, partition)
    replica.start()
    try:
        eventually(lambda: all(status_of(cluster, job).get("phase") == "Pending" for job in own))
        eventually(lambda: replica.idle)
    finally:
        replica.stop()
    return own, groups.keys() - own


@pytest.mark.parametrize("partition", [Partition, GivenUpPartition])
def test_a_manager_leaves_the_jobs_of_others_alone(cluster: Cluster, partition: type[Partition]) -> None:
    """Jobs of another replica get neither a status nor a master, even if they were queued before this one
    gave them up."""
    own, foreign = run_until_idle(cluster, partition())

    assert own
    assert [job for job in foreign if status_of(cluster, job)] == []
    pods = client.list_objects(cluster, Scope(PODS, cluster.namespace)).items
    assert {pod["metadata"]["labels"][names.JOB_LABEL] for pod in pods} == own


def test_a_manager_queues_its_own_jobs_only(cluster: Cluster) -> None:
    """Changes of the jobs of other replicas cost a worker nothing."""
    partition = WatchedPartition()
    own, _foreign = run_until_idle(cluster, partition)

    assert partition.taken - {CLUSTER_WIDE} == {f"{cluster.namespace}/{job}" for job in own}


def test_a_failed_take_over_backs_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the lists of a take-over fail, not every renewal of the Lease repeats them."""
    partition = Partition()
    partition.begin(0, frozenset({0, 1}))
    cluster = Cluster(None, "ns", "key")
    lists: list[bool] = []

    def fail(_world: ObservedCluster) -> None:
        lists.append(True)
        raise UnavailableError("overloaded")

    monkeypatch.setattr(ObservedCluster, "refresh", fail)
    monkeypatch.setattr(manager, "TAKE_OVER_BACKOFF", Backoff(first=3600.0, most=3600.0))
    replica = Manager(
        cluster,
        ManagerOptions(NamespaceSelection.of("ns"), partitions=2),
        ControllerMetrics(),
        lambda: None,
        partition,
    )
    partition.observe(frozenset({0}))
    with pytest.raises(UnavailableError):
        replica._take_over(True)

    assert replica._take_over(True) is None
    assert lists == [True]
    monkeypatch.setattr(replica, "_take_over_due", 0.0)
    with pytest.raises(UnavailableError):
        replica._take_over(True)
