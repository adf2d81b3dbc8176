"""The agent and the real workflow controller: every way in which a step ends, and every way in which a
process does.

The jobs have no controller here: a test says itself what becomes of them. What is tested is whose turn it is
when.
"""

import datetime as dt
import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.reported_text import inert_value
from edl_workflows.core.protocol.trace_context import trace_id_of
from edl_workflows.pipelines.argo.api import COMPLETED_LABEL, GROUP, WORKFLOW_TASK_SETS, WORKFLOWS
from edl_workflows.pipelines.argo.executor_plugin import PluginOptions, plugin_manifests
from edl_workflows.pipelines.argo.templates import steps
from edl_workflows.pipelines.argo.templates.plugin_template import plugin_templates
from edl_workflows.pipelines.cli.services import crds
from edl_workflows.pipelines.waiting.outputs import MAX_WARNING
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.plugin_workflows import Argo, agent, job, submit, template
from tests.unit.pipelines.argo.agent.killed import POINTS

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]
GROUPS = ("Steps", "StepGroup", "Retry")


@pytest.fixture(scope="module")
def argo(bed: Bed, cluster: Cluster, module_namespace: str) -> Iterator[Argo]:
    """A namespace with an agent."""
    crds.install(["all"], kubeconfig=bed.kubeconfig)
    with agent(bed, module_namespace):
        yield Argo(cluster.in_namespace(module_namespace))


def test_outputs_reach_the_next_step(argo: Argo) -> None:
    """The name that a waiting step outputs reaches the next step, which reads the same job."""
    collect = template(
        "collect", "collect", name="{{inputs.parameters.job}}", inputs={"parameters": [{"name": "job"}]}
    )
    steps = [
        [{"name": "outputs", "template": "outputs"}],
        [
            {
                "name": "collect",
                "template": "collect",
                "arguments": {
                    "parameters": [{"name": "job", "value": "{{steps.outputs.outputs.parameters.name}}"}]
                },
            }
        ],
    ]
    pipeline = {"name": "pipeline", "steps": steps}
    argo.start("follow", [submit("outputs"), collect, pipeline], [["pipeline"]])
    argo.made("outputs")
    argo.finish("outputs")
    argo.ended("follow", "Succeeded")
    found = {one["name"]: one["value"] for one in argo.node("follow", "collect")["outputs"]["parameters"]}
    assert (found["name"], found["phase"]) == ("outputs", "Succeeded")


def test_a_second_run_with_the_same_data_and_code_makes_no_job(argo: Argo) -> None:
    """The workflow controller remembers the outputs of the first run; another version of the data is trained
    again. The outputs have the job's metrics, and its warnings as text that is not expanded again."""
    [remembered] = plugin_templates(steps.submit(memoize="edl-memo"))
    hostile = inert_value("{{workflow.name}} {{=workflow.uid}} \x1b[2J" + 5_000 * "x")

    def start(name: str, spec: str, version: str = "3") -> None:
        given = {"name": name, "spec": spec, "data": "digits", "data-version": version, "code": "c0ffee"}
        arguments = {"parameters": [{"name": key, "value": value} for key, value in given.items()]}
        step = {"name": "train", "template": "submit", "arguments": arguments}
        argo.start(name, [remembered, {"name": "pipeline", "steps": [[step]]}], [["pipeline"]])

    spec = json.dumps(job("any")["spec"])
    start("memo-first", spec)
    argo.made("memo-first")
    status = {"progress": {"step": 7, "metrics": {"loss": 0.5}}, "warnings": [hostile]}
    client.patch_status(argo.cluster, ELASTIC_JOBS, "memo-first", status)
    argo.finish("memo-first")
    argo.ended("memo-first", "Succeeded")
    start("memo-second", spec)
    argo.ended("memo-second", "Succeeded")
    first, second = argo.node("memo-first", "train"), argo.node("memo-second", "train")
    outputs = {one["name"]: one["value"] for one in second["outputs"]["parameters"]}

    assert second["memoizationStatus"]["hit"] is True
    assert "memo-second" not in argo.jobs()
    assert outputs == {one["name"]: one["value"] for one in first["outputs"]["parameters"]}
    assert json.loads(outputs["training-metrics"]) == {"loss": 0.5}
    assert outputs["warnings"] == hostile[:MAX_WARNING]
    assert first["message"].startswith(
        f"ElasticJob {argo.cluster.namespace}/memo-first Succeeded; step 7; loss 0.5"
    )
    start("memo-third", spec, version="4")
    argo.made("memo-third")
    argo.patch("memo-third", {"spec": {"shutdown": "Terminate"}})
    argo.gone("memo-third")


def test_a_step_that_waits_says_what_its_job_does(argo: Argo) -> None:
    """While a step waits, the message of its workflow node describes the job, and the node stays Pending, so
    that the step's ``timeout`` applies. The agent then removes the message from the task set, since the
    controller would otherwise write the workflow at every pass."""
    argo.start("talk", [submit("talks", timeout="45s")])
    argo.made("talks")
    status = {"phase": "Running", "progress": {"step": 7}, "message": "{{workflow.name}}"}
    client.patch_status(argo.cluster, ELASTIC_JOBS, "talks", status)
    until(lambda: "step 7" in argo.node("talk", "talks").get("message", ""), "the message", 40)
    node = argo.node("talk", "talks")

    def entries() -> dict[str, Any]:
        found = client.get(argo.cluster, WORKFLOW_TASK_SETS, "talk").get("status") or {}
        return dict(found.get("nodes") or {})

    assert node["phase"] == "Pending"
    assert "is Running" in node["message"]
    assert "{{" not in node["message"]
    until(lambda: not entries(), "the message is removed")
    argo.ended("talk", "Failed", 90)
    argo.gone("talks")


def test_a_job_belongs_to_the_trace_of_its_workflow(argo: Argo) -> None:
    """The annotation of the job, which its pods get as ``TRACEPARENT``, names the workflow's trace."""
    argo.start("traced", [submit("traced-job")])
    argo.made("traced-job")
    workflow = client.get(argo.cluster, WORKFLOWS, "traced")["metadata"]["annotations"]
    found = argo.jobs()["traced-job"]["metadata"]["annotations"]
    argo.finish("traced-job")
    argo.ended("traced", "Succeeded")

    assert trace_id_of(found[names.TRACE_ANNOTATION]) == workflow["workflows.argoproj.io/trace-id"]


def test_stop_cancels_and_runs_the_exit_handler(argo: Argo) -> None:
    """After `argo stop`, the job is deleted, and the exit handler, a plugin step, runs."""
    clean = template("clean", "delete", name="left-behind")
    client.create(argo.cluster, job("left-behind"))
    argo.start("stopped", [submit("stop"), clean], [["stop"]], onExit="clean")
    argo.made("stop")
    argo.patch("stopped", {"spec": {"shutdown": "Stop"}})
    argo.ended("stopped", "Failed")
    argo.gone("stop", "left-behind")
    assert argo.node("stopped", "stopped.onExit")["phase"] == "Succeeded"


def test_terminate_cancels(argo: Argo) -> None:
    """`argo terminate` runs no exit handler, but the agent cancels each step by its policy."""
    policies = {"t-delete": "delete", "t-suspend": "suspend", "t-keep": "keep"}
    steps = [submit(name, on_cancel=policy) for name, policy in policies.items()]
    argo.start("terminated", steps, [list(policies)])
    argo.made(*policies)
    argo.patch("terminated", {"spec": {"shutdown": "Terminate"}})
    argo.ended("terminated", "Failed")
    argo.gone("t-delete")
    until(lambda: argo.jobs()["t-suspend"]["spec"].get("suspend") is True, "suspended")
    assert not argo.jobs()["t-keep"]["spec"].get("suspend")


def test_workflow_deadline_takes_effect(argo: Argo) -> None:
    """The deadline takes effect through the agent, since the controller does not look again while only plugin
    nodes wait."""
    argo.start("late", [submit("late")], activeDeadlineSeconds=6)
    argo.made("late")
    argo.ended("late", "Failed")
    argo.gone("late")


def test_a_message_that_meets_the_deadline_costs_no_cancellation(argo: Argo) -> None:
    """If a message about a step stands in the task set when the controller ends the workflow for its
    deadline, the controller leaves the node Pending and the task in the task set. The agent sees that the
    workflow has ended, and deletes the job."""
    argo.start("met", [submit("meets")], activeDeadlineSeconds=6)
    argo.made("meets")
    until(lambda: bool(argo.node("met", "meets")), "the node")
    message = {"nodes": {argo.node("met", "meets")["id"]: {"phase": "Pending", "message": "is Running"}}}
    client.patch_status(argo.cluster, WORKFLOW_TASK_SETS, "met", message)
    client.patch_status(argo.cluster, ELASTIC_JOBS, "meets", {"phase": "Running", "progress": {"step": 7}})
    argo.ended("met", "Failed")
    argo.gone("meets")


def test_step_timeout_and_no_resurrection(argo: Argo) -> None:
    """A step of a DAG times out while its workflow runs on. The job stays, as its policy says, and its later
    end changes nothing. In a group of steps, one time-out would fail the whole group at once."""
    tasks = [{"name": name, "template": name} for name in ("slow", "steady")]
    steps = [submit("slow", timeout="6s", on_cancel="keep"), submit("steady")]
    argo.start("timeout", [*steps, {"name": "pair", "dag": {"tasks": tasks}}], [["pair"]])
    argo.made("slow", "steady")
    until(lambda: argo.node("timeout", "slow").get("phase") == "Failed", "the step's time is up")
    argo.finish("slow")
    argo.finish("steady")
    argo.ended("timeout", "Failed")
    assert argo.node("timeout", "slow")["phase"] == "Failed"
    assert argo.node("timeout", "steady")["phase"] == "Succeeded"


def test_step_retry_makes_the_failed_job_anew(argo: Argo) -> None:
    """After an automatic retry, which is another node of the step, the failed job is created again."""
    argo.start("retried", [submit("again", retryStrategy={"limit": 1})])
    (first,) = argo.made("again")
    argo.finish("again", "Failed")
    until(
        lambda: argo.jobs().get("again", {"metadata": {"uid": first}})["metadata"]["uid"] != first,
        "a new job",
    )
    argo.finish("again")
    argo.ended("retried", "Succeeded")
    assert "the test ended it" in argo.node("retried", "again(0)")["message"]


def test_manual_retry_makes_the_failed_job_anew(argo: Argo) -> None:
    """After `argo retry`, the same node starts again at a later time, and the failed job is created again."""
    argo.start("by-hand", [submit("by-hand")])
    (first,) = argo.made("by-hand")
    argo.finish("by-hand", "Failed")
    argo.ended("by-hand", "Failed")
    argo.patch("by-hand", retry_by_hand(argo.status("by-hand")))
    until(
        lambda: argo.jobs().get("by-hand", {"metadata": {"uid": first}})["metadata"]["uid"] != first,
        "a new job",
    )
    argo.finish("by-hand")
    argo.ended("by-hand", "Succeeded")


def retry_by_hand(status: dict[str, Any]) -> dict[str, Any]:
    """What `argo retry` changes (FormulateRetryWorkflow, workflow/util/util.go of Argo Workflows 4.1.4):
    failed nodes go, what groups them runs again, and the workflow has no phase and no end."""
    now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    again = {"phase": "Running", "message": None, "startedAt": now, "finishedAt": None}
    failed = {key: node for key, node in status["nodes"].items() if node["phase"] in ("Failed", "Error")}
    nodes = {key: again if node["type"] in GROUPS else None for key, node in failed.items()}
    return {
        "metadata": {"labels": {COMPLETED_LABEL: None}},
        "status": {"phase": "", "message": None, "startedAt": now, "finishedAt": None, "nodes": nodes},
    }


def test_deleting_the_workflow_cancels(argo: Argo) -> None:
    """When the workflow is deleted, the garbage collector removes the task set, and the agent deletes the
    job."""
    argo.start("deleted", [submit("deleted")])
    argo.made("deleted")
    client.delete(argo.cluster, WORKFLOWS, "deleted")
    argo.gone("deleted")


@pytest.mark.parametrize("point", [*POINTS, "waiting"])
def test_killed_agent(bed: Bed, cluster: Cluster, namespace: str, point: str) -> None:
    """The agent is killed with SIGKILL at each point of a step. The next agent continues, one job is created,
    and the step has its result."""
    argo = Argo(cluster.in_namespace(namespace))
    argo.start("killed", [submit("train"), template("collect", "collect", name="train")])
    with agent(bed, namespace, point) as first:
        if point != "before-begin":
            argo.made("train")
        if point == "waiting":
            first.kill()
        elif point.endswith("report"):
            argo.finish("train")
        assert first.wait(60) == -signal.SIGKILL
    before = {name: found["metadata"]["uid"] for name, found in argo.jobs().items()}
    with agent(bed, namespace):
        (uid,) = argo.made("train")
        argo.finish("train")
        argo.ended("killed", "Succeeded")
    assert set(argo.jobs()) == {"train"}
    assert before in ({}, {"train": uid})


def test_vanished_while_no_agent_ran(bed: Bed, cluster: Cluster, namespace: str) -> None:
    """While no agent runs, one workflow is terminated and another deleted. The next agent cancels their
    jobs."""
    argo = Argo(cluster.in_namespace(namespace))
    for name in ("terminated", "deleted", "alive"):
        argo.start(name, [submit(name)])
    with agent(bed, namespace):
        argo.made("terminated", "deleted", "alive")
    argo.patch("terminated", {"spec": {"shutdown": "Terminate"}})
    client.delete(argo.cluster, WORKFLOWS, "deleted")
    argo.ended("terminated", "Failed")
    with agent(bed, namespace):
        argo.gone("terminated", "deleted")
        argo.finish("alive")
        argo.ended("alive", "Succeeded")


def test_controller_restarted_while_waiting(bed: Bed, argo: Argo) -> None:
    """Argo's controller is restarted once before the job has ended and once just after. Both steps succeed
    with their own jobs."""
    argo.start("restarted", [submit("restart-1"), submit("restart-2")])
    (uid,) = argo.made("restart-1")
    bed.restart_argo()
    argo.finish("restart-1")
    bed.restart_argo()
    argo.made("restart-2")
    argo.finish("restart-2")
    argo.ended("restarted", "Succeeded", 60)
    assert argo.jobs()["restart-1"]["metadata"]["uid"] == uid


def test_bad_input_fails_the_step_at_once(argo: Argo) -> None:
    """Wrong types, a missing job, and a job of another workflow fail their steps at once with a message."""
    argo.start("owner", [submit("owned")])
    argo.made("owned")
    wrong = template("wrong", "scale", job="owned", replicas="many")
    missing = template("missing", "collect", name="nobody")
    taken = template("taken", "submit", manifest=job("owned"))
    argo.start("bad", [wrong, missing, taken], [["wrong", "missing", "taken"]])
    argo.ended("bad", "Failed", 30)
    said = {step: argo.node("bad", step)["message"] for step in ("wrong", "missing", "taken")}
    assert "request.replicas: a YAML map or list is required" in said["wrong"]
    assert '"nobody" not found' in said["missing"]
    assert f"belongs to argo/{argo.cluster.namespace}/owner/" in said["taken"]
    argo.patch("owner", {"spec": {"shutdown": "Terminate"}})
    argo.gone("owned")


def test_agent_without_a_permission(bed: Bed, cluster: Cluster, namespace: str, tmp_path: Path) -> None:
    """The step ends in Error, and says which right is missing."""
    argo = Argo(cluster.in_namespace(namespace))
    rules = [
        {"apiGroups": [GROUP], "resources": ["workflowtasksets"], "verbs": ["get", "list", "watch"]},
        {"apiGroups": [GROUP], "resources": ["workflowtasksets/status"], "verbs": ["patch"]},
        {"apiGroups": [GROUP], "resources": ["workflows"], "verbs": ["get"]},
        {"apiGroups": [names.GROUP], "resources": ["elasticjobs", "scaleplans"], "verbs": ["get", "list"]},
    ]
    kubeconfig = account(bed, namespace, rules, tmp_path)
    argo.start("no-right", [submit("refused")])
    with agent(bed, namespace, kubeconfig=kubeconfig):
        argo.ended("no-right", "Failed", 60)
    assert argo.node("no-right", "refused")["phase"] == "Error"
    message = argo.node("no-right", "refused")["message"]
    assert "cannot create resource" in message
    assert "ask for a Role that allows it" in message


def account(bed: Bed, namespace: str, rules: list[dict[str, Any]], folder: Path) -> Path:
    """A kubeconfig of a service account with these rights in its namespace."""
    meta = {"name": "limited", "namespace": namespace}
    subject = {"kind": "ServiceAccount", "name": "limited", "namespace": namespace}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "limited"}
    objects = [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "Role", "metadata": meta, "rules": rules},
        {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "RoleBinding", "metadata": meta,
         "roleRef": ref,
         "subjects": [subject]},
    ]  # fmt: skip
    bed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(objects))
    token = bed.token(namespace, "limited")
    config = yaml.safe_load(bed.kubeconfig.read_text())
    config["users"] = [{"name": one["name"], "user": {"token": token}} for one in config["users"]]
    path = folder / "limited.kubeconfig"
    path.write_text(yaml.safe_dump(config))
    return path


@pytest.fixture
def agent_pods(bed: Bed) -> Iterator[None]:
    """Argo's controller makes agent pods while the test lasts."""
    for disabled in ("false", "true"):
        change = json.dumps({"data": {"disableAgentPodCreation": disabled}})
        where = ("configmap", "workflow-controller-configmap", "--namespace", "argo")
        bed.kubectl("patch", *where, "--type", "merge", "--patch", change)
        bed.restart_argo()
        if disabled == "false":
            yield


def test_executor_plugin_in_agent_pods(bed: Bed, cluster: Cluster, namespace: str, agent_pods: None) -> None:
    """Where the controller creates agent pods, our plugin runs in them: one step is served, and another one
    cancelled on stop."""
    options = PluginOptions(bed.image, namespace, (bed.python, "-m", "edl_workflows"))
    documents = list(plugin_manifests(options))
    sidecar = yaml.safe_load(documents[-1]["data"]["sidecar.container"])
    sidecar |= {"imagePullPolicy": "Never"}
    documents[-1]["data"]["sidecar.container"] = yaml.safe_dump(sidecar)
    bed.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(documents))
    argo = Argo(cluster.in_namespace(namespace))
    account = {"serviceAccountName": "edl-executor-plugin"}
    argo.start("in-pod", [submit("pod-1"), submit("pod-2")], **account)
    argo.made("pod-1")
    argo.finish("pod-1")
    argo.made("pod-2")
    argo.patch("in-pod", {"spec": {"shutdown": "Stop"}})
    argo.ended("in-pod", "Failed", 60)
    argo.gone("pod-2")
    assert argo.node("in-pod", "pod-1")["phase"] == "Succeeded"
