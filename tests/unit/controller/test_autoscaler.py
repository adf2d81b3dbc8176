"""The autoscaler in a controller, on the embedded API server, with nodes that the tests make."""

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from edl_workflows.controller.autoscaler import AutoscalerOptions
from edl_workflows.controller.manager import ManagerOptions
from edl_workflows.controller.run import RunningController, RunOptions, run_in_thread
from edl_workflows.exceptions import InvalidError, ManifestError
from edl_workflows.jobs import autoscaling
from edl_workflows.jobs.api import DI_JOBS, TRAINING_JOBS
from edl_workflows.jobs.di_job.kind import DI_JOB
from edl_workflows.jobs.scale_plan.model import ReplicaResourceSpec
from edl_workflows.jobs.training_job.kind import TRAINING_JOB
from edl_workflows.kube import client, events
from edl_workflows.kube.connect import Cluster
from edl_workflows.kube.resources import Object
from edl_workflows.stages.autoscale import AUTOSCALE, AutoscaleRequest
from edl_workflows.stages.identity import Identity
from edl_workflows.stages.scale import SCALE, ScaleRequest
from tests.unit.controller.farm import Farm
from tests.unit.di_server.support import create, replicas
from tests.unit.kube.support import eventually

ME = Identity("tests/autoscaler")


@pytest.fixture
def options(cluster: Cluster) -> AutoscalerOptions:
    """Whole nodes may be used; the cycle is too long to help a test."""
    return AutoscalerOptions(period=3600, cool_down=0, max_load={"cpu": 1.0, "memory": 1.0})


@pytest.fixture
def start(cluster: Cluster) -> Iterator[Callable[[AutoscalerOptions], RunningController]]:
    """Run a controller for the test's namespace."""
    running = []

    def run(options: AutoscalerOptions) -> RunningController:
        manager = ManagerOptions(
            namespace=cluster.namespace, kinds=(TRAINING_JOB, DI_JOB), autoscaler=options
        )
        running.append(run_in_thread(cluster, RunOptions(manager=manager)))
        assert running[-1].wait_ready(10)
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


def told(cluster: Cluster, name: str) -> dict[str, str]:
    """Reason → message of a job's Events."""
    job = client.get(cluster, TRAINING_JOBS, name)
    return {event["reason"]: event["message"] for event in events.of_object(cluster, job)}


def service(cluster: Cluster, node: str, cpu: int) -> None:
    """A pod of somebody else on a node."""
    container = {"name": "main", "image": "web:1", "resources": {"requests": {"cpu": str(cpu)}}}
    spec = {"nodeName": node, "containers": [container]}
    client.create(cluster, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "service"}, "spec": spec})


def test_a_job_grows_as_far_as_there_is_room(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """To what its bounds and the nodes leave beside others' pods; with an Event that says why; more as soon as a node comes."""
    service(cluster, farm.add("a", 4), 1)
    start(options)
    training_job(cluster, farm, "ctr", 1, 5)

    become(cluster, ctr=3)
    farm.add("b", 9)
    become(cluster, ctr=5)
    eventually(lambda: "Autoscaled" in told(cluster, "ctr"))
    assert "trainer from " in told(cluster, "ctr")["Autoscaled"]
    assert "there is room for" in told(cluster, "ctr")["Autoscaled"]


def test_jobs_share_what_there_is(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A job that comes takes room of one that has much, and gives it back when it ends.

    No scheduler binds the pods here, so that all beyond the minima is dealt anew: to the least fulfilled first.
    """
    farm.add("a", 6)
    start(options)
    training_job(cluster, farm, "first", 1, 6)
    become(cluster, first=6)

    training_job(cluster, farm, "second", 2, 6)
    become(cluster, first=3, second=3)
    client.delete(cluster, TRAINING_JOBS, "second")
    become(cluster, first=6)


def test_who_asks_for_a_number_gets_it(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """A scale stage's number stays, whatever room there is, until a stage switches autoscaling on again."""
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
    """A job whose annotation says no, and one whose annotation can't be read, which is told, keep their numbers."""
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
    """It tells what it would do."""
    farm.add("a", 9)
    start(replace(options, dry_run=True))
    training_job(cluster, farm, "ctr", 1, 3)

    eventually(lambda: "AutoscalePlanned" in told(cluster, "ctr"))
    assert told(cluster, "ctr")["AutoscalePlanned"].startswith("trainer from 1 to 3 replicas")
    assert trainers(cluster, "ctr") == 1


def test_a_job_that_was_changed_rests(
    cluster: Cluster, farm: Farm, start: Start, options: AutoscalerOptions
) -> None:
    """During its cool-down a job grows no further, but gives way to one that waits."""
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
    """The elastic task of a job that is not preemptible, where the spec says how far; any other stays."""
    farm.add("a", 9)
    start(options)
    create(cluster, farm.task(1, maxReplicas=3), name="bounded")
    create(cluster, farm.task(1), name="free")

    eventually(lambda: replicas(cluster, "bounded") == {"w": 3})
    assert replicas(cluster, "free") == {"w": 1}


REFUSED = [
    pytest.param("many", "bounds such as", id="no bounds"),
    pytest.param("4-2", "bounds such as", id="upside down"),
    pytest.param("0-2", "bounds such as", id="from zero"),
    pytest.param("7-9", "leaves no number that the spec allows", id="beyond the spec"),
]


@pytest.mark.parametrize(("bounds", "message"), REFUSED)
def test_wrong_bounds_are_refused(cluster: Cluster, farm: Farm, bounds: str, message: str) -> None:
    """The stage says what is wrong with them, and changes nothing."""
    training_job(cluster, farm, "ctr", 1, 6)
    with pytest.raises(ManifestError, match=message):
        AUTOSCALE.begin(cluster, AutoscaleRequest(name="ctr", kind="TrainingJob", bounds=bounds), ME)
    assert not client.get(cluster, TRAINING_JOBS, "ctr")["metadata"].get("annotations")


def test_what_is_not_autoscaled_is_refused(cluster: Cluster, farm: Farm) -> None:
    """A preemptible DIJob belongs to the allocator; a job that has ended is nobody's."""
    create(cluster, farm.task(1, maxReplicas=3), preemptible=True)
    with pytest.raises(ManifestError, match="preemptible"):
        AUTOSCALE.begin(cluster, AutoscaleRequest(name="walk", kind="DIJob"), ME)
    client.patch_status(cluster, DI_JOBS, "walk", {"phase": "Succeeded"})
    with pytest.raises(InvalidError, match="has ended"):
        AUTOSCALE.begin(cluster, AutoscaleRequest(name="walk", kind="DIJob", bounds="false"), ME)
