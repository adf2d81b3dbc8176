"""The allocator in a controller, on the embedded API server, with nodes that the tests make."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.kubernetes.api import DI_JOBS, PODS
from edl_workflows.core.kubernetes.names import SCENARIO_ANNOTATION
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.partitions import owner_of
from edl_workflows.core.scaling.first_fit import FirstFitPolicy
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.runtime.process.partition import CLUSTER_WIDE, Partition
from edl_workflows.services.controller.allocator import AllocatorOptions
from edl_workflows.services.controller.manager import Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.run import RunOptions
from edl_workflows.testing import ApiServerProcess
from tests.controller_thread import RunningController, run_in_thread
from tests.unit.core.jobs.di_jobs import node_asked_for
from tests.unit.core.scaling.hints import HINTS
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.farm import Farm
from tests.unit.services.controller.killed_allocator import POINTS
from tests.unit.services.controller.support import names_of
from tests.unit.services.di_server.support import create, di_job, job

_ROOT = Path(__file__).parents[4]


@pytest.fixture
def options(cluster: Cluster) -> RunOptions:
    """For the test's namespace; the cycle is too long to help a test."""
    manager = ManagerOptions(
        namespaces=NamespaceSelection.of(cluster.namespace),
        kinds=(DI_JOB,),
        allocator=AllocatorOptions(period=3600),
    )
    return RunOptions(manager=manager)


@pytest.fixture
def controller(cluster: Cluster, options: RunOptions) -> Iterator[RunningController]:
    """A running one."""
    running = run_in_thread(cluster, options)
    assert running.wait_ready(240)
    yield running
    running.stop()


def allocation(cluster: Cluster, name: str = "walk") -> list[str]:
    return job(cluster, name).status.allocation


def becomes(cluster: Cluster, expected: list[str], name: str = "walk", seconds: float = 240) -> None:
    """Wait for an allocation."""
    eventually(lambda: allocation(cluster, name) == expected, seconds)


def test_a_new_job_is_placed_and_its_pods_follow(
    cluster: Cluster, farm: Farm, controller: RunningController
) -> None:
    """A new job is placed at once, not with the next cycle. It has one pod per replica, which the scheduler
    binds to the allocated node."""
    one, two = farm.add("a", 2), farm.add("b", 2)
    create(cluster, farm.task(3, minReplicas=1, maxReplicas=3), preemptible=True)
    becomes(cluster, [one, one, two])

    def placed() -> list[str]:
        found = client.list_objects(cluster, Scope(PODS, cluster.namespace)).items
        return sorted(node_asked_for(pod) for pod in found)

    eventually(lambda: placed() == [one, one, two])


def test_fixed_jobs_are_left_alone(cluster: Cluster, farm: Farm, controller: RunningController) -> None:
    """A job that is not preemptible gets its pods and no allocation; nodes aren't even watched for it."""
    create(cluster, farm.task(2))
    eventually(lambda: len(names_of(cluster, Scope(PODS, cluster.namespace))) == 2)
    assert allocation(cluster) == []
    metrics = controller.controller.metrics.registry
    watched = {"verb": "watch", "resource": "nodes", "code": "200"}
    assert metrics.get_sample_value("edl_api_requests_total", watched) is None


def test_a_job_of_another_operator_is_not_placed(cluster: Cluster, farm: Farm, options: RunOptions) -> None:
    """A preemptible job that is left alone gets no allocation, while one beside it does."""
    one = farm.add("a", 4)
    create(cluster, farm.task(1), name="theirs", preemptible=True)
    alone = {"type": "LeftAlone", "status": "True", "reason": "PodsOfAnotherOperator"}
    client.patch_status(cluster, DI_JOBS, "theirs", {"conditions": [alone]})
    running = run_in_thread(cluster, options)
    try:
        create(cluster, farm.task(1), preemptible=True)
        becomes(cluster, [one], seconds=60)
        assert allocation(cluster, "theirs") == []
    finally:
        running.stop()


def test_of_replicas_that_share_the_jobs_the_owner_places_all(
    cluster: Cluster, farm: Farm, options: RunOptions
) -> None:
    """Of two replicas, only the owner of decisions about the whole cluster places jobs, also those that the
    other one owns. When it is lost, the other one places them."""
    one = farm.add("a", 1)
    partition = Partition()
    other = 1 - owner_of(CLUSTER_WIDE, (0, 1))
    partition.begin(other, frozenset({0, 1}))
    manager = Manager(cluster, options.manager, ControllerMetrics(), lambda: None, partition)
    manager.start()
    try:
        assert manager.world.wait_synced(240)
        create(cluster, farm.task(1), preemptible=True)
        eventually(lambda: bool(manager.world.items(DI_JOB.source)))
        (allocator,) = manager._scaling
        assert allocator._scale_if_owned(True) is None
        assert allocation(cluster) == []
        partition.observe(frozenset({other}))

        becomes(cluster, [one])
    finally:
        manager.stop()


def test_the_owner_alone_exports_how_many_jobs_wait(
    cluster: Cluster, farm: Farm, options: RunOptions
) -> None:
    """The number of waiting jobs is exported by the replica that places jobs, from its first decision on. It
    is no longer exported when another replica places them, and is 0 when there is nothing to place."""
    farm.add("a", 1)
    partition, metrics = Partition(), ControllerMetrics()
    owner = owner_of(CLUSTER_WIDE, (0, 1))
    partition.begin(owner, frozenset({owner}))
    manager = Manager(cluster, options.manager, metrics, lambda: None, partition)

    def waiting() -> float | None:
        return metrics.registry.get_sample_value("edl_controller_unallocated_jobs")

    manager.start()
    try:
        assert manager.world.wait_synced(240)
        create(cluster, farm.task(3, minReplicas=3, maxReplicas=3), preemptible=True)
        eventually(lambda: waiting() == 1)
        partition.begin(1 - owner, frozenset({0, 1}))
        assert waiting() is None
        partition.begin(owner, frozenset({owner}))
        client.delete(cluster, DI_JOBS, "walk")
        eventually(lambda: waiting() == 0)
    finally:
        manager.stop()


def test_nodes_come_change_and_go(cluster: Cluster, farm: Farm, controller: RunningController) -> None:
    """Each added, changed or removed node gives a new allocation at once."""
    create(cluster, farm.task(1, minReplicas=1, maxReplicas=3), preemptible=True)
    one = farm.add("a", 1)
    becomes(cluster, [one])
    farm.offer("a", 2)
    becomes(cluster, [one, one])
    two = farm.add("b", 9)
    becomes(cluster, [one, one, two])
    farm.remove("a")
    becomes(cluster, [two, two, two])
    farm.remove("b")
    becomes(cluster, [])


def test_an_end_and_a_suspension_make_room(
    cluster: Cluster, farm: Farm, controller: RunningController
) -> None:
    """A waiting job gets the nodes of one that is suspended or deleted. A resumed one waits for free
    nodes."""
    one = farm.add("a", 1)
    create(cluster, farm.task(), name="first", preemptible=True)
    becomes(cluster, [one], "first")
    create(cluster, farm.task(), name="second", preemptible=True)
    client.patch(cluster, DI_JOBS, "first", {"spec": {"suspend": True}})
    becomes(cluster, [one], "second")
    becomes(cluster, [], "first")
    client.patch(cluster, DI_JOBS, "first", {"spec": {"suspend": False}})
    client.delete(cluster, DI_JOBS, "second")
    becomes(cluster, [one], "first")


def test_an_edit_is_followed(cluster: Cluster, farm: Farm, controller: RunningController) -> None:
    """An edit of the replicas gives a new allocation at once."""
    one = farm.add("a", 9)
    create(cluster, farm.task(2), preemptible=True)
    becomes(cluster, [one] * 2)
    client.patch(cluster, DI_JOBS, "walk", {"spec": {"tasks": [farm.task(4)]}})
    becomes(cluster, [one] * 4)


def test_the_cycle_sees_what_no_event_tells(cluster: Cluster, farm: Farm, options: RunOptions) -> None:
    """When a foreign pod ends, the next cycle gives its resources to a job."""
    one = farm.add("a", 2)
    container = {"name": "main", "image": "a", "resources": {"requests": {"cpu": "2"}}}
    foreign = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "foreign"}}
    client.create(cluster, foreign | {"spec": {"nodeName": one, "containers": [container]}})
    client.patch_status(cluster, PODS, "foreign", {"phase": "Running"})
    manager = replace(options.manager, allocator=AllocatorOptions(period=0.5))
    running = run_in_thread(cluster, replace(options, manager=manager))
    try:
        create(cluster, farm.task(), preemptible=True)
        eventually(lambda: bool(job(cluster).status.reason == "Unallocated"))
        client.patch_status(cluster, PODS, "foreign", {"phase": "Succeeded"})
        becomes(cluster, [one])
    finally:
        running.stop()


def test_profilings_reach_the_policy(
    cluster: Cluster, farm: Farm, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The policy gets what the jobs reported."""
    told: list[Any] = []

    class Curious(FirstFitPolicy):
        def optimize(self, jobs: Any, nodes: Any, previous: Any) -> dict[str, list[str]]:
            told.extend(info.profilings for info in jobs.values())
            return super().optimize(jobs, nodes, previous)

    monkeypatch.setattr("edl_workflows.services.controller.allocator.policy_of", lambda _: Curious())
    farm.add("a", 1)
    create(cluster, farm.task(), preemptible=True)
    client.patch_status(cluster, DI_JOBS, "walk", {"profilings": {"speed": 3.5}})
    manager = replace(options.manager, allocator=AllocatorOptions(period=0.5))
    running = run_in_thread(cluster, replace(options, manager=manager))
    try:
        eventually(lambda: {"speed": 3.5} in told)
    finally:
        running.stop()


def test_a_job_starts_with_what_former_ones_of_its_scenario_have_learned(
    cluster: Cluster, farm: Farm, options: RunOptions
) -> None:
    """If earlier jobs of its scenario reported hints, even jobs that have ended, a new job has more than one
    replica from the next cycle on. A job without a scenario has one."""
    one = farm.add("a", 9)

    def submit(name: str, scenario: str) -> None:
        manifest = di_job(farm.task(minReplicas=1, maxReplicas=8), name=name, preemptible=True)
        manifest["metadata"]["annotations"] = {SCENARIO_ANNOTATION: scenario} if scenario else {}
        client.create(cluster, manifest, resource=DI_JOBS)

    submit("monday", "nightly")
    learned = {"phase": "Succeeded", "profilings": HINTS | {"maxProfiledReplicas": 2}}
    client.patch_status(cluster, DI_JOBS, "monday", learned)
    manager = replace(options.manager, allocator=AllocatorOptions(policy="pollux", period=0.5))
    running = run_in_thread(cluster, replace(options, manager=manager))
    try:
        submit("other", "")
        submit("tuesday", "nightly")
        becomes(cluster, [one] * 2, "tuesday")
        becomes(cluster, [one], "other")
    finally:
        running.stop()


def test_a_policy_that_fails_or_lies_changes_nothing(
    cluster: Cluster, farm: Farm, options: RunOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception in a policy and answers beyond the job's bounds are logged and change no allocation. They
    do not stop the loop, and a later valid answer is applied."""
    one = farm.add("a", 9)
    answers: list[Any] = [ValueError("defect"), ["nowhere"], [one] * 9, [one]]
    found: list[list[str]] = []
    """The job's allocation at each call."""

    class Odd(FirstFitPolicy):
        def optimize(self, jobs: Any, nodes: Any, previous: Any) -> dict[str, list[str]]:
            answer = answers[min(len(found), len(answers) - 1)]
            found.append(allocation(cluster))
            if isinstance(answer, Exception):
                raise answer
            return dict.fromkeys(jobs, answer)

        def allocate(self, job: Any, nodes: Any) -> list[str]:
            return []

    monkeypatch.setattr("edl_workflows.services.controller.allocator.policy_of", lambda _: Odd())
    create(cluster, farm.task(2), preemptible=True)
    manager = replace(options.manager, allocator=AllocatorOptions(period=0.2))
    with structlog.testing.capture_logs() as logs:
        running = run_in_thread(cluster, replace(options, manager=manager))
        try:
            becomes(cluster, [one])
        finally:
            running.stop()
    assert found[: len(answers)] == [[]] * len(answers)
    said = [(line["event"], line.get("nodes")) for line in logs if line["log_level"] == "error"]
    impossible = "the policy's allocation is not possible"
    assert said == [("defect in a look", None), (impossible, ["nowhere"]), (impossible, [one] * 9)]


@pytest.mark.slow
@pytest.mark.parametrize("point", POINTS)
def test_a_killed_controller_is_succeeded_by_the_next(
    server: ApiServerProcess, cluster: Cluster, farm: Farm, options: RunOptions, point: str
) -> None:
    """The controller is killed between the decision and its write, or right after it. The next one makes the
    same allocation."""
    one, two = farm.add("a", 2), farm.add("b", 2)
    create(cluster, farm.task(3), preemptible=True)
    command = [
        sys.executable,
        "-m",
        "tests.unit.services.controller.killed_allocator",
        point,
        "--kinds",
        "DIJob",
    ]
    command += ["--kubeconfig", str(server.kubeconfig), "--namespace", cluster.namespace]
    command += ["--no-leader-elect", "--metrics-port", "0"]
    dying = subprocess.run(command, cwd=_ROOT, env={**os.environ, "PYTHONPATH": str(_ROOT)}, timeout=240)
    assert dying.returncode == -signal.SIGKILL
    assert allocation(cluster) == ([] if point == "before-write" else [one, one, two])
    running = run_in_thread(cluster, options)
    try:
        becomes(cluster, [one, one, two], seconds=60)
        eventually(lambda: len(names_of(cluster, Scope(PODS, cluster.namespace))) == 3)
        assert job(cluster).status.generation == 0
    finally:
        running.stop()
