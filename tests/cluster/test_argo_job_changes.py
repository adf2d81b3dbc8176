"""Templates that change a running job, on the real Argo controller, with both ways to wait: scale, planned
changes, checkpoint, migration, suspend and resume. The tests play the job's master."""

import json
import re
from typing import Any

import pytest
import yaml

from edl_workflows.core.protocol.reported_text import inert_value
from edl_workflows.pipelines.argo.templates.step import WaitMode
from edl_workflows.pipelines.argo.templates.workflows import ACCOUNT
from edl_workflows.runtime.kube import client, resources
from tests.argo.templates import WAYS
from tests.cluster.argo_runs import SPEC, Argo, Run, until
from tests.cluster.argo_templates import CHECKPOINT, here, role_spec

__all__ = ["here"]

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("way", WAYS)
def test_scale(way: WaitMode, here: Argo) -> None:
    """The template creates a ScalePlan with typed values, whose reason names the step, and waits for it. If
    the plan fails, the step fails."""
    job = _made(here, f"scaled-{way}")
    run = here.start(
        "elastic-scale", way, job=job.name, replicas="{worker: {replicas: 3, resource: {cpu: '2'}}}"
    )
    plan = job.await_plan()
    job.say_of_plan(plan, "Scaling")
    job.say_of_plan(plan, "Succeeded")
    run.wait()

    spec = job.plans()[0]["spec"]
    assert spec["replicaResourceSpecs"]["worker"]["replicas"] == 3
    assert re.fullmatch(_requester(here, run, "scale"), spec["reason"])
    assert (run.outputs(run.name)["name"], run.outputs(run.name)["phase"]) == (plan, "Succeeded")
    refused = here.start("elastic-scale", way, job=job.name)
    job.say_of_plan(job.await_plan(1), "Failed", reason="InvalidPlan")
    refused.wait("Failed")


def _requester(here: Argo, run: Run, step: str) -> str:
    """A pattern of how a plan's reason names the step that asks for it. A resource step asks by a step of its
    own."""
    return rf"step {run.name}\S*[.]{step}\b\S* of workflow {here.cluster.namespace}/{run.name}"


PLANNED = {
    "stage": "job_stage_running",
    "replicaResourceSpecs": {"worker": {"replicas": 3}},
    "reasons": {"worker": "each worker added one step a second"},
}
"""What an optimizer says in ``status.autoscaling``."""


@pytest.mark.parametrize(
    ("way", "answer", "applied"),
    [
        ("resource", {"approve": "yes"}, "Succeeded"),
        ("plugin", {"approve": "yes"}, "Succeeded"),
        ("plugin", {"approve": "no"}, "Skipped"),
        ("resource", {}, "Skipped"),
    ],
    ids=["resource-yes", "plugin-yes", "plugin-no", "resource-no-answer"],
)
def test_a_planned_change_waits_for_a_person(
    way: WaitMode, answer: dict[str, str], applied: str, here: Argo
) -> None:
    """The proposed change is shown at a node that waits. On approval, one ScalePlan with the reasons carries
    it out. On rejection, or when the node is resumed without an answer, nothing is changed and the
    workflow succeeds."""
    job = _made(here, f"planned-{way}-{applied.lower()}")
    job.say("Running", autoscaling=PLANNED)
    run = here.start("elastic-planned-scale", way, job=job.name)
    asked = run.await_node("approve", "Running")
    (told,) = (one["value"] for one in asked["inputs"]["parameters"] if one["name"] == "plan")
    assert json.loads(told)["replicas"]["worker"]["replicas"] == 3
    assert job.plans() == []

    run.resume("approve", **answer)
    if applied == "Succeeded":
        job.say_of_plan(job.await_plan(), "Succeeded")
    run.wait()

    node = run.node("apply")
    assert node is not None
    assert node["phase"] == applied
    specs = [plan["spec"] for plan in job.plans()]
    assert [one["replicaResourceSpecs"]["worker"]["replicas"] for one in specs] == [3] * len(specs)
    assert len(specs) == (applied == "Succeeded")
    assert all("each worker added one step a second" in one["reason"] for one in specs)
    assert run.outputs(run.name)["plan"] == told


HOSTILE = (
    "{{workflow.name}}",
    "{{=workflow.name}}",
    "{{= sprig.env('HOME') }}",
    "{{{{workflow.name}}}}",
    "{{inputs.parameters.{{workflow.name}}}}",
    "{ {workflow.name} } {\u200b{workflow.name}}",
    "{{workflow.status}} }} {{tasks.plan.outputs.parameters.uid}}",
)
"""What a pod may report to be expanded by Argo."""


@pytest.mark.parametrize("way", WAYS)
def test_what_a_pod_reports_is_never_expanded(way: WaitMode, here: Argo) -> None:
    """Argo expressions in the status of a job are expanded neither in an output parameter, nor in the
    arguments of later steps, nor in a ScalePlan."""
    job = _made(here, f"hostile-{way}")
    reported = inert_value({**PLANNED, "reasons": {"worker": " ".join(HOSTILE)}})
    job.say("Running", autoscaling=reported)
    run = here.start("elastic-planned-scale", way, job=job.name)
    asked = run.await_node("approve", "Running")
    (told,) = (one["value"] for one in asked["inputs"]["parameters"] if one["name"] == "plan")
    text = reported["reasons"]["worker"]
    assert json.dumps(text)[1:-1] in told
    assert run.name not in told

    run.resume("approve", approve="yes")
    plan = job.await_plan()
    # The step that asks stands behind the reason.
    reason, _, requester = job.plans()[0]["spec"]["reason"].rpartition("; ")
    assert re.fullmatch(_requester(here, run, "apply"), requester)
    assert text in reason or json.dumps(text)[1:-1] in reason
    assert run.name not in reason
    job.say_of_plan(plan, "Succeeded", message=inert_value(" ".join(HOSTILE)))
    run.wait()
    assert run.outputs(run.name)["plan"] == told


@pytest.mark.parametrize("way", WAYS)
def test_a_plan_that_changes_nothing_is_put_to_nobody(way: WaitMode, here: Argo) -> None:
    """If the plan changes nothing, nobody is asked, and the workflow ends by itself."""
    job = _made(here, f"unplanned-{way}")
    job.say("Running", autoscaling={"stage": "job_stage_running", "notes": ["nothing to gain"]})
    run = here.start("elastic-planned-scale", way, job=job.name)
    run.wait()

    node = run.node("approve")
    assert node is not None
    assert node["phase"] == "Skipped"
    assert job.plans() == []


def _made(here: Argo, name: str) -> Any:
    """A running job that no workflow made."""
    manifest = {
        "apiVersion": resources.ELASTIC_JOBS.api_version,
        "kind": "ElasticJob",
        "metadata": {"name": name},
        "spec": yaml.safe_load(SPEC) | {"replicaSpecs": {"ps": role_spec(), "worker": role_spec()}},
    }
    client.create(here.cluster, manifest)
    job = here.job(name)
    job.say("Running")
    return job


def _stages(way: WaitMode, job: str) -> dict[str, Any]:
    """Every stage that changes or looks at a job, by reference to the library."""
    order = ["suspend", "resume", "wait", "collect", "delete"]
    tasks = [
        {
            "name": stage,
            "templateRef": {"name": f"edl-stages-{way}", "template": stage},
            "arguments": {"parameters": [{"name": "name", "value": job}, *_more(stage)]},
            "dependencies": order[: order.index(stage)][-1:],
        }
        for stage in order
    ]
    return {
        "entrypoint": "main",
        "serviceAccountName": ACCOUNT,
        "templates": [{"name": "main", "dag": {"tasks": tasks}}],
    }


def _more(stage: str) -> list[dict[str, str]]:
    return [{"name": "phases", "value": "Running"}, {"name": "step", "value": "5"}] if stage == "wait" else []


@pytest.mark.parametrize("way", WAYS)
def test_stages_by_reference(way: WaitMode, here: Argo) -> None:
    """A status from before a change does not end the step: suspend and resume wait for a status of the
    changed spec."""
    job = _made(here, f"stages-{way}")
    client.patch_status(here.cluster, resources.ELASTIC_JOBS, job.name, {"phase": "Suspended"})
    run = here.run(f"stages-{way}", _stages(way, job.name))
    until(lambda: job.get()["spec"]["suspend"], 180, "suspended by the step")
    node = run.node("suspend")
    assert node is not None
    assert node["phase"] in ("Running", "Pending")
    job.say("Suspended")
    until(lambda: not job.get()["spec"]["suspend"], 180, "resumed by the step")
    job.say("Running", progress={"step": 4, "records": 1}, replicaStatuses={"worker": {"ready": 1}})
    run.await_node("resume", "Succeeded")
    job.say("Running", progress={"step": 5, "records": 1})
    run.wait()

    assert run.outputs("collect")["step"] == "5"
    assert job.found() is None


@pytest.mark.parametrize("way", WAYS)
def test_checkpoint_migrate_restart(way: WaitMode, here: Argo) -> None:
    """The template creates two plans: a checkpoint, and a migration whose second half is a step of its own.
    Its figures are the outputs."""
    job = _made(here, f"moved-{way}")
    if way == "plugin":  # the stage looks for the pod of the rank
        _server(here, job.name)
    run = here.start(
        "ps-checkpoint-migrate-restart", way, job=job.name, replicas="2", migrate="{0: {cpu: 200m}}"
    )
    first = job.await_plan()
    job.say_of_plan(first, "Succeeded", checkpoint=CHECKPOINT)
    second = job.await_plan(1)
    job.say_of_plan(second, "Restarting", checkpoint=CHECKPOINT)
    run.await_node("migrate", "Succeeded")
    job.say_of_plan(second, "Succeeded", checkpoint=CHECKPOINT, resumedStep=8, stallSeconds=1.5)
    run.wait()

    found = run.outputs(run.name)
    outputs = ("name", "job", "checkpoint-step", "resumed-step", "stall-seconds")
    assert {name: found[name] for name in outputs} == {
        "name": second, "job": job.name, "checkpoint-step": "7", "resumed-step": "8", "stall-seconds": "1.5",
    }  # fmt: skip
    assert job.plans()[1]["spec"]["replicaResourceSpecs"]["ps"]["replicas"] == 2


def _server(here: Argo, job: str) -> None:
    labels = {
        "elasticjob.dlrover/name": job,
        "elasticjob.dlrover/replica-type": "ps",
        "elasticjob.dlrover/rank-index": "0",
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"{job}-edljob-ps-0", "labels": labels},
        # Never placed: only its labels are looked at.
        "spec": {"schedulerName": "nobody", "containers": [{"name": "main", "image": "none:1"}]},
    }
    client.create(here.cluster, pod)
