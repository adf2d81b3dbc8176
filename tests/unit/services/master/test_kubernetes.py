"""The master's two adapters to a cluster, against the embedded API server."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edl_workflows.core.exceptions import (
    AlreadyExistsError,
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.scale_plan.model import ScalePlanSpec
from edl_workflows.core.kubernetes import lost_pods, names, pod_state
from edl_workflows.pipelines.install.crds import crd_of_kind
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.services.master import kubernetes
from edl_workflows.services.master.brain import BrainAccess
from edl_workflows.services.master.kubernetes import ClusterWatch, KubernetesBackend, observe_pod, read_job
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.server import JobAccess, StatePlaces, store_of
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.job import JobState, MachineLoss
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode
from edl_workflows.services.master.state.observations import ObservedPod, PodPhase
from edl_workflows.services.master.state.rollouts.rollout import start_rollout
from edl_workflows.services.master.state.settings import Timeouts, settings_of
from edl_workflows.services.master.stores.config_maps import ConfigMapStore
from edl_workflows.services.master.stores.file import FileStore
from edl_workflows.services.master.stores.port import StateStore
from tests import local_cluster
from tests.unit.services.master.served_master import GatedStore

NODES = {
    ("worker", 3): JobNode("worker", 3, 1, 0.0, why="worker-2 ran out of memory"),
    ("ps", 0): JobNode("ps", 0, 0, 0.0),
}
PLAN = PodRequest(1, create=(("worker", 3),), remove=(("ps", 0),))


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """An API server that knows our kinds, without a controller."""
    with local_cluster.cluster(tmp_path_factory.mktemp("cluster")) as running:
        handle = running.client()
        for kind in KINDS:
            with contextlib.suppress(AlreadyExistsError):
                client.create(handle, crd_of_kind(kind))
        yield handle


@pytest.fixture
def job(cluster: Cluster, request: pytest.FixtureRequest) -> ElasticJob:
    """A job of its own for each test."""
    name = f"job-{abs(hash(request.node.name)) % 10**8}"
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    roles = {role: {"replicas": 1, "template": template} for role in ("ps", "worker")}
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": roles},
    }
    _eventually(lambda: _created(cluster, manifest))
    return read_job(cluster, name)


def _created(cluster: Cluster, manifest: dict[str, Any]) -> bool:
    try:
        client.create(cluster, manifest)
    except NotFoundError:
        return False  # the definition is not served yet
    return True


def _eventually(condition: Callable[[], bool], seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _state_map(cluster: Cluster, job: ElasticJob) -> str:
    name = names.state_config_map_name(job.metadata.name)
    client.create(cluster, {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
    return name


def test_the_state_survives_in_a_config_map(cluster: Cluster, job: ElasticJob) -> None:
    """A new master loads what was saved. Labels that someone else adds do not matter."""
    name = _state_map(cluster, job)
    store = ConfigMapStore(cluster, job.metadata.name)
    assert store.load() is None
    store.save(b"one")
    client.patch(cluster, resources.CONFIG_MAPS, name, {"metadata": {"labels": {"by": "somebody"}}})
    store.save(b"two")
    assert ConfigMapStore(cluster, job.metadata.name).load() == b"two"


def test_each_job_has_its_own_folder_on_a_volume(cluster: Cluster, job: ElasticJob, tmp_path: Path) -> None:
    """Jobs of several namespaces may share a volume, and a job of the same name later begins anew."""
    _state_map(cluster, job)
    access = JobAccess(job.metadata.name, "token", Timeouts(), state=StatePlaces(tmp_path))
    store = store_of(cluster, job, access)
    assert store.load() is None
    store.save(b"one")

    assert store_of(cluster, job, access).load() == b"one"
    folder = tmp_path / "default" / f"{job.metadata.name}-{job.metadata.uid}"
    assert store.place == f"{folder}/state.*"


def test_the_masters_of_a_job_may_share_a_brain(cluster: Cluster, job: ElasticJob) -> None:
    """The state there is that of the job's object. An address that is none is refused."""
    asked: list[str] = []

    def reach(url: str) -> BrainAccess:
        asked.append(url)
        return BrainAccess(url)

    def store_in(url: str) -> StateStore:
        state = StatePlaces(brain=url)
        return store_of(cluster, job, JobAccess(job.metadata.name, "token", Timeouts(), reach, state))

    place = store_in("http://brain:8082").place
    assert place == f"Brain at http://brain:8082, job default/{job.metadata.name} with uid {job.metadata.uid}"
    assert asked == ["http://brain:8082"]
    with pytest.raises(InvalidError, match="'http://brain:port' is no address of a Brain"):
        store_in("http://brain:port")


def test_a_second_master_fences_the_first(cluster: Cluster, job: ElasticJob) -> None:
    """Of two masters, the one that started last goes on, and the other fails to save, whichever saves first:
    an earlier master on a machine that has only lost its kubelet still runs and reaches the API server."""
    _state_map(cluster, job)
    first, second = (ConfigMapStore(cluster, job.metadata.name) for _ in range(2))
    first.load()
    first.save(b"first")
    assert second.load() == b"first"
    with pytest.raises(ConflictError, match="another master"):
        first.save(b"again")
    second.save(b"second")
    assert ConfigMapStore(cluster, job.metadata.name).load() == b"second"


@pytest.mark.parametrize(
    ("error", "deleted"), [(NotFoundError, True), (ForbiddenError, True), (UnavailableError, False)]
)
def test_job_whose_definition_or_rights_are_gone_is_deleted(
    cluster: Cluster, job: ElasticJob, monkeypatch: pytest.MonkeyPatch, error: type[EdlError], deleted: bool
) -> None:
    """A master that is told to end takes both for the job's deletion, and serves until the last checkpoint
    is made; an API server that does not answer shows nothing."""

    def fail(*_: object) -> None:
        raise error("no")

    backend = KubernetesBackend(cluster, job)
    assert not backend.is_job_deleted()
    monkeypatch.setattr(client, "find_listed", fail)
    assert backend.is_job_deleted() is deleted


def test_the_file_store_replaces_the_whole(tmp_path: Path) -> None:
    """A new job has no document. Afterwards the newest document is loaded, and no other files are left."""
    store = FileStore(tmp_path / "state.json")
    assert store.load() is None
    store.save(b"one")
    store.save(b"two")
    assert FileStore(tmp_path / "state.json").load() == b"two"
    assert {path.name for path in tmp_path.iterdir()} == {"state.json", "state.json.head"}


def test_pods_are_asked_for_once(cluster: Cluster, job: ElasticJob) -> None:
    """The auto ScalePlan has a name that a repetition finds again, and lists the pods to create and to
    remove."""
    outside = KubernetesBackend(cluster, job)
    for _ in range(2):
        outside.ask_for_pods(PLAN, NODES)
    plan = client.get(cluster, resources.SCALE_PLANS, PLAN.name(job.metadata.name))
    assert plan["metadata"]["labels"][names.SCALE_TYPE_LABEL] == names.SCALE_AUTO
    assert plan["metadata"]["ownerReferences"][0]["uid"] == job.metadata.uid
    (create,), (remove,) = plan["spec"]["createPods"], plan["spec"]["removePods"]
    assert (create["name"], create["id"], create["rankIndex"]) == (
        names.node_name(job.metadata.name, "worker", 3),
        3,
        1,
    )
    assert remove["name"] == names.node_name(job.metadata.name, "ps", 0)
    assert plan["spec"]["reason"] == "worker-2 ran out of memory"


def test_a_foreign_plan_of_the_name_is_not_taken_for_ours(cluster: Cluster, job: ElasticJob) -> None:
    """An object of somebody else with the plan's name is an error, not a success."""
    name = PLAN.name(job.metadata.name)
    foreign = {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": name},
        "spec": {"ownerJob": job.metadata.name},
    }
    client.create(cluster, foreign)
    with pytest.raises(AlreadyExistsError):
        KubernetesBackend(cluster, job).ask_for_pods(PLAN, NODES)


@pytest.mark.parametrize(("said", "known"), [("Tesla-V100", "Tesla-V100"), ("no label!", None)])
def test_the_gpus_that_a_template_selects_are_known(job: ElasticJob, said: str, known: str | None) -> None:
    """The GPU type of the node selector is known to plans and kept for replacements. A value that is not a
    valid label is left for the API server to reject."""
    manifest = job.to_dict()
    spec = manifest["spec"]["replicaSpecs"]["worker"]["template"]["spec"]
    spec["nodeSelector"] = {names.GPU_TYPE_LABEL: said}
    settings = settings_of(ElasticJob.parse(manifest), "default", Timeouts())
    assert settings.roles["worker"].resource.gpu_type == known


def test_statuses_are_written_and_pass_the_schema(cluster: Cluster, job: ElasticJob) -> None:
    """The job's progress and a plan's steps are written to their statuses. The status of a plan that was
    replaced is not written."""
    outside = KubernetesBackend(cluster, job)
    state = JobState(settings_of(job, "default", Timeouts()))
    outside.report_job(views.job_status(state, time.time()))
    status = client.get(cluster, resources.ELASTIC_JOBS, job.metadata.name)["status"]
    assert status["progress"]["step"] == 0
    manifest = {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": f"{job.metadata.name}-plan"},
        "spec": {"ownerJob": job.metadata.name, "checkpoint": True},
    }
    made = client.create(cluster, manifest)["metadata"]
    run = start_rollout(made["uid"], made["name"], ScalePlanSpec(), time.time())
    outside.report_plan(run, views.plan_status(run))
    status = client.get(cluster, resources.SCALE_PLANS, made["name"])["status"]
    assert [step["phase"] for step in status["steps"]] == ["Pending"]
    other = start_rollout("another-uid", made["name"], ScalePlanSpec(), time.time())
    with pytest.raises(ConflictError):
        outside.report_plan(other, views.plan_status(other))


def test_a_cause_that_has_no_time_any_more_leaves_the_status(cluster: Cluster, job: ElasticJob) -> None:
    """Time whose cause turns out to be another one is counted once, also after the next master has taken
    over. A key that is only left out of a merge patch would stay."""
    name = job.metadata.name
    masters = [KubernetesBackend(cluster, job)] * 2
    for seconds in ({"queued": 3, "rendezvous": 2}, {"queued": 3, "training": 2}, {"training": 5}):
        master = masters.pop() if masters else KubernetesBackend(cluster, read_job(cluster, name))
        master.report_job({"goodput": {"ratio": 1.0, "seconds": seconds}})

        assert client.get(cluster, resources.ELASTIC_JOBS, name)["status"]["goodput"]["seconds"] == seconds


def test_the_cluster_is_watched(cluster: Cluster, job: ElasticJob) -> None:
    """Plans and the job's suspension are observed and reach the state."""

    async def main() -> None:
        _state_map(cluster, job)
        store = ConfigMapStore(cluster, job.metadata.name)
        store.load()
        state = JobState(settings_of(job, "default", Timeouts()), watches_pods=True)
        master = Master(state, store)
        async with asyncio.timeout(240), ClusterWatch(cluster, job, master, Timeouts()).running():
            client.patch(
                cluster, resources.ELASTIC_JOBS, job.metadata.name, {"spec": {"suspend": True}}, "default"
            )
            while not state.settings.suspend:
                await master.moved(1.0)
            labelled = {"name": f"{job.metadata.name}-p", "labels": {names.JOB_LABEL: job.metadata.name}}
            manifest = {
                "apiVersion": names.API_VERSION,
                "kind": "ScalePlan",
                "metadata": labelled,
                "spec": {"ownerJob": job.metadata.name, "checkpoint": True},
            }
            client.create(cluster, manifest)
            while not state.volatile.plans_seen:
                await master.moved(1.0)
            assert state.volatile.plans_seen[0].spec.checkpoint

    asyncio.run(main())


def test_a_cluster_that_does_not_answer_in_time_is_the_cause(
    cluster: Cluster, job: ElasticJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A master whose first lists take too long says how long it has waited, for there is no error yet."""
    monkeypatch.setattr(kubernetes, "SYNC_SECONDS", 0.0)
    monkeypatch.setattr(Informer, "start", lambda _informer: None)
    state = JobState(settings_of(job, "default", Timeouts()), watches_pods=True)

    async def main() -> None:
        watch = ClusterWatch(cluster, job, Master(state, GatedStore()), Timeouts())
        async with watch.running():
            raise AssertionError("nothing was listed")

    with pytest.raises(UnavailableError, match=r"can't be listed: no answer came in 0 s"):
        asyncio.run(main())


@pytest.mark.parametrize(
    ("labels", "status", "expected"),
    [
        ({}, {"phase": "Running"}, None),
        (
            {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "4"},
            {"phase": "Running"},
            ObservedPod("worker", 4, PodPhase.RUNNING),
        ),
        (
            {names.REPLICA_TYPE_LABEL: "ps", names.REPLICA_INDEX_LABEL: "0"},
            {
                "phase": "Failed",
                "containerStatuses": [
                    {"name": "a-proxy", "state": {"terminated": {"exitCode": 0}}},
                    {"name": "main", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}},
                ],
            },
            ObservedPod("ps", 0, PodPhase.FAILED, 137, "OOMKilled"),
        ),
        (
            {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "4"},
            {"phase": "Failed", "reason": "Evicted", "message": "low on memory"},
            ObservedPod(
                "worker", 4, PodPhase.FAILED, None, "Evicted", "low on memory", cause=ExitReason.KILLED
            ),
        ),
        (
            {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "4"},
            {
                "phase": "Failed",
                "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 137}}}],
                "conditions": [{"type": "DisruptionTarget", "status": "True"}],
            },
            ObservedPod("worker", 4, PodPhase.FAILED, 137, cause=ExitReason.KILLED),
        ),
        (
            {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "4"},
            {
                "phase": "Failed",
                "initContainerStatuses": [
                    {
                        "name": "fetch",
                        "state": {"terminated": {"exitCode": 4, "reason": "Error", "message": "no host\n"}},
                    }
                ],
            },
            ObservedPod(
                "worker",
                4,
                PodPhase.FAILED,
                4,
                "Error",
                "init container fetch ended with exit code 4: no host",
                cause=ExitReason.INIT,
            ),
        ),
        (
            {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "4"},
            {"phase": "Failed", "reason": "Unsupported", "message": "tty: not supported"},
            ObservedPod(
                "worker",
                4,
                PodPhase.FAILED,
                None,
                "Unsupported",
                "tty: not supported",
                cause=ExitReason.REFUSED,
            ),
        ),
        ({names.REPLICA_TYPE_LABEL: "dlrover-master", names.REPLICA_INDEX_LABEL: "0"}, {}, None),
    ],
)
def test_reading_a_pod(labels: dict[str, str], status: dict[str, Any], expected: ObservedPod | None) -> None:
    """A pod is read as a node of the job by its labels, and why it ended by the state of its main
    own container, whatever other containers there are."""
    annotations = {pod_state.OWN_CONTAINER: "main"}
    metadata = {"name": "x", "labels": labels, "annotations": annotations}
    spec = {"containers": [{"name": "a-proxy"}, {"name": "main"}], "restartPolicy": "Never"}
    assert observe_pod({"metadata": metadata, "spec": spec, "status": status}, 0.0) == expected


def test_reading_a_pod_whose_program_has_ended_and_whose_machine_is_lost() -> None:
    """A worker that was killed beside a proxy has failed with its own exit code. A deleted pod has a time at
    which it counts as gone."""
    labels = {names.REPLICA_TYPE_LABEL: "worker", names.REPLICA_INDEX_LABEL: "4"}
    statuses = [
        {"name": "a-proxy", "state": {"running": {}}},
        {"name": "main", "state": {"terminated": {"exitCode": 137}}},
    ]
    pod: dict[str, Any] = {
        "metadata": {"name": "x", "labels": labels, "annotations": {pod_state.OWN_CONTAINER: "main"}},
        "spec": {"containers": [{"name": "a-proxy"}, {"name": "main"}], "restartPolicy": "Never"},
        "status": {"phase": "Running", "containerStatuses": statuses},
    }
    assert observe_pod(pod, 0.0) == ObservedPod("worker", 4, PodPhase.FAILED, 137, outlived=True)
    statuses[1]["state"] = {"running": {}}
    pod["metadata"]["deletionTimestamp"] = "1970-01-01T00:01:00Z"
    loss = MachineLoss(gone_at=60 + lost_pods.CONFIRM_SECONDS)
    assert observe_pod(pod, 50.0) == ObservedPod("worker", 4, PodPhase.RUNNING, loss=loss)
