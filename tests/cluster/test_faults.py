"""Real faults on a real cluster while TensorFlow trains in pods: nothing is lost, and nothing is trained
twice but what was leased.

The cases of a class are done to one job, in their order: starting a job is what takes long. Its last test
lets the job come to its end and judges what it trained.
"""

import time
from collections.abc import Iterator

import pytest

from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS, MigratePsRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster
from tests.cluster.bed.bed import Bed
from tests.cluster.training import Place, PodJob, cordoned, cut, evict, place
from tests.e2e.records import all_records, consumed, evaluate, trained

pytestmark = [pytest.mark.tensorflow, pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

CUT_SECONDS = 30.0
EPOCHS = 60
DELAY = 0.4


class Disturbed:
    """A job that goes through faults, and how many records these may have had trained twice."""

    def __init__(self, here: Place, name: str) -> None:
        self.here = here
        self.job: PodJob = here.submit(name, EPOCHS, DELAY, {"ps": 1, "worker": 2})
        self.job.wait_step(5)
        self.excess = 0

    def lose(self) -> None:
        """A fault is about to happen that may lose what workers hold."""
        self.excess += self.job.held()

    def ends_well(self) -> None:
        """The job succeeds with each record of each epoch in its model, and hardly one twice."""
        self.job.training.hurry()
        self.job.wait_phase(JobPhase.SUCCEEDED)
        times = trained(self.job.training.folder)
        twice = times.total() - len(times)
        print(f"records trained twice: {twice}; at most leased: {self.excess}")
        assert set(times) == all_records(EPOCHS)
        assert twice <= self.excess
        assert evaluate(self.job.training.folder)["accuracy"] >= 0.93

    def steps_of(self, pod: str) -> int:
        """Steps that a worker's pod has made."""
        node = pod.removeprefix(f"{self.job.name}-edljob-")
        return sum(name.startswith(f"records-{node}-v") for name, *_ in consumed(self.job.training.folder))


@pytest.fixture(scope="module")
def here(
    request: pytest.FixtureRequest, bed: Bed, cluster: Cluster, module_namespace: str
) -> Iterator[Place]:
    """Two replicas of the controller for all tests here."""
    with place(request, bed, cluster.in_namespace(module_namespace), replicas=2) as running:
        yield running


@pytest.fixture(scope="class")
def disturbed(request: pytest.FixtureRequest, here: Place) -> Disturbed:
    """The job of a class, which trains."""
    return Disturbed(here, request.cls.name)


class TestWorkersAndControlPlane:
    """Faults that leave the model where it is: training never stops."""

    name = "steady"

    def test_deleted_worker_pod_is_replaced(self, disturbed: Disturbed) -> None:
        """A new pod gets the rank of the deleted worker and trains. The other worker trains in the
        meantime."""
        job = disturbed.job
        victim = job.pod(names.WORKER_TYPE, 1)
        name = victim["metadata"]["name"]
        disturbed.lose()
        begun = time.monotonic()
        job.delete_pod(victim)
        (fresh,) = set(job.await_running(names.WORKER_TYPE, 2, frozenset({name}))) - {
            job.pod(names.WORKER_TYPE)["metadata"]["name"]
        }
        print(f"worker deleted to replacement running: {time.monotonic() - begun:.1f} s")
        job.until(lambda: disturbed.steps_of(fresh), 120, f"{fresh} trains")
        print(f"worker deleted to replacement's first step: {time.monotonic() - begun:.1f} s")

    def test_network_cut_between_worker_and_master(self, disturbed: Disturbed, bed: Bed) -> None:
        """A worker that can't reach the master for 30 s stops when it has trained its shards, while the other
        one gets more. Afterwards the first one continues in its pod."""
        job = disturbed.job
        worker, master = job.pod(names.WORKER_TYPE, 1), job.pod(names.MASTER_TYPE)
        name, other = worker["metadata"]["name"], job.pod(names.WORKER_TYPE)["metadata"]["name"]
        before = disturbed.steps_of(other)
        with cut(bed, worker, master):
            begun = time.monotonic()
            # More than it held, and less than the rest of the two epochs that may be open at a time.
            job.until(lambda: disturbed.steps_of(other) > before + 20, 60, f"{other} trains on")
            time.sleep(max(0.0, begun + 2 * CUT_SECONDS / 3 - time.monotonic()))
            starved = disturbed.steps_of(name)
            time.sleep(CUT_SECONDS / 3)
            assert disturbed.steps_of(name) == starved
        job.until(lambda: disturbed.steps_of(name) > starved + 5, 60, f"{name} trains again")
        assert job.pod(names.WORKER_TYPE, 1)["metadata"]["uid"] == worker["metadata"]["uid"]

    def test_killed_api_server_is_not_noticed(self, disturbed: Disturbed, bed: Bed) -> None:
        """Training continues while the API server is down, and the status is updated when it is back."""
        job = disturbed.job
        pods = {
            pod["metadata"]["uid"] for role in (names.PS_TYPE, names.WORKER_TYPE) for pod in job.pods(role)
        }
        before = job.step
        bed.restart_apiserver()
        job.wait_step(before + 20, 120)
        assert job.get().status.master_restarts == 0
        assert pods == {
            pod["metadata"]["uid"] for role in (names.PS_TYPE, names.WORKER_TYPE) for pod in job.pods(role)
        }

    def test_killed_leader_of_the_controllers_is_succeeded(self, disturbed: Disturbed) -> None:
        """When the leader of the controllers is killed, the other replica takes over and replaces a worker
        that is killed then."""
        job, controllers = disturbed.job, disturbed.here.controllers
        leader = controllers.await_leader()
        disturbed.lose()
        begun = time.monotonic()
        controllers.kill(leader)
        victim = job.pod(names.WORKER_TYPE, 1)["metadata"]["name"]
        job.kill(victim)
        controllers.await_leader(other_than=leader)
        print(f"leader killed to next leader: {time.monotonic() - begun:.1f} s")
        job.await_running(names.WORKER_TYPE, 2, frozenset({victim}))
        job.go_on()

    def test_nothing_is_lost_in_all_this(self, disturbed: Disturbed) -> None:
        """The job that went through these faults succeeds, with one cluster version and one master."""
        disturbed.ends_well()

        assert {name.split("-v")[1][0] for name, *_ in consumed(disturbed.job.training.folder)} == {"1"}
        assert disturbed.job.get().status.master_restarts == 0


@pytest.mark.long
class TestServersMasterAndMachine:
    """Faults that take the model's servers, the master, or everything."""

    name = "tossed"

    def test_deleted_server_pod_is_replaced(self, disturbed: Disturbed) -> None:
        """A new server gets the rank of the deleted one, and training continues in a new cluster version from
        the newest checkpoint, in the same worker pods."""
        job = disturbed.job
        saved = job.until(lambda: job.get().status.checkpoint, 60, "a checkpoint")
        workers = {pod["metadata"]["uid"] for pod in job.pods(names.WORKER_TYPE)}
        victim = job.pod(names.PS_TYPE)
        disturbed.lose()
        begun = time.monotonic()
        job.delete_pod(victim)
        job.await_running(names.PS_TYPE, 1, frozenset({victim["metadata"]["name"]}))
        second = job.until(lambda: first_step(job, 2), 120, "a step in the second version")
        print(f"server deleted to first step with its replacement: {time.monotonic() - begun:.1f} s")
        assert second > saved.step
        assert workers == {pod["metadata"]["uid"] for pod in job.pods(names.WORKER_TYPE)}

    def test_deleted_master_amid_a_migration(self, disturbed: Disturbed) -> None:
        """After the master is deleted during a migration from one server to two, the next master finishes
        it."""
        job = disturbed.job
        job.go_on()
        request = MigratePsRequest(job=job.name, replicas=2)
        handle = MIGRATE_PS.begin(job.cluster, request, StageIdentity(owner="tests/cluster/migrate"))
        job.await_plan(handle.name, ScalePlanPhase.MIGRATING)
        disturbed.lose()
        job.delete_pod(job.pod(names.MASTER_TYPE))
        plan = job.await_plan(handle.name, ScalePlanPhase.SUCCEEDED, ScalePlanPhase.FAILED).status

        print(f"migration with its master deleted: stall {plan.stall_seconds} s")
        assert plan.phase is ScalePlanPhase.SUCCEEDED, plan
        assert plan.checkpoint is not None
        assert plan.resumed_step is not None
        assert plan.resumed_step > plan.checkpoint.step
        job.await_running(names.PS_TYPE, 2, frozenset())
        assert job.get().status.master_restarts == 0  # a deleted one costs none of the budget

    def test_drained_node(self, disturbed: Disturbed) -> None:
        """All pods of the job are evicted and can't be scheduled for a while. Then the job continues from a
        checkpoint."""
        job = disturbed.job
        job.go_on()
        roles = (names.WORKER_TYPE, names.PS_TYPE, names.MASTER_TYPE)
        pods = [pod for role in roles for pod in job.pods(role)]
        disturbed.lose()
        with cordoned(job.cluster):
            for pod in pods:
                evict(job.cluster, pod)
            job.until(lambda: not any(job.running(role) for role in roles), 120, "all pods have ended")
            saved = job.get().status.checkpoint
            assert saved is not None
        job.wait_phase(JobPhase.RUNNING)
        job.await_running(names.WORKER_TYPE, 2, frozenset(pod["metadata"]["name"] for pod in pods))
        job.until(lambda: first_step(job, 4) > saved.step, 180, "a step in a version after the drain")

    def test_nothing_is_lost_in_all_this(self, disturbed: Disturbed) -> None:
        """The job that went through these faults succeeds, and its model and data position agree."""
        disturbed.ends_well()

        assert disturbed.job.get().status.master_restarts == 0


def first_step(job: PodJob, version: int) -> int:
    """The first global step that was made in a cluster version or a later one; 0 if there is none."""
    steps = [
        step
        for name, _, step, _ in consumed(job.training.folder)
        if int(name.split("-v")[1].split("-")[0]) >= version
    ]
    return min(steps, default=0)
