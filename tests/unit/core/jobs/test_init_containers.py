"""Init containers in jobs of all kinds: what a job says of those that fail or wait, and how often their pods
are made anew.
"""

import copy
from typing import Any

import pytest

from edl_workflows.core.jobs import cache_fields, manifests
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.elastic_job.pods import NodeToMake, node_pod
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.jobs.obstacles import why_pods_wait
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace

JOB_KINDS = [kind for kind in KINDS if kind.view is not None]
each_kind = pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.name)

FAILED = {"terminated": {"exitCode": 4, "message": "resolving\ncurl: no such host", "finishedAt": None}}
POD: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "p", "uid": "1"},
    "spec": {"containers": [{"name": "main"}], "initContainers": [{"name": "fetch"}]},
}


def _pod(phase: str, init: dict[str, Any], main: dict[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    waiting = {"waiting": {"reason": "PodInitializing"}}
    status = {
        "phase": phase,
        "initContainerStatuses": [{"name": "fetch", "state": init}],
        "containerStatuses": [{"name": "main", "state": main or waiting}],
    }
    return {**POD, "spec": POD["spec"] | spec, "status": status}


def _fail_init(world: JobsNamespace, name: str) -> None:
    world.set_pod(name, "Failed")
    ended = FAILED["terminated"] | {"finishedAt": world.now.isoformat()}
    status = world.objects["Pod", name]["status"]
    status["initContainerStatuses"] = [{"name": "fetch", "state": {"terminated": ended}}]


@each_kind
def test_a_failed_init_container_is_told_paced_and_has_a_budget(kind: Kind) -> None:
    """The job's message names the init container, its exit code and its last line. The pod is not made anew
    each second, and its failures count: in the end the job has failed, or waits for minutes."""
    world = JobsNamespace()
    job = world.add(copy.deepcopy(KIND_CASES[kind.name].example))
    name, messages, made = job["metadata"]["name"], [], 0
    for _ in range(12):
        world.settle()
        for key, pod in list(world.objects.items()):
            if key[0] == "Pod" and pod["status"]["phase"] == "Pending":
                made += 1
                _fail_init(world, key[1])
        world.reconcile()
        messages.append(world.objects[kind.name, name]["status"].get("message", ""))
        world.tick(1.0)

    told = "init container fetch ended with exit code 4: curl: no such host"
    assert any(told in message for message in messages), messages
    pods_at_once = len({key for key in world.objects if key[0] == "Pod"})
    assert made <= 3 * max(1, pods_at_once)


def test_a_failed_init_container_is_no_disruption() -> None:
    """Its pod ended by itself, so the end counts; the end of a pod that was evicted meanwhile does not. The
    controller's cache keeps what this needs."""
    failed = cache_fields.keep_pod(_pod("Failed", FAILED))
    evicted = _pod("Failed", FAILED)
    evicted["status"] |= {"reason": "Evicted"}

    assert not manifests.was_disrupted(failed)
    assert manifests.was_disrupted(evicted)
    assert manifests.last_words(failed) == (
        ": init container fetch ended with exit code 4: curl: no such host"
    )


def test_a_sidecar_that_was_stopped_did_not_fail_the_pod() -> None:
    """Sidecars are init containers, too, and end with a signal when the pod's other containers have ended."""
    killed = {"terminated": {"exitCode": 137}}
    pod = _pod("Failed", killed, {"terminated": {"exitCode": 3, "message": "bad data"}})

    assert manifests.failed_init_container(pod) == {}
    assert manifests.last_words(pod) == ": bad data"


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (
            _pod("Pending", {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}),
            "p: init container fetch: CrashLoopBackOff: back-off 40s",
        ),
        (
            _pod("Pending", {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}),
            "p: init container fetch: ImagePullBackOff: no such image",
        ),
        (
            _pod(
                "Pending",
                {"terminated": {"exitCode": 0}},
                {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "s" not found'}},
            ),
            'p: CreateContainerConfigError: secret "s" not found',
        ),
        (
            _pod("Running", {"terminated": {"exitCode": 0}}, {"waiting": {"reason": "CrashLoopBackOff",
                 "message": "back-off 5m0s"}}),
            "p: CrashLoopBackOff: back-off 5m0s",
        ),
        (
            {**POD, "spec": POD["spec"] | {"schedulerName": "volcano"}, "status": {"phase": "Pending"}},
            "p: no scheduler has looked at it yet; does volcano run (schedulerName)?",
        ),
        (_pod("Pending", {"running": {}}), ""),
        ({**POD, "status": {"phase": "Pending"}}, ""),
    ],
)  # fmt: skip
def test_why_a_pod_waits(pod: dict[str, Any], expected: str) -> None:
    """What an init container waits for, a container that crashes again and again, and a scheduler that does
    not exist reach the job's message, also by the controller's cache."""
    assert why_pods_wait([pod]) == expected
    assert why_pods_wait([cache_fields.keep_pod(pod)]) == expected


@each_kind
def test_the_last_line_of_an_init_container_can_be_quoted(kind: Kind) -> None:
    """Kubernetes reports the end of its output only if the pod asks for it."""
    cases, world = KIND_CASES[kind.name], JobsNamespace()
    job = copy.deepcopy(cases.detailed)
    template: Any = job
    for part in cases.template:
        template = template[part]
    template["spec"]["initContainers"] = [{"name": "fetch", "image": "x:1", "command": ["true"]}]
    stored = world.add(job)
    world.settle()
    made = [pod for (what, _), pod in world.objects.items() if what == "Pod"]
    if kind.name == "ElasticJob":  # its master asks for them later
        made.append(node_pod(ElasticJob.parse(stored), NodeToMake("worker", 0, 0, 1)))
    policies = [
        container.get("terminationMessagePolicy")
        for pod in made
        for container in pod["spec"].get("initContainers", ())
    ]

    assert set(policies) == {"FallbackToLogsOnError"}


@pytest.mark.parametrize(
    ("pod", "expected"),
    [
        (_pod("Failed", FAILED), "fetch"),
        (_pod("Pending", {"running": {}}), "fetch"),
        (_pod("Pending", {"terminated": {"exitCode": 0}}), ""),
        (_pod("Running", {"running": {}}, {"running": {}}), ""),
        (_pod("Failed", {"terminated": {"exitCode": 137}}, {"terminated": {"exitCode": 1}}), ""),
    ],
)
def test_whose_log_is_shown_before_the_program_has_started(pod: dict[str, Any], expected: str) -> None:
    """`edl logs` shows the init container that runs or has failed, and the program once it has started."""
    assert manifests.init_container_at_work(pod) == expected
