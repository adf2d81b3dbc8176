"""What a DIJob's manifest may say, who may be scaled how far, and what its pods are told."""

import copy
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import InstallationSettings, RoleChange
from edl_workflows.core.jobs.di_job import elastic, pods
from edl_workflows.core.jobs.di_job.kind import view
from edl_workflows.core.jobs.di_job.model import DIJob
from edl_workflows.core.jobs.view import JobPhase
from tests.cases.kind import Manifest
from tests.cases.kinds.di_job import make_di_job, task


def test_a_volume_of_the_job_and_of_a_template() -> None:
    """If the job and a template have volumes of the same name, the job is rejected, rather than each of its
    pods."""
    manifest = make_di_job(volumes=[{"name": "cache", "emptyDir": {}}])
    manifest["spec"]["tasks"][1]["template"]["spec"]["volumes"] = [{"name": "cache", "emptyDir": {}}]
    with pytest.raises(
        ManifestError, match=r"tasks\.1\.template\.spec\.volumes: 'cache' is in spec\.volumes, too"
    ):
        DIJob.parse(manifest)


def test_defaults() -> None:
    """The defaults are those of upstream: one replica, a task named after its type, three restarts, and
    running pods are deleted at the end."""
    one = task("learner")
    del one["replicas"]
    spec = DIJob.parse(make_di_job(one)).spec
    assert (spec.tasks[0].title, spec.tasks[0].replicas) == ("learner", 1)
    assert (spec.backoff_limit, spec.clean_pod_policy, spec.priority, spec.preemptible) == (
        3,
        "Running",
        "normal",
        False,
    )
    assert DIJob.parse(make_di_job(one, backoffLimit=None)).spec.backoff_limit is None, "null: unlimited"
    assert spec.tasks[0].name == "", "what a user wrote stays as it is"


def test_names_of_jobs_may_begin_with_a_digit() -> None:
    """A job's name may start with a digit, as upstream allows: the name of its service starts with
    ``di-``."""
    manifest = make_di_job()
    manifest["metadata"]["name"] = "2048-game"
    assert DIJob.parse(manifest).metadata.name == "2048-game"


ELASTIC: list[Any] = [
    pytest.param([task("none", name="serial")], None, "serial", (1, 10_000), id="the only one"),
    pytest.param(
        [task("learner", 2), task("collector", 3)], None, "collector", (3, 10_000), id="else the collector"
    ),
    pytest.param(
        [task("learner"), task("collector", 3, minReplicas=2, maxReplicas=8, name="c")], None, "c", (3, 9),
        id="within its bounds",
    ),
    pytest.param(
        [task("learner"), task("collector")], "learner", "learner", (2, 10_000), id="or who is named"
    ),
]  # fmt: skip


@pytest.mark.parametrize(("tasks", "name", "title", "bounds"), ELASTIC)
def test_who_is_elastic_and_how_far(
    tasks: Any, name: str | None, title: str, bounds: tuple[int, int]
) -> None:
    """Without the name of a task, the replicas of the only task are changed; if there are several, those of
    the collector."""
    job = DIJob.parse(make_di_job(*tasks))
    assert elastic.elastic_task(job.spec, name).title == title
    assert elastic.replica_bounds(job) == bounds


def test_several_tasks_without_a_collector_are_not_elastic() -> None:
    """A job with several tasks and no collector is not elastic: the task must be named, and the error lists
    the tasks."""
    job = DIJob.parse(make_di_job(task("learner"), task("none", name="replay")))
    with pytest.raises(ManifestError, match="say which of learner, replay"):
        elastic.elastic_task(job.spec)
    with pytest.raises(ManifestError, match="no task 'actor'; it has learner, replay"):
        elastic.elastic_task(job.spec, "actor")
    assert elastic.replica_bounds(job) == (2, 2)


SCALE_ERRORS: list[Any] = [
    pytest.param({}, {"actor": RoleChange(2)}, "replicas.actor: the job has no such task", id="unknown task"),
    pytest.param({}, {"collector": RoleChange(0)}, "replicas.collector: 0 is outside", id="nobody"),
    pytest.param({}, {"collector": RoleChange(10_001)}, "at most 10000", id="too many"),
    pytest.param(
        {"preemptible": True}, {"collector": RoleChange(3)}, "its allocator decides", id="preemptible"
    ),
]


@pytest.mark.parametrize(("spec", "wanted", "message"), SCALE_ERRORS)
def test_scalings_that_are_refused(spec: Manifest, wanted: dict[str, RoleChange], message: str) -> None:
    """An invalid scaling is rejected before anything is sent."""
    with pytest.raises(ManifestError, match=message):
        elastic.scale(DIJob.parse(make_di_job(**spec)), wanted)


def test_a_scaling_is_an_edit_of_the_tasks() -> None:
    """Scaling replaces the whole list of tasks and keeps its other fields. Sizes change the main container of
    the task only."""
    manifest = make_di_job()
    containers = manifest["spec"]["tasks"][1]["template"]["spec"]["containers"]
    containers.insert(0, {"name": "sidecar", "image": "logs:1"})
    job = DIJob.parse(manifest)
    scaling = elastic.scale(job, {"collector": RoleChange(5, {"cpu": "2"})})
    assert scaling.nodes == 7
    assert job == DIJob.parse(manifest), "the job itself is unchanged"
    wanted = copy.deepcopy(manifest["spec"]["tasks"])
    wanted[1]["replicas"] = 5
    wanted[1]["template"]["spec"]["containers"][1]["resources"] = {
        "requests": {"cpu": "2"},
        "limits": {"cpu": "2"},
    }
    patched = make_di_job(*scaling.spec["tasks"])
    assert DIJob.parse(patched).spec == DIJob.parse(make_di_job(*wanted)).spec


def test_what_a_replica_asks_for() -> None:
    """A replica requests the sum of its containers. For the main container, limits stand in for missing
    requests, and defaults for what is still missing."""
    one = task("learner")
    main: Manifest = one["template"]["spec"]["containers"][0]
    sidecar: Manifest = {"name": "log", "image": "l"}
    one["template"]["spec"]["containers"].append(sidecar)
    main["resources"] = {"limits": {"cpu": "500m"}}
    sidecar["resources"] = {"requests": {"cpu": "250m"}, "limits": {"cpu": "1"}}
    job = DIJob.parse(make_di_job(one))
    asked = elastic.replica_requests(job.spec.tasks[0], {"cpu": "1", "memory": "2Gi"})
    assert asked == {"cpu": 0.75, "memory": 2.0 * 2**30}


def _pods(job: DIJob, settings: InstallationSettings | None = None) -> dict[str, Manifest]:
    maker = pods.DIPodMaker(job, settings or InstallationSettings())
    return {replica.name: maker.pod(replica) for replica in pods.list_replicas(job)}


def test_what_a_pod_is_told() -> None:
    """Every container has upstream's variables before the user's own. These may refer to upstream's
    variables, but can't replace them."""
    manifest = make_di_job(task("none", 2, name="my-task"))
    container = manifest["spec"]["tasks"][0]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "DI_RANK", "value": "7"}, {"name": "ME", "value": "$(DI_RANK)"}]
    settings = InstallationSettings(di_server_url="http://di:1", di_service_domain="svc.example")
    made = _pods(DIJob.parse(manifest), settings)["atari-my-task-1"]
    nodes = ",".join(f"atari-my-task-{index}.di-atari.default.svc.example" for index in range(2))
    told = made["spec"]["containers"][0]["env"]
    assert {v["name"]: v["value"] for v in told if "value" in v} == {
        "DI_JOB_ID": "default.atari", "DI_JOB_GENERATION": "0", "DI_SERVER_URL": "http://di:1",
        "DI_RANK": "1", "DI_TASK_RANK": "1", "DI_NODES": nodes, "DI_MY_TASK_NODES": nodes,
        "ME": "$(DI_RANK)",
    }  # fmt: skip
    assert told[-1]["name"] == "ME"
    assert made["metadata"]["labels"].items() >= {
        "diengine/job": "atari", "diengine/operator": "di-operator", "diengine/pod": "atari-my-task-1",
        "diengine/task-type": "none", "diengine/task-name": "my-task",
    }.items()  # fmt: skip
    assert made["metadata"]["annotations"] == {
        "kubectl.kubernetes.io/default-container": "di-container",
        "diengine/replicas": "2", "diengine/rank": "1", "diengine/task-rank": "1", "diengine/node": "",
    }  # fmt: skip
    assert (made["spec"]["hostname"], made["spec"]["subdomain"]) == ("atari-my-task-1", "di-atari")


def test_two_tasks_of_type_none_have_lists_of_their_own() -> None:
    """Two tasks of type none have a list of nodes each, named after the task; upstream gives both the same
    list."""
    made = _pods(DIJob.parse(make_di_job(task("none", name="a"), task("none", name="b"))))["atari-a-0"]
    told = {v["name"]: v.get("value") for v in made["spec"]["containers"][0]["env"]}
    assert told["DI_A_NODES"] == "atari-a-0.di-atari.default.svc.cluster.local"
    assert told["DI_B_NODES"] == "atari-b-0.di-atari.default.svc.cluster.local"


def test_a_list_too_long_for_a_program_is_left_out() -> None:
    """A list of nodes that is too long for an environment variable is left out, since Linux would not start
    the program. The program can ask the DI server for the list."""
    job = DIJob.parse(make_di_job(task("learner"), task("collector", 3000)))
    maker = pods.DIPodMaker(job, InstallationSettings())
    told = {v["name"] for v in maker.pod(next(pods.list_replicas(job)))["spec"]["containers"][0]["env"]}
    assert "DI_LEARNER_NODES" in told
    assert not told & {"DI_NODES", "DI_COLLECTOR_NODES"}


def test_volumes_ports_restart_policy_and_priority() -> None:
    """Every pod has the job's volumes, the port and the priority class. The kubelet restarts no container,
    since the controller replaces pods."""
    manifest = make_di_job(volumes=[{"name": "cache", "emptyDir": {}}], priority="high")
    spec = manifest["spec"]["tasks"][0]["template"]["spec"]
    spec |= {"restartPolicy": "Always", "volumes": [{"name": "own", "emptyDir": {}}]}
    settings = InstallationSettings(di_priority_classes={"high": "urgent"})
    made = _pods(DIJob.parse(manifest), settings)["atari-learner-0"]["spec"]
    assert [volume["name"] for volume in made["volumes"]] == ["own", "cache"]
    assert made["restartPolicy"] == "Never"
    assert made["containers"][0]["ports"] == [{"name": "di-port", "containerPort": 22270}]
    assert made["priorityClassName"] == "urgent"
    assert "resources" not in made["containers"][0], "defaults are for preemptible jobs"


VIEWS: list[Any] = [
    pytest.param(None, [], JobPhase.PENDING, id="nobody has looked at it"),
    pytest.param("Pending", [], JobPhase.PENDING, id="Pending"),
    pytest.param("Starting", [], JobPhase.PENDING, id="Starting, for the first time"),
    pytest.param("Starting", ["Running"], JobPhase.RESTARTING, id="Starting, after it had run"),
    pytest.param("Running", ["Running"], JobPhase.RUNNING, id="Running"),
    pytest.param("Restarting", ["Running"], JobPhase.RESTARTING, id="Restarting"),
    pytest.param("Rescheduling", ["Running"], JobPhase.SCALING, id="Rescheduling"),
    pytest.param("Suspended", [], JobPhase.SUSPENDED, id="Suspended"),
    pytest.param("Succeeded", [], JobPhase.SUCCEEDED, id="Succeeded"),
    pytest.param("Failed", [], JobPhase.FAILED, id="Failed"),
]


@pytest.mark.parametrize(("phase", "conditions", "seen"), VIEWS)
def test_how_pipelines_see_it(phase: str | None, conditions: list[str], seen: JobPhase) -> None:
    """Each phase of a DIJob maps to one of the phases that all kinds share."""
    manifest = make_di_job()
    found = [{"type": one, "status": "False"} for one in conditions]
    manifest["status"] = {"conditions": found} | ({"phase": phase} if phase else {})
    assert view(DIJob.parse(manifest)).phase is seen
