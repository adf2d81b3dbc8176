"""`edl install` on a real cluster: accepted, running with the least rights, and useful to those whom it gives
rights."""

import dataclasses
import json
import uuid
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError, InvalidError
from edl_workflows.core.jobs.elastic_job.from_program import ProgramOptions, render_job
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.scale_plan.model import NodeResource, ReplicaResourceSpec, ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.api import WORKFLOWS
from edl_workflows.pipelines.install import flow_control, rbac
from edl_workflows.pipelines.install.crds import render_yaml
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import CrdMode, InstallOptions, InstallPart, PullPolicy
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS, MigratePsRequest
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.stages.submit import SUBMIT, SubmitRequest
from edl_workflows.pipelines.stages.suspend import RESUME, SUSPEND, ResumeRequest, SuspendRequest
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube import client, events, logs, resources
from edl_workflows.runtime.kube.client import DeletionOptions
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Object, Scope
from edl_workflows.services.master.stores.config_maps import ConfigMapStore
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.installed import (
    LIMITED,
    MASTER_CPU_LIMIT,
    TIME_TO_LIVE,
    Installed,
    allowed,
    apply,
    check_template,
    count_api_connections,
    here,
    job,
    keeps_strangers_out,
    make_namespace,
    pipeline,
    restricted_pod,
    wait_in_vain,
)
from tests.e2e.submitted import SubmittedJob

__all__ = ["here", "pipeline"]

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

PATIENCE = 240
"""Seconds; a busy machine takes a minute to start a program with its libraries."""


@pytest.mark.parametrize(
    ("named", "selector"), [(0, ""), (1, ""), (2, ""), (0, "team=vision,env in (test,prod),!frozen")]
)
def test_every_object_is_accepted_strictly(bed: Bed, cluster: Cluster, named: int, selector: str) -> None:
    """The API server takes every manifest as it is printed, with no unknown field."""
    own = f"test-{uuid.uuid4().hex[:6]}"
    where = NamespaceSelection(tuple(f"{own}-{index}" for index in range(named)), selector)
    options = InstallOptions(
        "registry.example/edl:1", own, where, kinds=("all",), parts=frozenset(InstallPart)
    )
    made = [own, *where.names]
    try:
        for name in made:
            make_namespace(cluster, name, {})
        apply(bed, installation_manifests(options), "--dry-run=server")
    finally:
        for name in made:
            client.delete(cluster, resources.NAMESPACES, name)


def test_another_team_uninstalls(here: Installed, bed: Bed, cluster: Cluster) -> None:
    """A team's installation is deleted as the page says, with `--crds without`. The definitions, the roles
    that all teams share, and the jobs of another team stay."""
    kept = job(bed, "kept")
    kept["spec"]["suspend"] = True  # it needs no pods
    uid = client.create(here.cluster, kept)["metadata"]["uid"]
    own = f"test-{uuid.uuid4().hex[:6]}"
    # Its pods need not run, so their image need not exist.
    options = InstallOptions(
        "registry.example/edl:1",
        own,
        NamespaceSelection.of(f"{own}-jobs"),
        kinds=("all",),
        pull_policy=PullPolicy.NEVER,
    )
    shared = installation_manifests(dataclasses.replace(options, crds=CrdMode.ONLY))
    before = _uids(bed, shared)
    make_namespace(cluster, f"{own}-jobs", {})
    try:
        apply(bed, installation_manifests(options))
    finally:
        printed = render_yaml(installation_manifests(dataclasses.replace(options, crds=CrdMode.WITHOUT)))
        bed.kubectl("delete", "-f", "-", stdin=printed)
        client.delete(cluster, resources.NAMESPACES, f"{own}-jobs")

    assert client.find(cluster, resources.NAMESPACES, own) is None
    assert _uids(bed, shared) == before
    assert client.get(here.cluster, resources.ELASTIC_JOBS, "kept")["metadata"]["uid"] == uid
    client.delete(here.cluster, resources.ELASTIC_JOBS, "kept")


def _uids(bed: Bed, objects: list[Object]) -> list[str]:
    """The uids of objects that are there and are to stay."""
    told = json.loads(bed.kubectl("get", "-o", "json", "-f", "-", stdin=render_yaml(objects)))["items"]
    assert not any("deletionTimestamp" in one["metadata"] for one in told)
    return [one["metadata"]["uid"] for one in told]


def test_both_replicas_are_ready_and_one_leads(here: Installed) -> None:
    """In a namespace that admits restricted pods only, both replicas become ready and one of them takes the
    Lease. All pods of the installation have the placement, priority, labels and resources of its
    `--pod-template`."""
    pods = here.pods()

    assert len(pods) == 2
    assert all(pod["status"]["phase"] == "Running" for pod in pods)
    for pod in client.list_objects(here.cluster, Scope(resources.PODS, here.options.namespace)).items:
        check_template(pod, "installation")
        assert pod["spec"]["containers"][0]["resources"] == LIMITED
    until(lambda: here.leader() in [pod["metadata"]["name"] for pod in pods], "one of the pods leads")


def test_a_pipelines_job_runs_to_its_end(here: Installed, pipeline: Cluster) -> None:
    """A job that an ordinary account submits gets its master and its workers, and succeeds. The API server
    has served its master in the masters' priority level, and the controller in the controller's. The job is
    deleted after the installation's time to live."""
    submitted = SubmittedJob.submit(pipeline, job(here.bed, "ends", "pass"))

    submitted.wait_phase(JobPhase.SUCCEEDED, seconds=PATIENCE)
    served = here.bed.kubectl("get", "--raw", "/metrics")
    for level in (names.CONTROLLER, flow_control.MASTERS):
        labels = f'flow_schema="{level}-{here.jobs}",priority_level="{level}"'
        assert f"apiserver_flowcontrol_dispatched_requests_total{{{labels}}}" in served
    until(
        lambda: client.find(pipeline, resources.ELASTIC_JOBS, submitted.name) is None,
        "its time to live is over",
        TIME_TO_LIVE + PATIENCE,
    )


def test_a_program_travels_with_its_job(here: Installed, pipeline: Cluster) -> None:
    """A script that is in no image runs in the job's pods, and its ConfigMap is deleted with the job."""
    bed = here.bed
    program = TrainingProgram.of_script("greet.py", "import sys\nprint('trained', *sys.argv[1:])\n")
    spec = restricted_pod(bed, []) | {"volumes": [{"name": "tmp", "emptyDir": {}}]}
    spec["containers"][0]["volumeMounts"] = [{"name": "tmp", "mountPath": "/tmp"}]
    template = {"spec": spec}
    options = ProgramOptions(image=bed.image, python=bed.python, arguments=["twice"], template=template)
    manifest = render_job(program, options)
    manifest["metadata"] = {**manifest.get("metadata", {}), "name": "travels"}
    begun = SUBMIT.begin(
        pipeline, SubmitRequest(manifest=manifest, program=program), StageIdentity("tests/cluster/travels")
    )
    SubmittedJob(pipeline, begun.name).wait_phase(JobPhase.SUCCEEDED, seconds=PATIENCE)

    client.delete(pipeline, resources.ELASTIC_JOBS, begun.name)
    name = program.config_map_name(begun.name)
    until(
        lambda: client.find(pipeline, resources.CONFIG_MAPS, name) is None,
        "the program's ConfigMap goes with the job",
        PATIENCE,
    )


def test_a_job_lives_no_longer_than_it_says(here: Installed, pipeline: Cluster) -> None:
    """A job whose time to live is over is deleted."""
    manifest = job(here.bed, "soon-gone", "pass")
    manifest["spec"]["ttlSecondsAfterFinished"] = 0
    SubmittedJob.submit(pipeline, manifest)

    until(
        lambda: client.find(pipeline, resources.ELASTIC_JOBS, "soon-gone") is None,
        "its time to live is over",
        PATIENCE,
    )


def test_the_other_replica_takes_over(here: Installed, pipeline: Cluster) -> None:
    """The leader's pod is killed while a job is suspended. The other replica continues, a job submitted in
    the meantime runs, and Events of the first leader are counted up and not repeated. The job's master holds
    at most two connections to the API server."""
    first = SubmittedJob.submit(pipeline, job(here.bed, "before"))
    first.wait_step(1, PATIENCE)
    (master,) = first.running(names.MASTER_TYPE)
    assert 0 < count_api_connections(here.jobs, master) <= 2
    first.run(SUSPEND, SuspendRequest(name=first.name), PATIENCE)
    first.run(RESUME, ResumeRequest(name=first.name), PATIENCE)
    leader = here.leader()

    client.delete(
        here.cluster, resources.PODS, leader, here.options.namespace, DeletionOptions(grace_seconds=0)
    )
    second = SubmittedJob.submit(pipeline, job(here.bed, "meanwhile"))

    second.wait_phase(JobPhase.RUNNING, seconds=120)
    first.run(SUSPEND, SuspendRequest(name=first.name), PATIENCE)
    assert here.leader() not in ("", leader)
    here.wait_ready()
    assert len(here.pods()) == 2
    told = client.get(here.cluster, resources.ELASTIC_JOBS, first.name)
    until(lambda: _counts(here.cluster, told).get("JobSuspended") == 2, "the event is counted up")
    for one in (first, second):
        one.run(DELETE, DeleteRequest(name=one.name), PATIENCE)


def _counts(cluster: Cluster, obj: Object) -> dict[str, int]:
    """How often each reason was told, where it was told by one Event."""
    return {event["reason"]: event["count"] for event in events.of_object(cluster, obj)}


def test_a_pipelines_account_can_do_all_that_stages_do(here: Installed, pipeline: Cluster) -> None:
    """The role `edl-pipeline` is enough to scale, edit, migrate and suspend a job, and to adopt and withdraw
    a plan. The job's pods have what the installation's templates for masters and for training say."""
    lives = SubmittedJob.submit(pipeline, job(here.bed, "lives", roles=("ps", "worker")))
    lives.wait_phase(JobPhase.RUNNING, seconds=PATIENCE)
    (master,) = lives.pods(names.MASTER_TYPE)
    check_template(master, "master")
    assert master["spec"]["containers"][0]["resources"]["limits"]["cpu"] == MASTER_CPU_LIMIT
    for pod in (*lives.pods("ps"), *lives.pods("worker")):
        check_template(pod, "training")
    three = ScaleRequest(job=lives.name, replicas={"worker": ReplicaResourceSpec(replicas=3)})
    lives.run(SCALE, three, PATIENCE)
    assert len(lives.pods("worker")) == 3

    # Stage migrate-ps looks for the server of a rank among the pods.
    with pytest.raises(InvalidError, match="no parameter server of this rank"):
        lives.run(MIGRATE_PS, MigratePsRequest(job=lives.name, migrate={7: NodeResource(cpu="1")}))
    lives.wait_step(1, PATIENCE)
    _reads_logs(pipeline, lives.name)
    _gives_an_older_role_the_rights_of_now(here, lives.name)
    _edit_replicas(pipeline, lives.name, "worker", 2)
    lives.until(
        lambda: len(lives.pods("worker")) == 2 or None, PATIENCE, "an edit of the spec is carried out"
    )
    lives.run(SUSPEND, SuspendRequest(name=lives.name), PATIENCE)

    # Nothing is carried out in a suspended job: the plan waits.
    owner = "tests/cluster/scale"
    begun = SCALE.begin(pipeline, three, StageIdentity(owner))
    taken = SCALE.begin(pipeline, three, StageIdentity(owner, attempt="2"))
    assert (taken.uid, taken.attempt) == (begun.uid, "2")
    assert ownership.cancel_object(pipeline, taken)
    assert client.find(pipeline, resources.SCALE_PLANS, taken.name) is None
    lives.run(DELETE, DeleteRequest(name=lives.name), PATIENCE)


def _gives_an_older_role_the_rights_of_now(here: Installed, job_name: str) -> None:
    """The controller patches the Role of a master that an earlier version made, here with one rule less."""
    cluster, name = here.cluster, names.master_account_name(job_name)
    rules = client.get(cluster, resources.ROLES, name)["rules"]
    client.patch(cluster, resources.ROLES, name, {"rules": rules[:-1]})
    until(lambda: client.get(cluster, resources.ROLES, name)["rules"] == rules, "the role is whole", 60)


def _edit_replicas(cluster: Cluster, name: str, role: str, replicas: int) -> None:
    body = {"spec": {"replicaSpecs": {role: {"replicas": replicas}}}}
    client.patch(cluster, resources.ELASTIC_JOBS, name, body)


def test_plans_of_people_are_tied_to_their_job_and_old_ones_go(here: Installed, pipeline: Cluster) -> None:
    """A plan without labels is tied to its job. Of finished plans the newest ten stay."""
    lives = SubmittedJob.submit(pipeline, job(here.bed, "plans"))
    lives.wait_phase(JobPhase.RUNNING, seconds=PATIENCE)

    for number in range(12):
        client.create(pipeline, _wrong_plan(f"plan-{number}", lives.name))

    lives.until(lambda: len(lives.plans()) == 10 or None, 60, "ten plans are left")
    assert {plan.status.reason for plan in lives.plans()} == {"InvalidPlan"}
    # Plans of one second are as old as their names say.
    good = _wrong_plan("plan-good", lives.name) | {
        "spec": {"ownerJob": lives.name, "replicaResourceSpecs": {"worker": {"replicas": 2}}}
    }
    client.create(pipeline, good)
    lives.await_plan("plan-good", ScalePlanPhase.SUCCEEDED, seconds=PATIENCE)
    tied = client.get(pipeline, resources.SCALE_PLANS, "plan-good")["metadata"]
    assert tied["labels"][names.JOB_LABEL] == lives.name
    assert [owner["name"] for owner in tied["ownerReferences"]] == [lives.name]
    lives.run(DELETE, DeleteRequest(name=lives.name), PATIENCE)


def _wrong_plan(name: str, job_name: str) -> Object:
    """A plan that the controller fails at once: the job has no such role."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "ScalePlan",
        "metadata": {"name": name},
        "spec": {"ownerJob": job_name, "replicaResourceSpecs": {"evaluator": {"replicas": 1}}},
    }


def _reads_logs(account: Cluster, job_name: str) -> None:
    """An account finds the job's pods and reads the log of one."""
    scope = resources.Scope(
        resources.PODS, account.namespace, label_selector=kind_of("ElasticJob").pods_of(job_name)
    )
    pods = client.list_objects(account, scope).items
    pod = next(pod for pod in pods if pod["status"]["phase"] == "Running")
    options = logs.LogOptions(pod["spec"]["containers"][0]["name"], tail_lines=1)
    assert logs.read(account, pod["metadata"]["name"], options=options)


def test_a_triggerer_waits_and_ends_what_its_task_began(here: Installed, pipeline: Cluster) -> None:
    """The role `edl-triggerer` is enough to wait for, suspend and delete a job or a plan, and to read
    logs."""
    triggerer = here.account("triggerer", rbac.TRIGGERER)
    begun = SUBMIT.begin(
        pipeline,
        SubmitRequest(manifest=job(here.bed, "killed")),
        StageIdentity("tests/cluster/t"),
    )
    SubmittedJob(pipeline, begun.name).wait_step(1, PATIENCE)

    wait_in_vain(triggerer, begun)
    _reads_logs(triggerer, begun.name)
    assert ownership.cancel_object(triggerer, begun, "suspend")
    SubmittedJob(pipeline, begun.name).wait_phase(JobPhase.SUSPENDED, seconds=PATIENCE)
    request = ScaleRequest(job=begun.name, replicas={"worker": ReplicaResourceSpec(replicas=2)})
    plan = SCALE.begin(pipeline, request, StageIdentity("tests/cluster/plan"))
    wait_in_vain(triggerer, plan)
    assert ownership.cancel_object(triggerer, plan)
    assert ownership.cancel_object(triggerer, begun)
    assert client.find(pipeline, resources.ELASTIC_JOBS, begun.name) is None


def test_a_viewer_sees_and_changes_nothing(here: Installed, pipeline: Cluster) -> None:
    """With the role `edl-viewer`, jobs and plans can be read and waited for; any change is forbidden."""
    viewer = here.account("viewer", rbac.VIEWER)
    begun = SUBMIT.begin(
        pipeline, SubmitRequest(manifest=job(here.bed, "seen")), StageIdentity("tests/cluster/seen")
    )
    request = ScaleRequest(job=begun.name, replicas={"worker": ReplicaResourceSpec(replicas=2)})
    plan = SCALE.begin(pipeline, request, StageIdentity("tests/cluster/seen-plan"))

    wait_in_vain(viewer, begun)
    wait_in_vain(viewer, plan)
    for resource, name in ((resources.ELASTIC_JOBS, begun.name), (resources.SCALE_PLANS, plan.name)):
        with pytest.raises(ForbiddenError):
            client.patch(viewer, resource, name, {"metadata": {"labels": {"a": "b"}}})
        with pytest.raises(ForbiddenError):
            client.delete(viewer, resource, name)
    client.delete(pipeline, resources.ELASTIC_JOBS, begun.name)


def test_a_master_reaches_its_own_job_only(here: Installed, pipeline: Cluster) -> None:
    """A master's account reads no Secret, not even its own job's, and writes no other job's status and state;
    no other job's pod reaches it."""
    for name in ("mine", "others"):
        SubmittedJob.submit(pipeline, job(here.bed, name)).wait_phase(JobPhase.RUNNING, seconds=PATIENCE)
        keeps_strangers_out(here, kind_of("ElasticJob"), name)
    master = here.as_account(names.master_account_name("mine"))

    assert client.get(master, resources.ELASTIC_JOBS, "mine")["metadata"]["name"] == "mine"
    for name in ("mine", "others"):
        with pytest.raises(ForbiddenError):
            client.get(master, resources.SECRETS, names.token_secret_name(name))
    with pytest.raises(ForbiddenError):
        client.get(master, resources.CONFIG_MAPS, names.state_config_map_name("others"))
    with pytest.raises(ForbiddenError):
        client.get(master, resources.ELASTIC_JOBS, "others")
    with pytest.raises(ForbiddenError):
        client.patch_status(master, resources.ELASTIC_JOBS, "others", {"message": "mine now"})
    with pytest.raises(ForbiddenError):
        client.delete(master, resources.PODS, names.master_pod_name("mine", 0))
    _stores_a_large_state(master, pipeline, "mine")
    for name in ("mine", "others"):
        client.delete(pipeline, resources.ELASTIC_JOBS, name)


def _stores_a_large_state(master: Cluster, pipeline: Cluster, name: str) -> None:
    """The account may create, change and delete the parts of its own job's state, as a master does."""
    client.patch(pipeline, resources.ELASTIC_JOBS, name, {"spec": {"suspend": True}})
    SubmittedJob(pipeline, name).wait_phase(JobPhase.SUSPENDED, seconds=PATIENCE)
    store = ConfigMapStore(master, name)
    state = store.load()
    assert state is not None
    large = [b'"' + letter * 2_000_000 + b'"' for letter in (b"a", b"b", b"c")]
    for document in large:
        store.save(document)
    store = ConfigMapStore(master, name)
    assert store.load() == large[-1]
    store.save(state)
    part = names.state_part_names(name)[0]
    assert client.find(master, resources.CONFIG_MAPS, part) is None


def test_a_pipelines_account_touches_jobs_and_plans_only(here: Installed, pipeline: Cluster) -> None:
    """With the role `edl-pipeline`, no pod can be created, read or deleted, no Secret read, and no status
    written."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "sneaky"},
        "spec": {"containers": [{"name": "main", "image": here.bed.image}]},
    }
    with pytest.raises(ForbiddenError):
        client.create(pipeline, pod)
    for verb in (client.get, client.delete):
        with pytest.raises(ForbiddenError):
            verb(pipeline, resources.PODS, "any")
    with pytest.raises(ForbiddenError):
        client.get(pipeline, resources.SECRETS, "any")
    with pytest.raises(ForbiddenError):
        client.patch_status(pipeline, resources.ELASTIC_JOBS, "any", {"phase": "Succeeded"})


def test_argos_agent_serves_with_its_own_rights(here: Installed) -> None:
    """The installed agent serves a workflow's plugin step. When Argo ends another workflow at its deadline,
    the agent deletes its job."""
    _workflow(here.cluster, "short", job(here.bed, "short", "pass"))
    # Before the first message about the step, which makes Argo process the workflow without the agent's note.
    _workflow(here.cluster, "late", job(here.bed, "late"), activeDeadlineSeconds=8)

    for name, phase in (("short", "Succeeded"), ("late", "Failed")):
        until(lambda name=name, phase=phase: _phase(here.cluster, name) == phase, f"{name} is {phase}", 120)  # type: ignore[misc]
    until(lambda: client.find(here.cluster, resources.ELASTIC_JOBS, "late") is None, "its job is deleted")


def _workflow(cluster: Cluster, name: str, manifest: Object, **spec: Any) -> None:
    """Run a workflow of one step that submits a job and waits for its end."""
    step = {"stage": "submit", "onCancel": "delete", "request": {"manifest": manifest}}
    templates = [{"name": "main", "timeout": "10m", "plugin": {"edl": step}}]
    workflow = {
        "apiVersion": WORKFLOWS.api_version,
        "kind": WORKFLOWS.kind,
        "metadata": {"name": name},
        "spec": {"entrypoint": "main", "templates": templates, **spec},
    }
    client.create(cluster, workflow, resource=WORKFLOWS)


def _phase(cluster: Cluster, workflow: str) -> str:
    return str(client.get(cluster, WORKFLOWS, workflow).get("status", {}).get("phase", ""))


@pytest.mark.parametrize(
    ("role", "verb", "expected"),
    [("edit", "create", True), ("view", "watch", True), ("view", "create", False)],
)
def test_people_with_edit_and_view_have_the_rights_too(
    here: Installed, role: str, verb: str, expected: bool
) -> None:
    """The roles for people are part of the cluster's own `edit` and `view`."""
    here.account(f"person-{role}", role)
    user = f"system:serviceaccount:{here.jobs}:person-{role}"
    right = {"namespace": here.jobs, "group": names.GROUP, "resource": "scaleplans", "verb": verb}

    until(lambda: allowed(here.cluster, user, right) is expected, f"{verb} with {role}: {expected}")


def test_rights_in_all_namespaces_are_accepted(bed: Bed, cluster: Cluster) -> None:
    """The installation for all namespaces is applied without pods. Its controller may list jobs in all
    namespaces, and change a Secret in none."""
    own = f"test-{uuid.uuid4().hex[:6]}"
    # Other tests run controllers with other accounts, whose work its admission policies would refuse, and
    # whose masters its FlowSchemas would match.
    options = InstallOptions(
        "registry.example/edl:1", own, kinds=("all",), admission_policies=False, flow_schemas=False
    )
    objects = installation_manifests(options)
    for one in objects:
        if one["kind"] == "Deployment":
            one["spec"]["replicas"] = 0
    binding = next(one for one in objects if one["kind"] == "ClusterRoleBinding")["metadata"]["name"]
    try:
        apply(bed, objects)
        user = f"system:serviceaccount:{own}:{names.CONTROLLER}"
        jobs = {"group": names.GROUP, "resource": "elasticjobs", "verb": "list"}
        until(lambda: allowed(cluster, user, jobs), "the controller may list the jobs of all namespaces")
        assert allowed(cluster, user, {"resource": "nodes", "verb": "watch"}), "preemptible DIJobs are placed"
        assert not allowed(cluster, user, {"resource": "secrets", "verb": "patch"})
    finally:
        bed.kubectl("delete", "--ignore-not-found", "clusterrolebinding", binding)
        bed.kubectl("delete", "--ignore-not-found", "--wait=false", "namespace", own)
