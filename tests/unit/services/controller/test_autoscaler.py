"""The autoscaler in a controller, on the embedded API server, with nodes that the tests make."""

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan import manual_plan
from edl_workflows.core.jobs.scale_plan.kind import SCALE_PLAN
from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.core.jobs.training_job.kind import TRAINING_JOB
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import DI_JOBS, ELASTIC_JOBS, SCALE_PLANS, TRAINING_JOBS, ApiResource
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.stages.autoscale import AUTOSCALE, AutoscaleRequest
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.pipelines.waiting.observed import read_object
from edl_workflows.pipelines.waiting.results import Skipped, evaluate_goal
from edl_workflows.runtime.kube import client, events
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import PODS, Object, Scope
from edl_workflows.services.controller.autoscaler import AutoscalerOptions
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import RunOptions
from tests.controller_thread import RunningController, run_in_thread
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.farm import Farm
from tests.unit.services.di_server.support import create, replicas

pytestmark = pytest.mark.slow

ME = StageIdentity("tests/autoscaler")


@pytest.fixture
def options(cluster: Cluster) -> AutoscalerOptions:
    """Whole nodes may be used; the cycle is too long to help a test."""
    return AutoscalerOptions(period=3600, cool_down=0, max_load={"cpu": 1.0, "memory": 1.0})


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Callable[[AutoscalerOptions], RunningController]]:
    """Run a controller for the test's namespace."""
    running = []

    def run(options: AutoscalerOptions) -> RunningController:
        kinds = (TRAINING_JOB, DI_JOB, ELASTIC_JOB, SCALE_PLAN)
        manager = ManagerOptions(
            namespaces=NamespaceSelection.of(cluster.namespace), kinds=kinds, autoscaler=options
        )
        running.append(run_in_thread(cluster, RunOptions(manager=manager)))
        assert running[-1].wait_ready(240)
        return running[-1]

    yield run
    for one in running:
        one.stop()


Start = Callable[[AutoscalerOptions], RunningController]


def training_job(
    cluster: Cluster, farm: Farm, name: str, low: int, high: int, annotation: str = ""
) -> Object:
    """A job of trainers of one core each, on the farm's nodes."""
    manifest = {
        "apiVersion": TRAINING_JOBS.api_version,
        "kind": TRAINING_JOBS.kind,
        "metadata": {
            "name": name,
            "annotations": {autoscaling.ANNOTATION: annotation} if annotation else {},
        },
        "spec": {
            "image": "train:1",
            "launcher": "sh",
            "nodeSelector": {"farm": farm.key},
            "trainer": {
                "entrypoint": "train",
                "min-instance": low,
                "max-instance": high,
                "resources": {"requests": {"cpu": "1", "memory": "1Mi"}},
            },
        },
    }
    return client.create(cluster, manifest)


def trainers(cluster: Cluster, name: str) -> int:
    """How many the spec asks for."""
    trainer = client.get(cluster, TRAINING_JOBS, name)["spec"]["trainer"]
    return int(trainer.get("parallelism", trainer["min-instance"]))


def become(cluster: Cluster, **expected: int) -> None:
    """Wait for numbers of trainers by job."""
    eventually(lambda: {name: trainers(cluster, name) for name in expected} == expected)


def told(cluster: Cluster, name: str, kind: ApiResource = TRAINING_JOBS) -> dict[str, str]:
    """Reason → message of a job's Events."""
    job = client.get(cluster, kind, name)
    return {event["reason"]: event["message"] for event in events.of_object(cluster, job)}


def service(cluster: Cluster, node: str, cpu: int) -> None:
    """A pod of somebody else on a node."""
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": str(cpu)}}}
    spec = {"nodeName": node, "containers": [container]}
    client.create(cluster, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "service"}, "spec": spec})


def test_without_jobs_the_figures_are_zero(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """The number of jobs that the last plan held back does not stay when the last job is gone."""
    farm.add("a", 2)
    registry = start(options).controller.metrics.registry

    def held_back() -> float | None:
        return registry.get_sample_value("edl_controller_autoscaler_jobs", {"result": "held back"})

    training_job(cluster, farm, "ctr", 1, 5)
    eventually(lambda: held_back() == 1)
    client.delete(cluster, TRAINING_JOBS, "ctr")
    eventually(lambda: held_back() == 0)


def test_a_job_grows_as_far_as_there_is_room(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A job grows to the room that its bounds and the nodes leave, with an Event that says why, and further
    when a node is added."""
    service(cluster, farm.add("a", 4), 1)
    start(options)
    training_job(cluster, farm, "ctr", 1, 5)

    become(cluster, ctr=3)
    farm.add("b", 9)
    become(cluster, ctr=5)
    eventually(lambda: "Autoscaled" in told(cluster, "ctr"))
    assert "trainer from " in told(cluster, "ctr")["Autoscaled"]
    assert "there is room for" in told(cluster, "ctr")["Autoscaled"]


def test_a_job_of_another_operator_keeps_its_size(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A job that is left alone is not resized, while one beside it grows."""
    farm.add("a", 4)
    training_job(cluster, farm, "theirs", 1, 4)
    alone = {"type": "LeftAlone", "status": "True", "reason": "PodsOfAnotherOperator"}
    client.patch_status(cluster, TRAINING_JOBS, "theirs", {"conditions": [alone]})
    start(options)
    training_job(cluster, farm, "ctr", 1, 3)

    become(cluster, ctr=3)
    assert trainers(cluster, "theirs") == 1
    assert told(cluster, "theirs") == {}


def test_jobs_share_what_there_is(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A new job gets trainers at the cost of a job that has many, which gets them back when the new job is
    deleted. All trainers beyond the minima are distributed again, to the least fulfilled job first."""
    farm.add("a", 6)
    start(options)
    training_job(cluster, farm, "first", 1, 6)
    become(cluster, first=6)

    training_job(cluster, farm, "second", 2, 6)
    become(cluster, first=3, second=3)
    client.delete(cluster, TRAINING_JOBS, "second")
    become(cluster, first=6)


def test_room_that_is_freed_later_is_used(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A job grows when somebody else's pod leaves its node, without waiting for the next period. Pods of a
    deleted job leave later than the job, too."""
    service(cluster, farm.add("a", 6), 2)
    start(options)
    training_job(cluster, farm, "ctr", 1, 6)
    become(cluster, ctr=4)

    client.delete(cluster, PODS, "service", options=client.DeletionOptions(grace_seconds=0))
    become(cluster, ctr=6)


def test_who_asks_for_a_number_gets_it(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """The number of a scale stage stays, however much room there is, until a stage switches autoscaling on
    again."""
    farm.add("a", 6)
    start(options)
    training_job(cluster, farm, "ctr", 1, 6)
    become(cluster, ctr=6)

    SCALE.begin(
        cluster,
        ScaleRequest(job="ctr", kind="TrainingJob", replicas={"trainer": ReplicaResourceSpec(replicas=2)}),
        ME,
    )
    farm.add("b", 6)
    training_job(cluster, farm, "witness", 1, 6)
    become(cluster, ctr=2, witness=6)

    AUTOSCALE.begin(cluster, AutoscaleRequest(name="ctr", kind="TrainingJob", bounds="3-4"), ME)
    become(cluster, ctr=4)
    AUTOSCALE.begin(cluster, AutoscaleRequest(name="ctr", kind="TrainingJob"), ME)
    become(cluster, ctr=6)


def test_what_is_switched_off_stays(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A job whose annotation is ``false`` keeps its number. So does a job with an invalid annotation, which
    gets an Event."""
    farm.add("a", 9)
    start(options)
    training_job(cluster, farm, "no", 1, 3, "false")
    training_job(cluster, farm, "odd", 1, 3, "some")
    training_job(cluster, farm, "yes", 1, 3, "true")

    become(cluster, yes=3, no=1, odd=1)
    eventually(lambda: "AutoscaleRefused" in told(cluster, "odd"))
    assert autoscaling.ANNOTATION in told(cluster, "odd")["AutoscaleRefused"]


def test_a_dry_run_changes_nothing(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A dry run tells the planned change in an Event, and leaves the job as it is."""
    farm.add("a", 9)
    start(replace(options, dry_run=True))
    training_job(cluster, farm, "ctr", 1, 3)

    eventually(lambda: "AutoscalePlanned" in told(cluster, "ctr"))
    assert told(cluster, "ctr")["AutoscalePlanned"].startswith("trainer from 1 to 3 replicas")
    assert trainers(cluster, "ctr") == 1


def test_a_job_that_was_changed_rests(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """During its cool-down a job does not grow, but may shrink for one that waits."""
    farm.add("a", 2)
    start(replace(options, cool_down=3600, period=1))
    training_job(cluster, farm, "ctr", 1, 6)
    become(cluster, ctr=2)

    farm.add("b", 1)
    training_job(cluster, farm, "other", 1, 2)
    become(cluster, ctr=2, other=1)
    training_job(cluster, farm, "third", 1, 1)
    become(cluster, ctr=1)


def test_di_jobs_grow_within_their_bounds(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A DIJob that is not preemptible grows if the spec bounds its elastic task. Without bounds it keeps its
    replicas."""
    farm.add("a", 9)
    start(options)
    create(cluster, farm.task(1, maxReplicas=3), name="bounded")
    create(cluster, farm.task(1), name="free")

    eventually(lambda: replicas(cluster, "bounded") == {"w": 3})
    assert replicas(cluster, "free") == {"w": 1}


def elastic_job(cluster: Cluster, farm: Farm, annotation: str = "", mode: str = "manual") -> Object:
    """One worker of a core, on the farm's nodes, and a master that asks for nothing."""

    def role(cpu: str, selector: dict[str, str]) -> dict[str, Any]:
        container = {"name": "main", "image": "train:1", "resources": {"requests": {"cpu": cpu}}}
        return {"replicas": 1, "template": {"spec": {"nodeSelector": selector, "containers": [container]}}}

    roles = {"worker": role("1", {"farm": farm.key}), "dlrover-master": role("0", {"farm": "none"})}
    metadata = {"name": "elastic", "annotations": {autoscaling.ANNOTATION: annotation} if annotation else {}}
    return client.create(
        cluster,
        {
            "apiVersion": names.API_VERSION,
            "kind": "ElasticJob",
            "metadata": metadata,
            "spec": {"optimizeMode": mode, "replicaSpecs": roles},
        },
    )


def plans(cluster: Cluster) -> dict[str, dict[str, Any]]:
    """Name → spec of the ScalePlans."""
    listed = client.list_objects(cluster, Scope(SCALE_PLANS, cluster.namespace)).items
    return {plan["metadata"]["name"]: plan["spec"] for plan in listed}


def test_elastic_jobs_are_changed_by_plans(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """The autoscaler creates the next plan of an ElasticJob only when the previous one has ended, and starts
    from the number that it reached."""
    farm.add("a", 3)
    start(options)
    elastic_job(cluster, farm, "1-6")

    eventually(lambda: set(plans(cluster)) == {"elastic-autoscale-1"})
    (first,) = plans(cluster).values()
    assert first["replicaResourceSpecs"]["worker"]["replicas"] == 3
    assert "there is room for" in first["reason"]
    eventually(lambda: "worker from 1 to 3" in told(cluster, "elastic", ELASTIC_JOBS).get("Autoscaled", ""))

    farm.add("b", 2)
    training_job(cluster, farm, "witness", 1, 2)
    become(cluster, witness=2)
    assert set(plans(cluster)) == {"elastic-autoscale-1"}
    client.delete(cluster, TRAINING_JOBS, "witness")
    client.patch_status(cluster, SCALE_PLANS, "elastic-autoscale-1", {"phase": "Succeeded"})
    eventually(lambda: set(plans(cluster)) == {"elastic-autoscale-1", "elastic-autoscale-2"})
    assert plans(cluster)["elastic-autoscale-2"]["replicaResourceSpecs"]["worker"]["replicas"] == 5


def test_a_new_process_makes_no_second_plan(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A new autoscaler finds the plan of its predecessor and creates none beside it. It creates the next one
    when that plan has ended."""
    farm.add("a", 3)
    first = start(options)
    elastic_job(cluster, farm, "1-6")
    eventually(lambda: set(plans(cluster)) == {"elastic-autoscale-1"})
    first.stop()

    start(options)
    training_job(cluster, farm, "witness", 1, 1)
    eventually(lambda: "status" in client.get(cluster, TRAINING_JOBS, "witness"))
    assert set(plans(cluster)) == {"elastic-autoscale-1"}
    client.patch_status(cluster, SCALE_PLANS, "elastic-autoscale-1", {"phase": "Failed"})
    eventually(lambda: set(plans(cluster)) == {"elastic-autoscale-1", "elastic-autoscale-2"})
    assert plans(cluster)["elastic-autoscale-2"]["replicaResourceSpecs"]["worker"]["replicas"] >= 2


@pytest.mark.parametrize(
    ("annotation", "mode"), [("", "manual"), ("false", "manual"), ("1-6", "single-job"), ("true", "cluster")]
)
def test_elastic_jobs_that_are_left_alone(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions, annotation: str, mode: str
) -> None:
    """ElasticJobs without bounds, and those whose master plans, are left alone."""
    farm.add("a", 6)
    start(options)
    elastic_job(cluster, farm, annotation, mode)
    training_job(cluster, farm, "witness", 1, 3)

    become(cluster, witness=3)
    assert not plans(cluster)


@pytest.mark.parametrize("reached", ["plan made", "job pinned"])
def test_a_stage_that_comes_between_wins(
    cluster: Cluster,
    farm: Farm,
    start: Start,
    options: AutoscalerOptions,
    monkeypatch: pytest.MonkeyPatch,
    reached: str,
) -> None:
    """The stage creates its plan and then switches autoscaling off. The autoscaler checks both again before
    it creates a plan of its own."""
    get, looked = client.get, threading.Event()

    def changed_meanwhile(where: Cluster, api: ApiResource, name: str, *arguments: Any) -> Object:
        found = get(where, api, name, *arguments)
        if api != ELASTIC_JOBS or threading.current_thread().name != "autoscaler" or looked.is_set():
            return found
        looked.set()
        if reached == "job pinned":
            annotations = {autoscaling.ANNOTATION: "false"}
            return client.patch(where, api, name, {"metadata": {"annotations": annotations}}, *arguments)
        wanted = {"replicaResourceSpecs": {"worker": {"replicas": 2}}}
        client.create(where, manual_plan.manual_plan(ElasticJob.parse(found), "by-a-stage", wanted))
        return found

    monkeypatch.setattr(client, "get", changed_meanwhile)
    farm.add("a", 6)
    start(options)
    elastic_job(cluster, farm, "1-3")
    eventually(looked.is_set)
    training_job(cluster, farm, "witness", 1, 3)

    become(cluster, witness=3)
    assert plans(cluster).keys() <= {"by-a-stage"}


@pytest.mark.parametrize(
    ("mode", "bounds", "message"),
    [
        ("manual", "true", 'say some, such as "2-8"'),
        ("single-job", "some", "bounds such as"),
    ],
)
def test_what_an_elastic_job_can_not_be_told(
    cluster: Cluster, farm: Farm, mode: str, bounds: str, message: str
) -> None:
    """In mode manual, the annotation must give the bounds, because the job has no others. In each mode,
    invalid bounds are rejected."""
    elastic_job(cluster, farm, mode=mode)

    with pytest.raises(ManifestError, match=message):
        AUTOSCALE.begin(cluster, AutoscaleRequest(name="elastic", bounds=bounds), ME)
    assert not client.get(cluster, ELASTIC_JOBS, "elastic")["metadata"].get("annotations")


@pytest.mark.parametrize(
    ("mode", "bounds"),
    [("manual", "2-4"), ("manual", "false"), ("single-job", "true"), ("cluster", "2-4")],
)
def test_what_an_elastic_job_can_be_told(cluster: Cluster, farm: Farm, mode: str, bounds: str) -> None:
    """In each mode, the stage sets the annotation to what is valid in that mode."""
    elastic_job(cluster, farm, mode=mode)

    AUTOSCALE.begin(cluster, AutoscaleRequest(name="elastic", bounds=bounds), ME)

    annotations = client.get(cluster, ELASTIC_JOBS, "elastic")["metadata"]["annotations"]
    assert annotations[autoscaling.ANNOTATION] == bounds


REFUSED = [
    pytest.param("many", "bounds such as", id="no bounds"),
    pytest.param("4-2", "bounds such as", id="upside down"),
    pytest.param("0-2", "bounds such as", id="from zero"),
    pytest.param("7-9", "leaves no number that the spec allows", id="beyond the spec"),
]


@pytest.mark.parametrize(("bounds", "message"), REFUSED)
def test_wrong_bounds_are_refused(cluster: Cluster, farm: Farm, bounds: str, message: str) -> None:
    """The error says what is wrong with the bounds, and the job is not changed."""
    training_job(cluster, farm, "ctr", 1, 6)
    with pytest.raises(ManifestError, match=message):
        AUTOSCALE.begin(cluster, AutoscaleRequest(name="ctr", kind="TrainingJob", bounds=bounds), ME)
    assert not client.get(cluster, TRAINING_JOBS, "ctr")["metadata"].get("annotations")


def test_what_is_not_autoscaled_is_refused(cluster: Cluster, farm: Farm) -> None:
    """The stage rejects a preemptible DIJob, which the allocator sizes, and does not change a job that has
    ended."""
    create(cluster, farm.task(1, maxReplicas=3), preemptible=True)
    with pytest.raises(ManifestError, match="preemptible"):
        AUTOSCALE.begin(cluster, AutoscaleRequest(name="walk", kind="DIJob"), ME)
    client.patch_status(cluster, DI_JOBS, "walk", {"phase": "Succeeded"})

    handle = AUTOSCALE.begin(cluster, AutoscaleRequest(name="walk", kind="DIJob", bounds="false"), ME)

    ended = client.get(cluster, DI_JOBS, "walk")
    result = evaluate_goal(handle, read_object("DIJob", ended))
    assert isinstance(result, Skipped)
    assert "has already succeeded" in result.reason
    assert autoscaling.ANNOTATION not in ended["metadata"].get("annotations", {})
