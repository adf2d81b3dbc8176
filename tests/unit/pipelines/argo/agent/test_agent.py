"""The agent against a real API server: what it answers, what it cancels, and what it leaves alone."""

from collections import Counter
from typing import Any

import pytest

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent import progress, task_actions
from edl_workflows.pipelines.argo.agent.deadlines import PASSED_ANNOTATION
from edl_workflows.pipelines.argo.agent.run import ArgoAgent, ArgoAgentOptions
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.argo.agent.support import Argo, answered, body, parameters, running


def test_a_submitted_job_is_waited_for_and_its_outputs_are_handed_on(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """While the job runs, the step has no result. Then the step has the job's phase and outputs."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job(None), hint="train"))
        eventually(lambda: len(jobs(cluster)) == 1, "a job is made")
        (name,) = jobs(cluster)
        eventually(lambda: jobs(cluster)[name].get("status", {}).get("phase") == "Running", "it runs")
        assert argo.result("w", "n1") is None

        stand_in.end(name)
        answer = answered(argo, "w", "n1", "Succeeded")

    head = f"ElasticJob {cluster.namespace}/{name} Succeeded"
    assert answer["message"] == f"{head}; step 100; checkpoint at step 100"
    found = parameters(argo, "w", "n1")
    assert (found["name"], found["phase"], found["step"]) == (name, "Succeeded", "100")
    assert (found["checkpoint-uri"], found["checkpoint-step"]) == ("/ck/100", "100")


def test_text_of_a_step_is_no_label_of_a_metric(cluster: Cluster, argo: Argo) -> None:
    """Steps that ask for stages that do not exist count under one label: otherwise whoever writes workflows
    could create any number of time series."""
    argo.start("w")
    for index in range(3):
        argo.add("w", f"n{index}", body(f"made-up-{index}"))
    with running(cluster) as agent:
        for index in range(3):
            answered(argo, "w", f"n{index}", "Failed")

        def count() -> float | None:
            labels = {"stage": "", "phase": "Failed"}
            return agent.metrics.registry.get_sample_value("edl_argo_agent_results_total", labels)

        eventually(lambda: count() == 3, "all are counted under one label")


def test_a_failed_job_fails_the_step(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """The step is Failed, and not Error, which retry policies distinguish, and has the job's reason."""
    argo.start("w")
    argo.add("w", "n1", body("submit", manifest=elastic_job(ends="Failed")))
    with running(cluster):
        answer = answered(argo, "w", "n1", "Failed")
    assert "TestSaysSo: the test ended it" in answer["message"]


def test_a_step_that_does_not_wait_is_answered_when_it_has_begun(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """With ``wait: false`` the job continues after its task is gone and the agent has restarted."""
    argo.start("w")
    argo.add("w", "n1", body("submit", manifest=elastic_job(), wait=False))
    with running(cluster):
        answered(argo, "w", "n1", "Succeeded")
        argo.take("w", "n1")
        argo.complete("w")
    with running(cluster) as agent:
        argo.start("other")
        argo.add("other", "n1", body("collect", name="mnist"))
        answered(argo, "other", "n1", "Succeeded")
    assert set(jobs(cluster)) == {"mnist"}
    assert (
        agent.metrics.registry.get_sample_value("edl_argo_agent_cancellations_total", {"action": "delete"})
        is None
    )


def test_stages_follow_one_another(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """The stages of a pipeline over one job are steps, with numbers as texts, as Argo passes them."""
    argo.start("w")
    steps = {
        "n1": body("submit", manifest=elastic_job(), wait=False),
        "n2": body("wait", name="mnist", phases="[Running]"),
        "n3": body("scale", job="mnist", replicas="{worker: {replicas: 3}}"),
        "n4": body("checkpoint", job="mnist"),
        "n5": body("migrate-ps", job="mnist", replicas="3"),
        "n6": body("suspend", name="mnist"),
        "n7": body("resume", name="mnist"),
        "n8": body("delete", name="mnist"),
    }
    with running(cluster):
        for node, step in steps.items():
            argo.add("w", node, step)
            answered(argo, "w", node, "Succeeded")
            if node == "n5":
                found = parameters(argo, "w", node)
                assert (found["resumed-step"], found["checkpoint-step"]) == ("121", "120")
            argo.take("w", node)
    assert jobs(cluster) == {}


@pytest.mark.parametrize(
    ("step", "message"),
    [
        pytest.param({"stage": "fly"}, "'fly' is not a stage", id="unknown stage"),
        pytest.param("submit", "plugin.edl", id="no map"),
        pytest.param(body("scale", job="mnist", replicas="many"), "request.replicas", id="wrong type"),
        pytest.param(body("submit", manifest={"kind": "Pod"}), "Pod", id="no job"),
        pytest.param(
            body("scale", job="none", replicas={"worker": {"replicas": 1}}),
            '"none" not found',
            id="no such job",
        ),
        pytest.param(body("collect", name="none"), '"none" not found', id="collect of nothing"),
        pytest.param(
            body("collect", name="j", namespace="kube-system"), "--cross-namespace", id="other namespace"
        ),
    ],
)
def test_bad_input_fails_the_step_at_once(cluster: Cluster, argo: Argo, step: Any, message: str) -> None:
    """Each mistake fails the step at once, with a message that says what is wrong and where."""
    argo.start("w")
    argo.add("w", "n1", step)
    with running(cluster):
        answer = answered(argo, "w", "n1", "Failed")
    assert message in answer["message"]


def test_two_workflows_naming_one_job(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """The second workflow's step fails and says whose job it is; the first one continues."""
    for name in ("first", "second"):
        argo.start(name)
    with running(cluster):
        argo.add("first", "n1", body("submit", manifest=elastic_job()))
        eventually(lambda: "mnist" in jobs(cluster), "the first's job")
        argo.add("second", "n1", body("submit", manifest=elastic_job()))
        answer = answered(argo, "second", "n1", "Failed")
        assert f"belongs to argo/{cluster.namespace}/first/" in answer["message"]
        stand_in.end("mnist")
        answered(argo, "first", "n1", "Succeeded")


def test_tasks_of_others_are_left_alone(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """Tasks of other plugins and HTTP requests in the same task set are not touched."""
    argo.start("w")
    for node, template in {"p": {"plugin": {"other": {}}}, "h": {"http": {"url": "http://x"}}}.items():
        argo.add_task("w", node, template)
        argo.add_node("w", node, f"w.{node}")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job(ends="Succeeded")))
        answered(argo, "w", "n1", "Succeeded")
    assert set(argo.task_set("w")["status"]["nodes"]) == {"n1"}


def test_nothing_is_answered_before_the_workflow_has_the_node(cluster: Cluster, argo: Argo) -> None:
    """A result for an unknown node would stop the controller from reading results, so it waits."""
    argo.start("w")
    argo.start("later")
    with running(cluster):
        argo.add_task("w", "n1", {"plugin": {"edl": {"stage": "fly"}}})
        argo.add("later", "n1", {"stage": "fly"})
        answered(argo, "later", "n1", "Failed")
        assert argo.result("w", "n1") is None
        argo.add_node("w", "n1", "w.n1")
        answered(argo, "w", "n1", "Failed")


def test_a_node_that_has_ended_is_not_brought_back_to_life(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """If the task of an ended node is still there, the late result of its job is not written."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job("late")))
        argo.add("w", "n2", body("submit", manifest=elastic_job("fine")))
        eventually(lambda: set(jobs(cluster)) == {"late", "fine"}, "both jobs")
        argo.end_node("w", "n1", "Failed")
        stand_in.end("late")
        stand_in.end("fine")
        answered(argo, "w", "n2", "Succeeded")
        eventually(
            lambda: jobs(cluster)["late"].get("status", {}).get("phase") == "Succeeded", "the late job ends"
        )
        argo.add("w", "n3", body("collect", name="fine"))
        answered(argo, "w", "n3", "Succeeded")
    assert argo.result("w", "n1") is None


def test_a_retried_step_replaces_the_failed_job(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """A new attempt of the step creates a new job of the same name."""
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job(ends="Failed")), name="w.train(0)")
        answered(argo, "w", "n1", "Failed")
        uid = jobs(cluster)["mnist"]["metadata"]["uid"]
        argo.take("w", "n1")
        argo.add("w", "n2", body("submit", manifest=elastic_job(ends="Succeeded")), name="w.train(1)")
        answered(argo, "w", "n2", "Succeeded")
    assert jobs(cluster)["mnist"]["metadata"]["uid"] != uid


def test_a_manual_retry_uses_the_same_node_and_is_a_new_attempt(
    cluster: Cluster, argo: Argo, stand_in: StandIn
) -> None:
    """The same node starts later, and the job is created again, even if it had succeeded."""
    argo.start("w")
    step = body("submit", manifest=elastic_job(ends="Succeeded"))
    with running(cluster):
        argo.add("w", "n1", step)
        answered(argo, "w", "n1", "Succeeded")
        uid = jobs(cluster)["mnist"]["metadata"]["uid"]
        argo.take("w", "n1")
        argo.complete("w")
        argo.retry("w", "n1", step, started="2026-01-02T00:00:00Z")
        answered(argo, "w", "n1", "Succeeded")
    assert jobs(cluster)["mnist"]["metadata"]["uid"] != uid


def test_a_task_that_comes_back_is_answered_again(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """The controller died after it took the result and before it wrote the workflow. The task comes back and
    gets the same result, without a second job."""
    argo.start("w")
    step = body("submit", manifest=elastic_job(ends="Succeeded"))
    with running(cluster):
        argo.add("w", "n1", step)
        first = answered(argo, "w", "n1", "Succeeded")
        argo.drop_result("w", "n1")
        argo.vanish("w", "n1")
        argo.add_task("w", "n1", {"plugin": {"edl": step}})
        assert answered(argo, "w", "n1", "Succeeded") == first
    assert len(jobs(cluster)) == 1


def test_an_answer_half_taken_is_given_again_after_a_while(
    cluster: Cluster, argo: Argo, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the controller died after removing the result and before removing the task, the result is written
    again after a while."""
    monkeypatch.setattr(task_actions, "SETTLE_SECONDS", 0.5)
    argo.start("w")
    with running(cluster):
        argo.add("w", "n1", body("submit", manifest=elastic_job(ends="Succeeded")))
        answered(argo, "w", "n1", "Succeeded")
        argo.drop_result("w", "n1")
        answered(argo, "w", "n1", "Succeeded")


def test_a_passed_deadline_is_told_to_the_controller(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """While only plugin nodes wait, Argo's controller does not look at a workflow by itself. So the agent
    annotates one whose deadline has passed."""
    argo.start("late", activeDeadlineSeconds=1)
    argo.start("early", activeDeadlineSeconds=10**9)
    with running(cluster):
        for name in ("early", "late"):
            argo.add(name, "n1", body("submit", manifest=elastic_job(f"job-{name}")))
        eventually(
            lambda: PASSED_ANNOTATION in (argo.workflow("late")["metadata"].get("annotations") or {}), "told"
        )
    assert PASSED_ANNOTATION not in (argo.workflow("early")["metadata"].get("annotations") or {})


def test_only_the_asked_for_workflows_are_served(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """An agent for one workflow serves no tasks of others."""
    for name in ("mine", "other"):
        argo.start(name)
        argo.add(name, "n1", body("submit", manifest=elastic_job(name, ends="Succeeded")))
    with running(
        cluster, ArgoAgentOptions(namespaces=NamespaceSelection.of(cluster.namespace), workflow="mine")
    ):
        answered(argo, "mine", "n1", "Succeeded")
    assert set(jobs(cluster)) == {"mine"}


def test_an_agent_of_all_namespaces(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """An agent for all namespaces watches task sets and jobs in all of them. The job of a step is in the
    namespace of its workflow."""
    argo.start("w")
    argo.add("w", "n1", body("submit", manifest=elastic_job()))
    with running(cluster.in_namespace("default"), ArgoAgentOptions()) as agent:
        eventually(lambda: "mnist" in jobs(cluster), "the job")
        stand_in.end("mnist")
        answered(argo, "w", "n1", "Succeeded")
    watches = agent.metrics.registry.get_sample_value
    labels = {"verb": "watch", "resource": ELASTIC_JOBS.plural, "code": "200"}
    assert watches("edl_api_requests_total", labels) == 1.0
    assert jobs(cluster)["mnist"]["metadata"]["annotations"][OWNER_ANNOTATION].startswith(
        f"argo/{cluster.namespace}/w/"
    )


def test_waiting_steps_cost_no_request(
    cluster: Cluster, argo: Argo, stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of waiting steps needs two watches, one for task sets and one for jobs. Only messages about
    longer waits cost more."""
    monkeypatch.setattr(progress, "STEP_SECONDS", 3600.0)
    stand_in.stop()
    workflows = [f"w-{index}" for index in range(25)]
    for name in workflows:
        argo.start(name)
        argo.add(name, "n1", body("wait", name="nobody"))
    argo.start("seen")

    def add_at_once(node: str) -> None:
        """The node stands there before its task, so that the agent looks for it once only."""
        argo.add_node("seen", node, f"seen.{node}")
        argo.add_task("seen", node, {"plugin": {"edl": {"stage": "fly"}}})

    with running(cluster) as agent:
        serving = agent.metrics.registry.get_sample_value
        eventually(lambda: serving("edl_argo_agent_serving") == len(workflows), "all are served")
        add_at_once("n1")
        # A request is counted when its answer is back, which the server's state may show a moment before.
        eventually(lambda: requests(agent, "get") == len(workflows) + 2, "all are begun")
        eventually(lambda: requests(agent, "patch") == 1, "the first answer is counted")
        eventually(lambda: requests(agent, "watch") == 2, "both watches stand")
        eventually(
            lambda: requests(agent, "list") == 2 + len(KINDS), "it has looked for earlier agents' work"
        )
        before = requests(agent)
        client.create(cluster, elastic_job("somebody"))
        add_at_once("n2")
        eventually(lambda: requests(agent, "patch") == 2, "the second answer is counted")
        assert requests(agent) - before == 3, f"two looks and one answer of the new step: {counts(agent)}"
        assert requests(agent, "watch") == 2


def requests(agent: ArgoAgent, verb: str = "") -> float:
    """How many the agent made."""
    return sum(value for (found, _plural), value in counts(agent).items() if verb in ("", found))


def counts(agent: ArgoAgent) -> Counter[tuple[str, str]]:
    """How many requests the agent made, by verb and resource."""
    found: Counter[tuple[str, str]] = Counter()
    for family in agent.metrics.registry.collect():
        for one in family.samples:
            if one.name == "edl_api_requests_total":
                found[one.labels["verb"], one.labels["resource"]] += int(one.value)
    return found


def test_jobs_of_another_instance_are_left_alone(cluster: Cluster, argo: Argo, stand_in: StandIn) -> None:
    """The agent of one Argo controller leaves alone what that of another has begun."""
    argo.start("theirs", instance="blue")
    argo.start("ours")
    blue = ArgoAgentOptions(namespaces=NamespaceSelection.of(cluster.namespace), instance="blue")
    with running(cluster, blue):
        argo.add("theirs", "n1", body("submit", manifest=elastic_job("theirs")))
        argo.add("ours", "n1", body("submit", manifest=elastic_job("ours")))
        eventually(lambda: "theirs" in jobs(cluster), "their job")
        with running(cluster) as agent:
            eventually(lambda: "ours" in jobs(cluster), "our job")
            listed = len(KINDS) + 2
            eventually(lambda: requests(agent, "list") >= listed, "all kinds and both watches are listed")
            stand_in.end("ours")
            answered(argo, "ours", "n1", "Succeeded")
        stand_in.end("theirs")
        answered(argo, "theirs", "n1", "Succeeded")
    assert set(jobs(cluster)) == {"ours", "theirs"}
