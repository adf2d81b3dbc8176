"""A TFJob's life, row by row: `edl_workflows.jobs.kubeflow.reconcile`."""

import json
from typing import Any

import pytest

from edl_workflows.jobs.actions import Refusal
from edl_workflows.jobs.testing import JobsNamespace

NAME = "mnist"


def make_tf_job(*, policies: dict[str, Any] | None = None, compat: str = "", **types: Any) -> dict[str, Any]:
    """A job; `types` gives for each type its replicas, or (replicas, restart policy)."""
    container = {"name": "tensorflow", "image": "train:1"}
    specs = {}
    for kind, wanted in (types or {"PS": 1, "Worker": 2}).items():
        replicas, policy = wanted if isinstance(wanted, tuple) else (wanted, "Never")
        template = {"spec": {"containers": [dict(container)]}}
        specs[kind] = {"replicas": replicas, "restartPolicy": policy, "template": template}
    metadata: dict[str, Any] = {"name": NAME}
    if compat:
        metadata["annotations"] = {"elastic.iml.github.io/tfjob-compat": compat}
    spec = {"tfReplicaSpecs": specs, "runPolicy": policies or {}}
    return {"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": metadata, "spec": spec}


class Job:
    """One job in a world of its own."""

    def __init__(self, spec: dict[str, Any] | None = None, **kwargs: Any) -> None:
        manifest = make_tf_job(**kwargs)
        manifest["spec"] |= spec or {}
        self.world = JobsNamespace()
        self.world.add(manifest)
        self.world.settle()

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.objects["TFJob", NAME]["status"]
        return found

    @property
    def phase(self) -> str:
        return str(self.status["phase"])

    @property
    def pods(self) -> list[str]:
        return sorted(name.removeprefix(f"{NAME}-") for kind, name in self.world.objects if kind == "Pod")

    @property
    def services(self) -> list[str]:
        return sorted(name.removeprefix(f"{NAME}-") for kind, name in self.world.objects if kind == "Service")

    def pod(self, short: str) -> dict[str, Any]:
        return self.world.objects["Pod", f"{NAME}-{short}"]

    def set(self, **phases: Any) -> None:
        """Pods' phases, as ``worker_0="Running"`` or ``worker_0=("Failed", 137)``, and what the controller
        makes of it.
        """
        for short, value in phases.items():
            phase, code = value if isinstance(value, tuple) else (value, None)
            name = f"{NAME}-{short.replace('_', '-')}"
            self.world.set_pod(name, phase, 0 if phase == "Succeeded" else code)
        self.world.settle()

    def settle(self) -> None:
        """Pods that are being deleted go, and the controller makes what it wants of it."""
        self.world.reap()
        self.world.settle()

    def edit(self, **spec: Any) -> None:
        self.world.edit("TFJob", NAME, {"spec": spec})
        self.world.settle()

    def config(self, short: str) -> dict[str, Any]:
        env = {v["name"]: v["value"] for v in self.pod(short)["spec"]["containers"][0].get("env", ())}
        found: dict[str, Any] = json.loads(env["TF_CONFIG"])
        return found

    def true_conditions(self) -> list[str]:
        return [c["type"] for c in self.status["conditions"] if c["status"] == "True"]


def test_a_pod_and_a_service_a_replica() -> None:
    """Stable names from 0, one headless service each, everything owned; the job is Created."""
    job = Job(PS=2, Worker=2)
    assert job.pods == job.services == ["ps-0", "ps-1", "worker-0", "worker-1"]
    assert job.world.objects["Service", "mnist-ps-0"]["spec"]["clusterIP"] == "None"
    assert job.pod("worker-0")["metadata"]["ownerReferences"][0]["kind"] == "TFJob"
    assert job.pod("worker-0")["metadata"]["labels"]["training.kubeflow.org/job-role"] == "master"
    assert "training.kubeflow.org/job-role" not in job.pod("worker-1")["metadata"]["labels"]
    assert job.phase == "Created"
    assert job.true_conditions() == ["Created"]


def test_each_replica_is_told_of_the_cluster() -> None:
    """TF_CONFIG: addresses by type, the replica's own task; the evaluator is no part of the cluster."""
    job = Job(Chief=1, PS=1, Worker=1, Evaluator=1)
    cluster = {kind: [f"mnist-{kind}-0.default.svc:2222"] for kind in ("chief", "ps", "worker")}
    task = {"type": "evaluator", "index": 0}
    assert job.config("evaluator-0") == {"cluster": cluster, "task": task, "environment": "cloud"}
    assert job.config("ps-0")["task"] == {"type": "ps", "index": 0}


def test_a_single_replica_trains_alone() -> None:
    """No TF_CONFIG for a job of one replica; a user's own variable stays."""
    job = Job(Worker=1)
    assert "env" not in job.pod("worker-0")["spec"]["containers"][0]


@pytest.mark.parametrize(("compat", "key"), [("", "cluster"), ("sparse-cluster-key", "sparseCluster")])
def test_a_dynamic_worker_knows_itself_and_the_servers(compat: str, key: str) -> None:
    """With enableDynamicWorker, TF_CONFIG has no other workers, so that workers may come and go."""
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


ENDS: list[Any] = [
    pytest.param(
        {"Chief": 1, "PS": 1, "Worker": 1}, {"chief_0": "Succeeded"}, "Succeeded", id="the chief decides"
    ),
    pytest.param(
        {"Chief": 1, "Worker": 2},
        {"worker_0": "Succeeded", "worker_1": "Succeeded"},
        "Created",
        id="and nobody else",
    ),
    pytest.param({"Master": 1, "Worker": 1}, {"master_0": "Succeeded"}, "Succeeded", id="Master is a chief"),
    pytest.param({"PS": 1, "Worker": 2}, {"worker_0": "Succeeded"}, "Succeeded", id="else worker 0"),
    pytest.param({"PS": 1, "Worker": 2}, {"worker_1": "Succeeded"}, "Created", id="not another worker"),
    pytest.param(
        {"PS": 2}, {"ps_0": "Succeeded", "ps_1": "Succeeded"}, "Succeeded", id="a job of servers only"
    ),
    pytest.param({"PS": 2}, {"ps_0": "Succeeded"}, "Created", id="all of them"),
    pytest.param({"PS": 1, "Worker": 1}, {"ps_0": ("Failed", 1)}, "Failed", id="a failed server"),
    pytest.param({"Worker": 2}, {"worker_1": ("Failed", 1)}, "Failed", id="a failed worker"),
    pytest.param(
        {"Worker": 1, "Evaluator": 1}, {"evaluator_0": ("Failed", 3)}, "Failed", id="a failed evaluator"
    ),
    pytest.param(
        {"Chief": 1, "Worker": 1},
        {"worker_0": ("Failed", 1), "chief_0": "Succeeded"},
        "Failed",
        id="first comes first",
    ),
]


@pytest.mark.parametrize(("types", "phases", "end"), ENDS)
def test_who_decides_about_the_end(types: dict[str, Any], phases: dict[str, Any], end: str) -> None:
    """The chief's end is the job's, else worker 0's, else that of all; a failure of any replica is
    the job's.
    """
    job = Job(**types)
    for short, phase in phases.items():
        if job.phase not in ("Succeeded", "Failed"):
            job.set(**{short: phase})
    assert job.phase == end


TOLD_TO_END: list[Any] = [
    pytest.param({"tfReplicaSpecs": {"PS": {"replicas": 2}}}, id="other parameter servers"),
    pytest.param({"runPolicy": {"suspend": True}}, id="suspended"),
    pytest.param(None, id="its machine is drained"),
]


@pytest.mark.parametrize("edit", TOLD_TO_END)
def test_a_chief_that_is_told_to_end_has_not_succeeded(edit: dict[str, Any] | None) -> None:
    """A program that saves and exits with 0 on SIGTERM: its pod is Succeeded, and the job goes on."""
    job = Job(Chief=1, PS=1)
    job.set(chief_0="Running", ps_0="Running")
    if edit:
        job.edit(**edit)
    else:
        job.world.delete("Pod", "mnist-chief-0")
    job.set(chief_0="Succeeded")
    assert job.phase not in ("Succeeded", "Failed")
    job.settle()
    job.settle()
    job.edit(runPolicy={"suspend": False})
    assert "chief-0" in job.pods
    job.set(chief_0="Succeeded")
    assert job.phase == "Succeeded"


def test_what_has_succeeded_stays_so_when_it_is_deleted() -> None:
    """A pod that had succeeded before somebody deleted it, and that a finalizer keeps for a while."""
    job = Job({"successPolicy": "AllWorkers"}, Worker=2)
    job.set(worker_0="Succeeded")
    job.pod("worker-0")["metadata"]["deletionTimestamp"] = job.world.now.isoformat()
    job.settle()
    assert "worker-0" not in job.pods
    job.set(worker_1="Succeeded")
    assert job.phase == "Succeeded"


def test_all_workers_when_asked_for() -> None:
    """SuccessPolicy AllWorkers waits for every worker, also for one whose pod is gone after it had
    succeeded.
    """
    job = Job({"successPolicy": "AllWorkers"}, PS=1, Worker=2)
    job.set(worker_0="Succeeded", worker_1="Running")
    assert job.phase == "Running"
    job.world.delete("Pod", "mnist-worker-0")
    job.world.settle()
    assert "worker-0" not in job.pods, "what has succeeded is not run again"
    job.set(worker_1="Succeeded")
    assert job.phase == "Succeeded"


def test_the_message_names_who_failed_and_how() -> None:
    """A failed job says which replica, with its exit code."""
    job = Job(PS=1, Worker=2)
    job.set(worker_1=("Failed", 3))
    assert job.status["reason"] == "TFJobFailed"
    assert "mnist-worker-1 (exit code 3)" in job.status["message"]
    assert job.status["completionTime"]
    assert job.status["replicaStatuses"]["Worker"]["failed"] == 1


def test_the_message_names_why_a_replica_could_not_run() -> None:
    """A pod that its node refused says why where users look first."""
    job = Job(Worker=1)
    said = "the embedded cluster can't run this pod: spec.volumes[0].persistentVolumeClaim: not supported"
    refused = {"phase": "Failed", "reason": "Unsupported", "message": said}
    job.world.edit("Pod", "mnist-worker-0", {"status": refused})
    job.world.settle()
    assert f"mnist-worker-0 (Unsupported, without an exit code: {said})" in job.status["message"]


RESTARTS: list[Any] = [
    pytest.param("ExitCode", 1, "", False, id="1 is permanent"),
    pytest.param("ExitCode", 127, "", False, id="127 is permanent"),
    pytest.param("ExitCode", 128, "", True, id="128 is transient"),
    pytest.param("ExitCode", 137, "", True, id="137 is transient"),
    pytest.param("ExitCode", 139, "", True, id="139 is transient"),
    pytest.param("ExitCode", 139, "exit-codes-2021", False, id="139 was permanent"),
    pytest.param("ExitCode", 138, "exit-codes-2021", True, id="138 was not"),
    pytest.param("ExitCode", None, "", True, id="lost without a code"),
    pytest.param("OnFailure", None, "", True, id="OnFailure: lost"),
    pytest.param("Always", 1, "", True, id="Always"),
    pytest.param("Never", 137, "", False, id="Never"),
]


@pytest.mark.parametrize(("policy", "code", "compat", "restarted"), RESTARTS)
def test_which_failures_are_restarted(policy: str, code: int | None, compat: str, restarted: bool) -> None:
    """Restart policies and exit codes, whoever else runs at that time."""
    job = Job(compat=compat, PS=(1, policy), Worker=(2, policy))
    job.set(ps_0="Running", worker_0="Running", worker_1="Running")
    before = job.pod("worker-1")["metadata"]["uid"]
    job.set(worker_1=("Failed", code))
    if not restarted:
        assert job.phase == "Failed"
        return
    job.settle()
    assert job.pod("worker-1")["metadata"]["uid"] != before
    assert job.status["restarts"]["mnist-worker-1"]["count"] == 1
    job.set(worker_1="Running")
    assert job.phase == "Running"
    assert sorted(job.true_conditions()) == ["Created", "Running"]


@pytest.mark.parametrize("reason", ["Evicted", "Terminated", "Preempting"])
@pytest.mark.parametrize("code", [0, 1])
def test_a_disrupted_pod_is_replaced_whatever_it_exits_with(reason: str, code: int) -> None:
    """ExitCode: what its program made of being told to end says nothing about it."""
    job = Job(PS=(1, "ExitCode"), Worker=(1, "ExitCode"))
    job.set(ps_0="Running", worker_0="Running")
    before = job.pod("ps-0")["metadata"]["uid"]
    job.world.set_pod("mnist-ps-0", "Failed", code, reason)
    job.world.reconcile()
    assert f"mnist-ps-0 is being replaced ({reason}, exit code {code})" in job.status["message"]
    job.settle()
    assert job.pod("ps-0")["metadata"]["uid"] != before
    assert job.phase == "Running"
    assert job.status["restarts"]["mnist-ps-0"]["count"] == 1


def test_restarting_is_seen_while_a_replica_is_replaced() -> None:
    """Restarting excludes Running, and names the replica."""
    job = Job(PS=(1, "ExitCode"), Worker=(1, "ExitCode"))
    job.set(ps_0="Running", worker_0="Running")
    job.world.set_pod("mnist-worker-0", "Failed", 137)
    job.world.reconcile()
    assert job.phase == "Restarting"
    assert sorted(job.true_conditions()) == ["Created", "Restarting"]
    assert "mnist-worker-0" in job.status["message"]


def test_a_pod_that_was_replaced_leaves_its_number_and_how_it_ended() -> None:
    """Ten thousand entries have to fit into a status; each restart still counts once, whoever dies in
    between.
    """
    job = Job(Worker=(2, "ExitCode"))
    job.set(worker_0="Running")
    uid = job.pod("worker-1")["metadata"]["uid"]
    job.world.set_pod("mnist-worker-1", "Failed", 137)
    job.world.reconcile(steps=1)
    assert job.status["restarts"]["mnist-worker-1"] == {"count": 1, "uid": uid, "exitCode": 137}
    job.settle()
    assert job.pod("worker-1")["metadata"]["uid"] != uid
    assert {name: {k: v for k, v in r.items() if v} for name, r in job.status["restarts"].items()} == {
        "mnist-worker-1": {"count": 1, "exitCode": 137}
    }


def test_a_crash_loop_slows_down() -> None:
    """The second restart of a replica waits 10 s, the third 20 s."""
    job = Job(Worker=(2, "ExitCode"))
    for wait in (0, 10, 20):
        before = job.pod("worker-1")["metadata"]["uid"]
        job.set(worker_1=("Failed", 137))
        if wait:
            assert job.pod("worker-1")["metadata"]["uid"] == before, "too early"
            assert job.world.decide("TFJob", NAME).requeue_after == wait
            job.world.tick(wait)
        job.settle()
        assert job.pod("worker-1")["metadata"]["uid"] != before


def test_a_pod_that_its_node_refuses_is_not_made_again_at_once_for_ever() -> None:
    """Without any container's end the pause counts from when the pod was made."""
    job = Job(Worker=(1, "OnFailure"))
    for wait in (0, 10, 20):
        before = job.pod("worker-0")["metadata"]["uid"]
        job.world.set_pod("mnist-worker-0", "Failed", reason="UnexpectedAdmissionError")
        job.world.settle()
        if wait:
            assert job.pod("worker-0")["metadata"]["uid"] == before, "too early"
            assert job.world.decide("TFJob", NAME).requeue_after == wait
            job.world.tick(wait)
        job.settle()
        assert job.pod("worker-0")["metadata"]["uid"] != before


def test_back_off_limit() -> None:
    """A job survives as many restarts as its backoffLimit says, those by the node included."""
    job = Job(policies={"backoffLimit": 1, "cleanPodPolicy": "None"}, Worker=(2, "ExitCode"))
    job.set(worker_1=("Failed", 137))
    assert job.phase != "Failed"
    job.set(worker_0="Running")
    pod = job.pod("worker-0")
    pod["status"]["containerStatuses"] = [{"name": "tensorflow", "restartCount": 1, "state": {"running": {}}}]
    job.settle()
    assert (job.phase, job.status["reason"]) == ("Failed", "BackoffLimitExceeded")
    job.settle()
    assert job.pods == [], "what was stopped by force does not run on"


def test_deadline() -> None:
    """ActiveDeadlineSeconds counts from the start; the controller wakes up for it."""
    job = Job(policies={"activeDeadlineSeconds": 60}, Worker=1)
    job.set(worker_0="Running")
    assert job.world.decide("TFJob", NAME).requeue_after == 60
    job.world.tick(60)
    job.world.settle()
    assert (job.phase, job.status["reason"]) == ("Failed", "DeadlineExceeded")


GOING: list[Any] = [
    pytest.param({"tfReplicaSpecs": {"Worker": {"replicas": 2}}}, id="other workers"),
    pytest.param({"runPolicy": {"suspend": True}}, id="suspended"),
]


@pytest.mark.parametrize("edit", GOING)
def test_the_deadline_holds_while_pods_do_not_go(edit: dict[str, Any]) -> None:
    """Pods of an earlier cluster or of a suspended job that hang on a lost machine: the controller wakes up
    none the less.
    """
    job = Job(policies={"activeDeadlineSeconds": 60}, Worker=3)
    job.set(worker_0="Running", worker_1="Running", worker_2="Running")
    job.edit(**edit)
    assert job.world.decide("TFJob", NAME).requeue_after == 60
    job.world.tick(60)
    job.world.settle()
    assert (job.phase, job.status["reason"]) == ("Failed", "DeadlineExceeded")


CLEAN: list[Any] = [
    pytest.param({}, "", ["worker-0"], id="default: what runs goes"),
    pytest.param({"cleanPodPolicy": "Running"}, "", ["worker-0"], id="Running"),
    pytest.param({"cleanPodPolicy": "All"}, "", [], id="All"),
    pytest.param({"cleanPodPolicy": "None"}, "", ["ps-0", "worker-0", "worker-1"], id="None"),
    pytest.param({}, "keep-pods", ["ps-0", "worker-0", "worker-1"], id="as training-operator's default"),
]


@pytest.mark.parametrize(("policies", "compat", "left"), CLEAN)
def test_clean_up(policies: dict[str, Any], compat: str, left: list[str]) -> None:
    """CleanPodPolicy says which pods stay; a service stays only with a pod that runs."""
    job = Job(policies=policies, compat=compat, PS=1, Worker=2)
    job.set(ps_0="Running", worker_1="Running")
    job.set(worker_0="Succeeded")
    job.settle()
    assert job.phase == "Succeeded"
    assert job.pods == left
    assert job.services == [name for name in left if name != "worker-0"]
    assert job.status["replicaStatuses"]["Worker"]["succeeded"] == 1
    assert job.status["replicaStatuses"]["PS"].get("active", 0) == 0


@pytest.mark.parametrize(("end", "phase"), [("Succeeded", 0), ("Failed", 1)])
def test_the_end_is_written_before_pods_go(end: str, phase: int) -> None:
    """A controller that continues after another one's death finds the job's end in its status or its pods,
    and starts nothing."""
    job = Job(policies={"cleanPodPolicy": "All"}, Chief=1, Worker=2)
    job.set(chief_0="Running", worker_0="Running", worker_1="Running")
    job.world.set_pod("mnist-chief-0", end, phase)
    ending = job.world.decide("TFJob", NAME)
    assert not ending.delete
    job.world.apply("TFJob", NAME, ending, steps=1)
    job.world.apply("TFJob", NAME, job.world.decide("TFJob", NAME), steps=2)
    job.settle()
    job.settle()
    assert (job.phase, job.pods) == (end, [])


def test_time_to_live() -> None:
    """A finished job is deleted when its TTL has passed, and not before."""
    job = Job(policies={"ttlSecondsAfterFinished": 30}, Worker=1)
    job.set(worker_0="Succeeded")
    assert job.world.decide("TFJob", NAME).requeue_after == 30
    job.world.tick(30)
    job.world.reconcile()
    assert ("TFJob", NAME) not in job.world.objects


def test_suspend_and_resume() -> None:
    """Suspended: no pods, servers last; resumed: the same replicas, with a start of their own."""
    job = Job(PS=1, Worker=1)
    job.set(ps_0="Running", worker_0="Running")
    started = job.status["startTime"]
    job.edit(runPolicy={"suspend": True})
    assert "deletionTimestamp" in job.pod("worker-0")["metadata"]
    assert "deletionTimestamp" not in job.pod("ps-0")["metadata"], "a chief that saves needs the servers"
    job.settle()
    job.settle()
    assert (job.phase, job.pods, job.services) == ("Suspended", [], [])
    job.world.tick(5)
    job.edit(runPolicy={"suspend": False})
    assert job.status["reason"] == "TFJobResumed"
    assert job.status["startTime"] != started
    job.set(ps_0="Running", worker_0="Running")
    assert job.phase == "Running"


def test_other_parameter_servers_are_a_new_cluster() -> None:
    """A changed cluster: workers end first, then the servers, then all begin anew with the new TF_CONFIG."""
    job = Job(PS=1, Worker=1)
    job.set(ps_0="Running", worker_0="Running")
    job.edit(tfReplicaSpecs={"PS": {"replicas": 2}})
    assert job.phase == "Restarting"
    assert "deletionTimestamp" in job.pod("worker-0")["metadata"]
    assert "deletionTimestamp" not in job.pod("ps-0")["metadata"]
    assert "ps-1" not in job.pods, "nobody of the new cluster before all of the old are gone"
    job.settle()
    job.settle()
    assert job.pods == ["ps-0", "ps-1", "worker-0"]
    assert job.config("worker-0")["cluster"]["ps"] == [f"mnist-ps-{i}.default.svc:2222" for i in range(2)]
    job.set(ps_0="Running", ps_1="Running", worker_0="Running")
    assert job.phase == "Running"


@pytest.mark.parametrize("edit", GOING)
@pytest.mark.parametrize("policy", ["Never", "ExitCode", "OnFailure"])
def test_who_crashes_over_a_peer_that_was_told_to_end_costs_nothing(
    policy: str, edit: dict[str, Any]
) -> None:
    """Pods are deleted one after the other; a pod that fails meanwhile because its peers are gone does not
    count as a failure."""
    job = Job(policies={"backoffLimit": 0}, Worker=(3, policy))
    job.set(worker_0="Running", worker_1="Running", worker_2="Running")
    job.world.edit("TFJob", NAME, {"spec": edit})
    job.world.apply("TFJob", NAME, job.world.decide("TFJob", NAME), steps=1)
    job.world.reap()
    job.world.set_pod("mnist-worker-1", "Failed", 137 if policy == "ExitCode" else 1)
    restarted = {"name": "tensorflow", "restartCount": 1, "state": {"running": {}}}
    job.pod("worker-2")["status"]["containerStatuses"] = [restarted]
    for _ in range(3):
        job.settle()
    job.edit(runPolicy={"suspend": False})
    assert (job.phase in ("Created", "Restarting"), job.status.get("restarts", {})) == (True, {})


def test_pods_keep_their_cluster_where_users_depend_on_it() -> None:
    """Compat static-cluster: a change of replicas adds and removes pods, and restarts none."""
    job = Job(compat="static-cluster", PS=1, Worker=2)
    before = job.pod("worker-0")["metadata"]["uid"]
    job.edit(tfReplicaSpecs={"PS": {"replicas": 2}, "Worker": {"replicas": 1}})
    job.settle()
    assert job.pods == ["ps-0", "ps-1", "worker-0"]
    assert job.pod("worker-0")["metadata"]["uid"] == before


def test_a_gang_is_made_once_before_its_pods() -> None:
    """A scheduling policy gives a PodGroup and the pods' annotations."""
    job = Job(policies={"schedulingPolicy": {"queue": "q"}}, PS=1, Worker=2)
    group = job.world.objects["PodGroup", NAME]
    assert group["spec"] == {"minMember": 3, "queue": "q"}
    pod = job.pod("ps-0")
    assert pod["spec"]["schedulerName"] == "volcano"
    assert pod["metadata"]["annotations"]["scheduling.k8s.io/group-name"] == NAME


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_gang_follows_its_job(dynamic: bool) -> None:
    """A job that is scaled, either way and with pods that stay or go, has a gang of its new size: Volcano
    would wait for ever for the pods of a larger one. What Volcano itself has put there stays."""
    job = Job({"enableDynamicWorker": dynamic}, policies={"schedulingPolicy": {}}, PS=1, Worker=8)
    job.world.edit("PodGroup", NAME, {"spec": {"queue": "default", "minTaskMember": {"a": 1}}})
    for replicas in (4, 6):
        job.edit(tfReplicaSpecs={"Worker": {"replicas": replicas}})
        for _ in range(3):
            job.settle()
        own = {"minMember": replicas + 1, "queue": "default", "minTaskMember": {"a": 1}}
        assert job.world.objects["PodGroup", NAME]["spec"] == own
        assert len(job.pods) == replicas + 1
        assert not job.world.decide("TFJob", NAME).create, "it is looked at once an edit"
    policy = {"queue": "q", "minResources": {"cpu": "8"}, "priorityClass": "high"}
    job.edit(runPolicy={"schedulingPolicy": policy})
    spec = job.world.objects["PodGroup", NAME]["spec"]
    assert (spec["queue"], spec["minResources"], spec["priorityClassName"]) == ("q", {"cpu": "8"}, "high")
    job.edit(runPolicy={"schedulingPolicy": dict.fromkeys(policy)})
    assert job.world.objects["PodGroup", NAME]["spec"] == own


def test_a_gang_that_is_refused_is_tried_again() -> None:
    """Without Volcano the job says so; when it is there, the gang is made, although there are pods
    by then.
    """
    world = JobsNamespace()
    refusal = Refusal("PodGroup", NAME, False, "it has no PodGroup of scheduling.volcano.sh/v1beta1")
    world.refuse[NAME] = refusal
    world.add(make_tf_job(policies={"schedulingPolicy": {}}, Worker=2))
    for _ in range(3):
        world.reconcile()
    status = world.objects["TFJob", NAME]["status"]
    assert (status["phase"], status["reason"]) == ("Created", "CreateRefused")
    assert refusal.message in status["message"]
    assert world.decide("TFJob", NAME).requeue_after == 30
    world.refuse.clear()
    world.settle()
    assert world.objects["PodGroup", NAME]["spec"]["minMember"] == 2
    assert world.objects["TFJob", NAME]["status"]["reason"] == "TFJobCreated"


def test_a_gang_of_somebody_else_is_left_alone() -> None:
    """A PodGroup that is not the job's: NameConflict, also when the job is edited."""
    world = JobsNamespace()
    metadata = {"name": NAME, "labels": {"training.kubeflow.org/job-name": NAME}}
    foreign = {"apiVersion": "scheduling.volcano.sh/v1beta1", "kind": "PodGroup", "metadata": metadata}
    world.add(foreign | {"spec": {"minMember": 9}})
    world.add(make_tf_job(policies={"schedulingPolicy": {}}, Worker=2))
    world.settle()
    assert world.objects["TFJob", NAME]["status"]["reason"] == "NameConflict"
    world.edit("TFJob", NAME, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}})
    world.settle()
    assert world.objects["TFJob", NAME]["status"]["reason"] == "NameConflict"
    assert world.objects["PodGroup", NAME]["spec"] == {"minMember": 9}


def test_a_foreign_object_of_our_name_is_told() -> None:
    """A pod that is not the job's in a replica's place: NameConflict, and nothing else is made."""
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
    """ManagedBy MultiKueue: not ours."""
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


def test_dynamic_workers_may_be_lost() -> None:
    """A worker that fails for good ends a dynamic job only with the last one."""
    job = Job({"enableDynamicWorker": True}, PS=1, Worker=2)
    job.set(ps_0="Running", worker_0="Running", worker_1=("Failed", 1))
    assert job.phase == "Running"
    job.set(worker_0=("Failed", 1))
    assert job.phase == "Failed"
