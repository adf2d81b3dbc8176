"""The templates on the real Argo controller, with both ways to wait. The tests play the controller of most
jobs, which takes minutes instead of hours."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.pipelines.argo.api import (
    CLUSTER_WORKFLOW_TEMPLATES,
    CRON_WORKFLOWS,
    WORKFLOW_TEMPLATES,
    WORKFLOWS,
)
from edl_workflows.pipelines.argo.templates import schedules
from edl_workflows.pipelines.argo.templates.outputs import PARAMETERS
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.argo.templates.workflows import ACCOUNT
from edl_workflows.pipelines.cli import main
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from tests.argo.templates import WAYS, example
from tests.cluster.argo_runs import SPEC, Argo, DrivenJob, Run, argo, create, named, until
from tests.cluster.argo_templates import CHECKPOINT, here, role_spec
from tests.cluster.bed.bed import Bed
from tests.cluster.training import place

__all__ = ["here"]

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]

GOLDEN = Path(__file__).parents[1] / "argo" / "golden"
KINDS = {
    one.kind: one
    for one in (
        WORKFLOW_TEMPLATES, CLUSTER_WORKFLOW_TEMPLATES, CRON_WORKFLOWS,
        resources.SERVICE_ACCOUNTS, resources.ROLES, resources.ROLE_BINDINGS,
    )
}  # fmt: skip


@pytest.fixture(scope="module")
def nightly(here: Argo) -> str:
    """A CronWorkflow that was there from the module's beginning, so that its minute passes meanwhile; its
    name."""
    template = client.get(here.cluster, WORKFLOW_TEMPLATES, "elastic-scale-plugin")
    cron = schedules.cron(template, "* * * * *", {"job": "absent"})
    # Argo deletes older workflows, and the test may come to look at this one's first after many minutes.
    cron["spec"]["failedJobsHistoryLimit"] = 1000
    return str(create(here.cluster, CRON_WORKFLOWS, cron)["metadata"]["name"])


def _name_of(run: Run) -> str:
    return f"{run.name[:28].rstrip('-')}-{run.get()['metadata']['uid'][:8]}"


@pytest.mark.parametrize("file", sorted(GOLDEN.glob("*.yaml")), ids=lambda file: file.stem)
def test_manifests_are_accepted(file: Path, here: Argo, nightly: str) -> None:
    """The API server accepts each recorded manifest under strict validation."""
    for manifest in yaml.safe_load_all(file.read_text()):
        if (kind := KINDS.get(manifest["kind"])) is not None:  # Argo Events is not here
            name = f"{manifest['metadata']['name']}-tried"
            create(
                here.cluster,
                kind,
                {**manifest, "metadata": {**manifest["metadata"], "name": name}},
                ("dryRun", "All"),
            )


@pytest.mark.parametrize("way", WAYS)
def test_train(way: WaitMode, here: Argo) -> None:
    """The job is created once and waited for, and its results are the workflow's outputs, with the same names
    for both ways to wait."""
    run = here.start("elastic-train", way, spec=SPEC)
    job = here.job(_name_of(run)).appear()
    job.say("Running", progress={"step": 3, "records": 96})
    job.say(
        "Succeeded",
        progress={"step": 7, "records": 224, "metrics": {"loss": 0.5}},
        warnings=["the disk is full", 600 * "x"],
        checkpoint=CHECKPOINT,
        replicaStatuses={"worker": {"ready": 0}},
    )
    run.wait()

    found = run.outputs(run.name)
    assert tuple(found) == PARAMETERS
    uid = job.get()["metadata"]["uid"]
    expected = {
        "kind": "ElasticJob", "namespace": here.cluster.namespace, "name": job.name, "job": job.name,
        "uid": uid,
        "phase": "Succeeded", "step": "7", "records": "224", "checkpoint-uri": CHECKPOINT["uri"],
        "checkpoint-step": "7",
        "resumed-step": "", "stall-seconds": "",
        "warnings": f"the disk is full; {500 * 'x'}",
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected
    assert json.loads(found["training-metrics"]) == {"loss": 0.5}
    assert json.loads(found["replicas"]) == {"worker": 0}


@pytest.mark.parametrize("way", WAYS)
def test_train_and_scale(way: WaitMode, here: Argo) -> None:
    """The job is scaled once it has reached the step, while it trains. The outputs are those of the job at
    its end."""
    run = here.start(
        "elastic-train-and-scale", way, spec=SPEC, at_step="5", replicas="{worker: {replicas: 3}}"
    )
    job = here.job(_name_of(run)).appear()
    job.say("Running", progress={"step": 4, "records": 128})
    run.await_node("submit", "Succeeded")
    assert job.plans() == []
    job.say("Running", progress={"step": 5, "records": 160})
    job.say_of_plan(job.await_plan(), "Succeeded")
    run.await_node("scale", "Succeeded")
    job.say("Succeeded", progress={"step": 9, "records": 288})
    run.wait()

    assert job.plans()[0]["spec"]["replicaResourceSpecs"]["worker"]["replicas"] == 3
    found = run.outputs(run.name)
    assert (found["phase"], found["step"], found["name"]) == ("Succeeded", "9", job.name)


@pytest.mark.parametrize("way", WAYS)
def test_a_failed_job_fails_its_workflow_and_stays(way: WaitMode, here: Argo) -> None:
    """The step says that the job failed, and the exit handler keeps the failed job."""
    run = here.start("elastic-train", way, spec=SPEC)
    job = here.job(_name_of(run)).appear()
    job.say("Failed", reason="CriticalNodeFailed", message="worker-0 exited with 1")
    run.wait("Failed")

    assert "failed" in run.story().lower()
    assert job.found() is not None


@pytest.mark.parametrize(
    ("way", "policy"), [("resource", "delete"), ("resource", "suspend"), ("plugin", "suspend")]
)
def test_stopping_the_workflow_ends_its_job(way: WaitMode, policy: str, here: Argo) -> None:
    """Stopping the workflow ends its job: with resource steps by the exit handler, with plugin steps by the
    agent."""
    run = here.start("elastic-train", way, spec=SPEC, clean_up=policy)
    job = here.job(_name_of(run)).appear()
    job.say("Running")
    if way == "resource":
        run.await_node("submit(0)", "Running")
    run.stop()
    if policy == "suspend":
        until(lambda: job.get()["spec"]["suspend"], 180, "the job is suspended")
        job.say("Suspended")
    if way == "plugin":
        run.wait("Failed")
    # With resource steps the workflow itself ends minutes later: Argo's executor is killed before it has
    # reported.
    run.await_node("cancel", "Succeeded")

    assert (job.found() is None) == (policy == "delete")


@pytest.mark.parametrize("way", WAYS)
def test_clean_up_by_reference(way: WaitMode, here: Argo) -> None:
    """A workflow that refers to our stages and to our exit handler leaves no job behind when it is
    stopped. The template ``start`` goes on before the job has succeeded, and ``submit`` when it has."""
    name = f"by-reference-{way}"
    given = {
        "start": {"name": name, "spec": SPEC},
        "wait": {"name": name},
        "submit": {"name": f"{name}-2", "spec": SPEC},
    }
    tasks = [
        {
            "name": stage,
            "templateRef": {"name": f"edl-stages-{way}", "template": stage},
            "arguments": {"parameters": [{"name": key, "value": value} for key, value in values.items()]},
            "dependencies": ["start"] if stage == "wait" else [],
        }
        for stage, values in given.items()
    ]
    values = {"name": name, "policy": "delete", "status": "{{workflow.status}}"}
    handler = {
        "templateRef": {"name": f"edl-clean-up-{way}", "template": "main"},
        "arguments": {"parameters": [{"name": key, "value": value} for key, value in values.items()]},
    }
    main = {"name": "main", "dag": {"tasks": tasks}}
    run = here.run(
        name,
        {
            "entrypoint": "main",
            "serviceAccountName": ACCOUNT,
            "hooks": {"exit": handler},
            "templates": [main],
        },
    )
    job = here.job(name).appear()
    job.say("Running")
    run.await_node("start", "Succeeded")
    other = here.job(f"{name}-2").appear()
    other.say("Running")
    submit = run.node("submit")
    assert submit is None or submit["phase"] in ("Pending", "Running")
    other.say("Succeeded", progress={"step": 7, "records": 224})
    run.await_node("submit", "Succeeded")
    assert run.outputs("submit")["step"] == "7"
    run.stop()
    run.await_node("cancel", "Succeeded")

    assert job.found() is None


@pytest.mark.parametrize("way", WAYS)
def test_a_job_of_somebody_else_is_left_alone(way: WaitMode, here: Argo) -> None:
    """A workflow that names a job of somebody else fails with a message, and neither its step nor its exit
    handler changes the job."""
    name = f"theirs-{way}"
    theirs = {
        "apiVersion": resources.ELASTIC_JOBS.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": {"replicaSpecs": {"worker": role_spec(2)}},
    }
    before = client.create(here.cluster, theirs)
    run = here.start("elastic-train", way, name=name, spec=SPEC)
    run.wait("Failed")

    assert "conflict" in run.story() or "was not created by a pipeline" in run.story()
    after = here.job(name).get()
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_two_workflows_that_name_one_job(here: Argo) -> None:
    """The second workflow that names the job fails with a message; the first continues with its job."""
    first = here.start("elastic-train", "resource", name="shared", spec=SPEC)
    job = here.job("shared").appear()
    uid = job.get()["metadata"]["uid"]
    second = here.start("elastic-train", "resource", name="shared", spec=SPEC)
    second.wait("Failed")
    assert "conflict" in second.story()
    job.say("Succeeded")
    first.wait()

    assert job.get()["metadata"]["uid"] == uid


def test_a_lost_pod_finds_its_job_again(here: Argo) -> None:
    """If the pod of a resource step is deleted while it waits, the next one waits for the same job."""
    run = here.start("elastic-train", "resource", spec=SPEC)
    job = here.job(_name_of(run)).appear()
    uid = job.get()["metadata"]["uid"]
    run.await_node("submit(0)", "Running")
    (pod,) = client.list_objects(
        here.cluster,
        Scope(
            resources.PODS,
            here.cluster.namespace,
            label_selector=f"workflows.argoproj.io/workflow={run.name}",
        ),
    ).items
    client.delete(
        here.cluster, resources.PODS, pod["metadata"]["name"], options=client.DeletionOptions(grace_seconds=0)
    )
    run.await_node("submit(1)", "Running")
    job.say("Succeeded")
    run.wait()

    assert job.get()["metadata"]["uid"] == uid
    lost = run.node("submit(0)")
    assert lost is not None
    assert lost["phase"] in ("Error", "Failed")


def test_a_retried_plugin_step_makes_a_new_job(here: Argo) -> None:
    """The step has two retries. Its failed job is replaced by a new one of the same name."""
    run = here.run("retries", _one_step("retried", retries=2, spec=SPEC, name="retried"))
    job = here.job("retried").appear()
    failed = job.get()["metadata"]["uid"]
    job.say("Failed")
    until(lambda: (found := job.found()) and found["metadata"]["uid"] != failed, 180, "a new job")
    job.say("Succeeded")
    run.wait()

    assert run.outputs("retried")["uid"] == job.get()["metadata"]["uid"]


def _one_step(task: str, *, retries: int, **arguments: str) -> dict[str, Any]:
    from edl_workflows.pipelines.argo.templates import steps
    from edl_workflows.pipelines.argo.templates.plugin_template import plugin_templates

    (template,) = plugin_templates(steps.submit(retries=retries))
    values = [{"name": name, "value": value} for name, value in arguments.items()]
    call = {"name": task, "template": "submit", "arguments": {"parameters": values}}
    return {"entrypoint": "main", "templates": [{"name": "main", "dag": {"tasks": [call]}}, template]}


@pytest.mark.parametrize(
    ("way", "minimum", "promoted"),
    [("resource", "0.9", "Succeeded"), ("plugin", "0.9", "Succeeded"), ("plugin", "0.95", "Skipped")],
)
def test_retrain_promotes_what_passes_the_gate(
    way: WaitMode, minimum: str, promoted: str, here: Argo, bed: Bed
) -> None:
    """The evaluation gets the training's checkpoint, and the gate and the promotion get the evaluation's
    metric."""
    run = here.start(
        "elastic-retrain",
        way,
        spec=SPEC,
        image=bed.image,
        evaluate="""echo '{"accuracy": 0.93, "of": "'$EDL_CHECKPOINT_URI'"}'""",
        minimum=minimum,
        promote="echo $EDL_CHECKPOINT_URI $EDL_METRICS",
    )
    here.job(_name_of(run)).appear().say("Succeeded", checkpoint=CHECKPOINT)
    run.wait()

    assert json.loads(run.outputs(run.name)["metrics"]) == {"accuracy": 0.93, "of": CHECKPOINT["uri"]}
    node = run.node("promote")
    assert node is not None
    assert node["phase"] == promoted
    if promoted == "Succeeded":
        assert node["outputs"]["exitCode"] == "0"


@pytest.mark.parametrize(
    ("kind", "way"), [("mutexes", "resource"), ("mutexes", "plugin"), ("semaphores", "plugin")]
)
def test_locks_hold_while_a_step_waits(kind: str, way: WaitMode, here: Argo) -> None:
    """Two workflows share a lock. The job of the second is created only when that of the first has ended."""
    lock = f"{kind}-{way}"
    if kind == "semaphores":
        here.queue(lock, 1)
        held: dict[str, Any] = {"semaphores": [{"configMapKeyRef": {"name": lock, "key": "jobs"}}]}
    else:
        held = {"mutexes": [{"name": lock}]}
    first = _locked(here, way, f"{lock}-1", held)
    job = here.job(first.name).appear()
    second = _locked(here, way, f"{lock}-2", held)
    until(lambda: "Waiting" in str(second.get().get("status")), 180, "the second waits for the lock")
    assert here.job(second.name).found() is None
    job.say("Succeeded")
    first.wait()
    here.job(second.name).appear().say("Succeeded")
    second.wait()


def _locked(here: Argo, way: WaitMode, name: str, held: dict[str, Any]) -> Run:
    parameters = [{"name": "name", "value": name}, {"name": "spec", "value": SPEC}]
    return here.run(
        name,
        {
            "workflowTemplateRef": {"name": f"elastic-train-{way}"},
            "arguments": {"parameters": parameters},
            "synchronization": held,
        },
    )


def test_cluster_template_by_the_command_line(
    here: Argo, bed: Bed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A cluster template is built, submitted and watched with the command line. A wrong parameter is an error
    that names it."""
    where = ["--kubeconfig", str(bed.kubeconfig), "--namespace", here.cluster.namespace]
    file = tmp_path / "template.yaml"
    assert (
        main(["argo", "build", "elastic-train", "--waiting", "plugin", "--cluster-scope", "-o", str(file)])
        == 0
    )
    template = yaml.safe_load(file.read_text())
    template["metadata"]["name"] = f"train-{here.cluster.namespace}"
    create(here.cluster, CLUSTER_WORKFLOW_TEMPLATES, template)
    try:
        submit = ["argo", "submit", template["metadata"]["name"], "--cluster-scope", *where]
        assert main([*submit, "-p", "epochs=3"]) == 2
        assert main(submit) == 2
        assert main([*submit, "-p", f"spec={SPEC}", "--name", "by-hand"]) == 0
        job = here.job(_name_of(Run(here.cluster, "by-hand"))).appear()
        assert main(["argo", "watch", "by-hand", "--timeout", "1", *where]) == 8
        job.say("Succeeded", checkpoint=CHECKPOINT)
        capsys.readouterr()
        assert main(["argo", "watch", "by-hand", *where]) == 0
    finally:
        client.delete(here.cluster, CLUSTER_WORKFLOW_TEMPLATES, template["metadata"]["name"])

    printed = capsys.readouterr()
    assert str(CHECKPOINT["uri"]) in printed.out
    assert "submit: Succeeded" in printed.err


def test_cron_starts_a_workflow(here: Argo, nightly: str) -> None:
    """Within a minute the controller creates a workflow, which names what is missing and ends."""
    scope = Scope(
        WORKFLOWS, here.cluster.namespace, label_selector=f"workflows.argoproj.io/cron-workflow={nightly}"
    )
    begun = until(lambda: client.list_objects(here.cluster, scope).items, 90, f"a workflow of {nightly}")
    run = Run(here.cluster, begun[0]["metadata"]["name"])
    run.wait("Failed")
    client.delete(here.cluster, CRON_WORKFLOWS, nightly)

    assert "absent" in run.story()


ROOT = Path(__file__).parents[2]
REST = {"resource": "0.3", "plugin": "0.15"}
"""Seconds after each step of training. A resource step takes a pod, and its outputs a request each."""


@pytest.mark.parametrize("way", WAYS)
def test_jobs_of_a_sweep_share_a_queue(
    way: WaitMode, bed: Bed, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    """With a queue of two, the third job is created when one of the first two has ended. Until then its step
    says what it waits for. The last step names the most accurate model."""
    with argo(bed, cluster.in_namespace(namespace), (), tmp_path) as here:
        here.queue("edl-queue", 2)
        create(here.cluster, WORKFLOW_TEMPLATES, named(example(way, "example-sweep"), way))
        run = here.start(
            "example-sweep", way, image=bed.image, python=bed.python, configurations=CONFIGURATIONS
        )
        jobs = [here.job(f"{run.name}-{name}") for name in ("slow", "medium", "fast")]
        first, second = until(lambda: _two_of(jobs), 240, run.story)
        (third,) = [job for job in jobs if job not in (first, second)]
        until(lambda: "Waiting for" in run.story(), 240, run.story)
        assert third.found() is None
        for job, accuracy in ((first, 0.8), (second, 0.9), (third, 0.7)):
            job.appear(240).say(
                "Succeeded",
                progress={"step": 7, "records": 224, "metrics": {"accuracy": accuracy}},
                checkpoint={**CHECKPOINT, "uri": f"/models/{job.name}"},
            )
        run.wait(seconds=240)

        best = json.loads(run.outputs(run.name)["best"])
        assert best == {"accuracy": 0.9, "checkpoint": f"/models/{second.name}"}


CONFIGURATIONS = json.dumps(
    [{"name": name, "rate": "0.1", "why": 'rate: "high" # or not'} for name in ("slow", "medium", "fast")]
)
"""Argo writes all values of an item into the names of its nodes, by which objects are marked."""


def _two_of(jobs: list[DrivenJob]) -> list[DrivenJob] | None:
    found = [job for job in jobs if job.found() is not None]
    return found if len(found) == 2 else None


@pytest.mark.long
@pytest.mark.tensorflow
@pytest.mark.parametrize("way", WAYS)
def test_example_pipeline(
    way: WaitMode,
    request: pytest.FixtureRequest,
    bed: Bed,
    cluster: Cluster,
    namespace: str,
    tmp_path: Path,
    shared_folder: Path,
) -> None:
    """The example pipeline trains, scales, migrates and passes its gate in real pods, like Airflow's example
    of the same name."""
    assert not ROOT.is_relative_to("/tmp"), (
        "Argo gives its steps a /tmp of their own: clone the repository elsewhere"
    )
    begun = time.monotonic()
    mine = cluster.in_namespace(namespace)
    with place(request, bed, mine), argo(bed, mine, (), tmp_path) as running:
        create(mine, WORKFLOW_TEMPLATES, named(example(way), way))
        run = running.start(
            "example-elastic-training",
            way,
            image=bed.image,
            python=bed.python,
            training_dir=str(ROOT / "dags" / "training"),
            work_dir=str(shared_folder),
            workers="1",
            ps="1",
            epochs="50",
            step_delay=REST[way],  # it must still train when it is migrated
            warm_up_steps="20",
            min_accuracy="0.8",
        )
        run.wait(seconds=540)
        print(f"example pipeline, {way}: {time.monotonic() - begun:.0f} s")

        found = run.outputs(run.name)
        moved = run.outputs("restart")
        assert found["phase"] == "Succeeded"
        assert json.loads(found["metrics"])["accuracy"] >= 0.8
        assert json.loads(found["metrics"])["step"] == int(found["checkpoint-step"])
        assert int(moved["resumed-step"]) > int(moved["checkpoint-step"])
