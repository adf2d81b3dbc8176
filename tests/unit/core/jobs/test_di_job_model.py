"""What a DIJob's manifest may say, who may be scaled how far, and what its pods are told."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.actions import InstallationSettings, RoleChange
from edl_workflows.core.jobs.di_job import elastic, pods
from edl_workflows.core.jobs.di_job.kind import view
from edl_workflows.core.jobs.di_job.model import DIJob
from edl_workflows.core.jobs.view import JobPhase
from tests.unit.core.jobs.di_jobs import make, task

Manifest = dict[str, Any]
Change = Callable[[Manifest], None]


def put(path: str, value: Any) -> Change:
    """A change of one field; None removes it."""

    def change(manifest: Manifest) -> None:
        *way, last = path.split("/")
        node: Any = manifest
        for part in way:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        if value is None:
            del node[last]
        elif isinstance(node, list):
            node[int(last)] = value
        else:
            node[last] = value

    return change


T0 = "spec/tasks/0"
CONTAINER = f"{T0}/template/spec/containers/0"
TWO_LEARNERS = [task("learner"), task("learner")]
BAD: list[Any] = [
    pytest.param(put("spec", None), "^DIJob atari: spec: required", id="no spec"),
    pytest.param(put("spec/tasks", None), "spec.tasks: required", id="no list of tasks"),
    pytest.param(put("spec/tasks", []), "spec.tasks: ", id="no task"),
    pytest.param(put("spec/tasks", {"learner": 1}), "spec.tasks: ", id="tasks no list"),
    pytest.param(put(f"{T0}/type", None), "tasks.0.type: required", id="no type"),
    pytest.param(put(f"{T0}/type", "actor"), "tasks.0.type: .*learner", id="unknown type"),
    pytest.param(put(f"{T0}/replicas", 0), "tasks.0.replicas", id="zero replicas"),
    pytest.param(put(f"{T0}/replicas", -1), "tasks.0.replicas", id="negative replicas"),
    pytest.param(put(f"{T0}/replicas", "many"), "tasks.0.replicas", id="replicas no number"),
    pytest.param(put(f"{T0}/replicas", 10_001), "tasks.0.replicas", id="too many replicas"),
    pytest.param(
        put(f"{T0}/minReplicas", 2), "tasks.0.replicas: is 1, but minReplicas is 2", id="below the minimum"
    ),
    pytest.param(
        put("spec/tasks/1/maxReplicas", 1), "tasks.1.replicas: is 2, but maxReplicas is 1",
        id="above the maximum",
    ),
    pytest.param(
        put(T0, task("learner", minReplicas=3, maxReplicas=2)),
        "tasks.0.minReplicas: is 3, but maxReplicas is 2",
        id="min above max",
    ),
    pytest.param(put(f"{T0}/minReplicas", 0), "tasks.0.minReplicas", id="minimum of zero"),
    pytest.param(
        put("spec/tasks", TWO_LEARNERS), "tasks.1.type: tasks.0 is the job's learner already",
        id="two learners",
    ),
    pytest.param(
        put("spec/tasks", [task("none")]), "tasks.0.name: a task of type none needs one", id="no name"
    ),
    pytest.param(
        put("spec/tasks", [task("none", name="a"), task("none", name="a")]),
        "tasks.1.name: 'a' is the name of tasks.0",
        id="two tasks of a name",
    ),
    pytest.param(
        put("spec/tasks", [task("learner"), task("none", name="learner")]), "tasks.1.name: 'learner'",
        id="named as another by default",
    ),
    pytest.param(
        put(f"{T0}/name", "My_Learner"), "tasks.0.name: 'My_Learner' must be",
        id="a name that no host can have",
    ),
    pytest.param(put(f"{T0}/name", "l" * 60), "tasks.0.name", id="too long a name"),
    pytest.param(
        put(f"{T0}/template", None), "tasks.0.template.spec.containers: at least one", id="no template"
    ),
    pytest.param(put(f"{CONTAINER}/image", None), "containers.0.image: required", id="no image"),
    pytest.param(put(f"{CONTAINER}/env", {"A": "b"}), "containers.0.env", id="env no list"),
    pytest.param(put(f"{CONTAINER}/resources", {"limits": {"cpu": "much"}}), "limits.cpu", id="no quantity"),
    pytest.param(put(f"{T0}/replica", 2), "unknown field; did you mean 'replicas'", id="misspelt field"),
    pytest.param(put("spec/group", "g"), "spec.group: unknown field", id="a field of version 1.0"),
    pytest.param(put("spec/priority", "low"), "spec.priority", id="unknown priority"),
    pytest.param(put("spec/cleanPodPolicy", "Some"), "spec.cleanPodPolicy", id="unknown policy"),
    pytest.param(put("spec/backoffLimit", -1), "spec.backoffLimit", id="negative limit"),
    pytest.param(put("spec/preemptible", "perhaps"), "spec.preemptible", id="neither true nor false"),
    pytest.param(
        put("spec/volumes", [{"emptyDir": {}}]), "spec.volumes.0.name: required", id="volume without a name"
    ),
    pytest.param(
        put("spec/volumes", [{"name": "v"}, {"name": "v"}]), "spec.volumes: there is more than one",
        id="two volumes of a name",
    ),
    pytest.param(put("metadata/name", "Atari"), "metadata.name: 'Atari'", id="capitals in the name"),
    pytest.param(
        put("metadata/name", "a" * 61), "metadata.name: has 61 characters", id="too long a name of the job"
    ),
    pytest.param(
        put("metadata/name", "a" * 55), "tasks.1.name: pods would be named", id="too long names of pods"
    ),
    pytest.param(put("apiVersion", "diengine.opendilab.org/v1alpha1"), "apiVersion", id="unknown version"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "message"), BAD)
def test_a_wrong_manifest_is_refused_by_its_field(change: Change, message: str) -> None:
    """Each mistake in a manifest gives an error that names the field."""
    manifest = make()
    change(manifest)
    with pytest.raises(ManifestError, match=message):
        DIJob.parse(manifest)


def test_a_volume_of_the_job_and_of_a_template() -> None:
    """If the job and a template have volumes of the same name, the job is rejected, rather than each of its
    pods."""
    manifest = make(volumes=[{"name": "cache", "emptyDir": {}}])
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
    spec = DIJob.parse(make(one)).spec
    assert (spec.tasks[0].title, spec.tasks[0].replicas) == ("learner", 1)
    assert (spec.backoff_limit, spec.clean_pod_policy, spec.priority, spec.preemptible) == (
        3,
        "Running",
        "normal",
        False,
    )
    assert DIJob.parse(make(one, backoffLimit=None)).spec.backoff_limit is None, "null: unlimited"
    assert spec.tasks[0].name == "", "what a user wrote stays as it is"


def test_names_of_jobs_may_begin_with_a_digit() -> None:
    """A job's name may start with a digit, as upstream allows: the name of its service starts with
    ``di-``."""
    manifest = make()
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
    job = DIJob.parse(make(*tasks))
    assert elastic.elastic_task(job.spec, name).title == title
    assert elastic.replica_bounds(job) == bounds


def test_several_tasks_without_a_collector_are_not_elastic() -> None:
    """A job with several tasks and no collector is not elastic: the task must be named, and the error lists
    the tasks."""
    job = DIJob.parse(make(task("learner"), task("none", name="replay")))
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
        elastic.scale(DIJob.parse(make(**spec)), wanted)


def test_a_scaling_is_an_edit_of_the_tasks() -> None:
    """Scaling replaces the whole list of tasks and keeps its other fields. Sizes change the main container of
    the task only."""
    manifest = make()
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
    patched = make(*scaling.spec["tasks"])
    assert DIJob.parse(patched).spec == DIJob.parse(make(*wanted)).spec


def test_what_a_replica_asks_for() -> None:
    """A replica requests the sum of its containers. For the main container, limits stand in for missing
    requests, and defaults for what is still missing."""
    one = task("learner")
    main: Manifest = one["template"]["spec"]["containers"][0]
    sidecar: Manifest = {"name": "log", "image": "l"}
    one["template"]["spec"]["containers"].append(sidecar)
    main["resources"] = {"limits": {"cpu": "500m"}}
    sidecar["resources"] = {"requests": {"cpu": "250m"}, "limits": {"cpu": "1"}}
    job = DIJob.parse(make(one))
    asked = elastic.replica_requests(job.spec.tasks[0], {"cpu": "1", "memory": "2Gi"})
    assert asked == {"cpu": 0.75, "memory": 2.0 * 2**30}


def _pods(job: DIJob, settings: InstallationSettings | None = None) -> dict[str, Manifest]:
    maker = pods.DIPodMaker(job, settings or InstallationSettings())
    return {replica.name: maker.pod(replica) for replica in pods.list_replicas(job)}


def test_what_a_pod_is_told() -> None:
    """Every container has upstream's variables before the user's own. These may refer to upstream's
    variables, but can't replace them."""
    manifest = make(task("none", 2, name="my-task"))
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
        "diengine/replicas": "2", "diengine/rank": "1", "diengine/task-rank": "1", "diengine/node": "",
    }  # fmt: skip
    assert (made["spec"]["hostname"], made["spec"]["subdomain"]) == ("atari-my-task-1", "di-atari")


def test_two_tasks_of_type_none_have_lists_of_their_own() -> None:
    """Two tasks of type none have a list of nodes each, named after the task; upstream gives both the same
    list."""
    made = _pods(DIJob.parse(make(task("none", name="a"), task("none", name="b"))))["atari-a-0"]
    told = {v["name"]: v.get("value") for v in made["spec"]["containers"][0]["env"]}
    assert told["DI_A_NODES"] == "atari-a-0.di-atari.default.svc.cluster.local"
    assert told["DI_B_NODES"] == "atari-b-0.di-atari.default.svc.cluster.local"


def test_a_list_too_long_for_a_program_is_left_out() -> None:
    """A list of nodes that is too long for an environment variable is left out, since Linux would not start
    the program. The program can ask the DI server for the list."""
    job = DIJob.parse(make(task("learner"), task("collector", 3000)))
    maker = pods.DIPodMaker(job, InstallationSettings())
    told = {v["name"] for v in maker.pod(next(pods.list_replicas(job)))["spec"]["containers"][0]["env"]}
    assert "DI_LEARNER_NODES" in told
    assert not told & {"DI_NODES", "DI_COLLECTOR_NODES"}


def test_volumes_ports_restart_policy_and_priority() -> None:
    """Every pod has the job's volumes, the port and the priority class. The kubelet restarts no container,
    since the controller replaces pods."""
    manifest = make(volumes=[{"name": "cache", "emptyDir": {}}], priority="high")
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
    manifest = make()
    found = [{"type": one, "status": "False"} for one in conditions]
    manifest["status"] = {"conditions": found} | ({"phase": phase} if phase else {})
    assert view(DIJob.parse(manifest)).phase is seen
