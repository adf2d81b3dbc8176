"""What the fulfilment planner is asked."""

import datetime as dt
from typing import Any

from edl_workflows.core.jobs.di_job import pods as di_pods
from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.jobs.training_job import pods as training_pods
from edl_workflows.core.jobs.training_job.kind import TRAINING_JOB
from edl_workflows.core.jobs.training_job.model import TrainingJob
from edl_workflows.core.scaling.paddle.fulfilment import FulfilmentJob
from edl_workflows.services.controller.fulfilment_request import ScalingCandidate, build_request
from edl_workflows.services.controller.policy_input import kept_node, kept_pod
from tests.cases.kinds.di_job import make_di_job, task

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


def node(name: str, cpu: str = "4", **spec: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}]
    allocatable = {"cpu": cpu, "memory": "8Gi", "pods": "110"}
    return kept_node({
        "metadata": {"name": name, "labels": {"name": name}},
        "spec": spec,
        "status": {"allocatable": allocatable, "conditions": conditions},
    })  # fmt: skip


def pod(name: str, cpu: str, where: str = "", phase: str = "Running", **labels: str) -> dict[str, Any]:
    container = {"name": "main", "resources": {"requests": {"cpu": cpu}}}
    return kept_pod({
        "metadata": {"name": name, "namespace": "default", "labels": labels},
        "spec": {"nodeName": where, "containers": [container]},
        "status": {"phase": phase},
    })  # fmt: skip


def candidate(growing: bool = True, **spec: Any) -> ScalingCandidate:
    trainer = {"entrypoint": "t", "min-instance": 1, "max-instance": 5, "parallelism": 3}
    trainer["resources"] = {"requests": {"cpu": "1"}}
    manifest = {
        "apiVersion": "paddlepaddle.org/v1",
        "kind": "TrainingJob",
        "metadata": {"name": "ctr", "namespace": "default", "uid": "u"},
        "spec": {"trainer": trainer, **spec},
    }
    job = TrainingJob.parse(manifest)
    assert TRAINING_JOB.elastic is not None
    elastic = TRAINING_JOB.elastic(job)
    assert elastic is not None
    return ScalingCandidate(TRAINING_JOB, manifest, job, elastic, growing)


def trainer(index: int, where: str = "", phase: str = "Running") -> dict[str, Any]:
    labels = {
        training_pods.JOB_LABEL: "ctr",
        training_pods.ROLE_LABEL: "trainer",
        training_pods.INDEX_LABEL: str(index),
    }
    return pod(f"ctr-trainer-{index}", "1", where, phase, **labels)


def test_who_is_where_and_what_is_used() -> None:
    """A candidate's pods give its places, in the order of their indices. Pods of others count as used or
    waiting."""
    server = pod(
        "ctr-pserver-0", "2", "a", **{training_pods.JOB_LABEL: "ctr", training_pods.ROLE_LABEL: "pserver"}
    )
    found = build_request(
        [candidate()],
        [node("a"), node("b")],
        [
            trainer(10, "b"),
            trainer(2, "a"),
            trainer(3),
            trainer(4, "a", "Failed"),
            server,
            pod("web", "1", "b"),
            pod("late", "3"),
        ],
        NOW,
    )

    assert found.jobs["TrainingJob default/ctr"] == FulfilmentJob({"cpu": 1.0}, 1, 5, 3, ("a", "b"))
    assert found.jobs["pod default/late"] == FulfilmentJob({"cpu": 3.0, "pods": 1.0}, 1, 1, 1)
    assert found.nodes["a"].used == {"cpu": 2.0, "pods": 1.0}
    assert found.nodes["b"].used == {"cpu": 1.0, "pods": 1.0}


def test_pods_of_another_operator_are_no_instances() -> None:
    """A pod with the labels of a DIJob of this name but of another operator counts as use of its node."""
    learner = task("learner", template={"spec": {"containers": [{"name": "di", "image": "ding:1"}]}})
    manifest = make_di_job(learner, task("collector", 1, minReplicas=1, maxReplicas=4))
    manifest["metadata"] |= {"namespace": "default", "uid": "u"}
    job = DI_JOB.model.parse(manifest)
    assert DI_JOB.elastic is not None
    elastic = DI_JOB.elastic(job)
    assert elastic is not None
    labels = {di_pods.JOB_LABEL: manifest["metadata"]["name"], di_pods.TASK_LABEL: elastic.role}
    ours = pod("a-collector-0", "1", "a", **labels, **{di_pods.OPERATOR_LABEL: di_pods.OPERATOR})
    found = build_request(
        [ScalingCandidate(DI_JOB, manifest, job, elastic)],
        [node("a"), node("b")],
        [ours, pod("other", "1", "b", **labels)],
        NOW,
    )

    assert [one.places for one in found.jobs.values()] == [("a",)]
    assert (found.nodes["a"].used, found.nodes["b"].used) == ({}, {"cpu": 1.0, "pods": 1.0})


def test_where_pods_can_not_run() -> None:
    """Nodes that a node selector or a taint rules out are excluded for the job; a cordoned node is not
    schedulable; a node that has long been NotReady is left out."""
    tainted = node("b", taints=[{"key": "gpu", "effect": "NoSchedule"}])
    lost = node("d")
    lost["notReadySince"] = "2025-12-31T23:00:00Z"
    found = build_request([candidate()], [node("a"), tainted, node("c", unschedulable=True), lost], [], NOW)
    chosen = build_request([candidate(nodeSelector={"name": "a"})], [node("a"), node("b")], [], NOW)

    assert set(found.nodes) == {"a", "b", "c"}
    assert not found.nodes["c"].schedulable
    assert found.jobs["TrainingJob default/ctr"].excluded == {"b"}
    assert chosen.jobs["TrainingJob default/ctr"].excluded == {"b"}


def test_a_job_that_rests_may_shrink_only() -> None:
    """A job in its cool-down may get at most the replicas that it has."""
    asked = build_request([candidate(growing=False)], [node("a")], [], NOW).jobs["TrainingJob default/ctr"]

    assert (asked.min_instances, asked.max_instances, asked.parallelism) == (1, 3, 3)
