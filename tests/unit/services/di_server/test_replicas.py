"""Other replicas, and where they are, by HTTP."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.kubernetes.api import DI_JOBS, PODS
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import RunOptions
from edl_workflows.services.di_server.replicas import replica_addresses
from tests.controller_thread import RunningController, run_in_thread
from tests.unit.runtime.kube.support import eventually
from tests.unit.services.controller.support import names_of
from tests.unit.services.di_server.support import Api, create, data, give_address, refusal, replicas, task

pytestmark = pytest.mark.slow


@pytest.fixture
def controller(cluster: Cluster) -> Iterator[RunningController]:
    """One that makes the pods of DIJobs."""
    running = run_in_thread(
        cluster,
        RunOptions(
            manager=ManagerOptions(namespaces=NamespaceSelection.of(cluster.namespace), kinds=(DI_JOB,))
        ),
    )
    assert running.wait_ready(240)
    yield running
    running.stop()


def pods(cluster: Cluster) -> list[str]:
    return sorted(names_of(cluster, Scope(PODS, cluster.namespace)))


def test_replicas_come_and_go(api: Api, cluster: Cluster, controller: RunningController) -> None:
    """An accepted request changes the job, and the controller creates or deletes the pods."""
    create(cluster)
    eventually(lambda: pods(cluster) == ["walk-collector-0", "walk-collector-1", "walk-learner-0"])

    assert data(api.ask("POST", api.path(), json={"replicas": 2})) is None
    eventually(lambda: pods(cluster)[:4] == [f"walk-collector-{index}" for index in range(4)])
    assert data(api.ask("DELETE", api.path(), json={"replicas": 3})) is None
    eventually(lambda: pods(cluster) == ["walk-collector-0", "walk-learner-0"])


def test_a_job_finds_its_replicas(api: Api, cluster: Cluster, controller: RunningController) -> None:
    """Addresses are in the order of the ranks, with the pod's port, and empty for a pod that has none yet."""
    create(cluster)
    eventually(lambda: len(pods(cluster)) == 3)
    give_address(cluster, "walk-learner-0", "10.0.0.1")
    give_address(cluster, "walk-collector-1", "10.0.0.3")

    expected = ["10.0.0.1:22270", "", "10.0.0.3:22270"]
    eventually(lambda: bool(data(api.ask("GET", api.path())) == expected))


def test_discovery_waits(api: Api, cluster: Cluster, controller: RunningController) -> None:
    """A call with a time-out is answered when the last address is known. The paths without /job/ behave the
    same."""
    create(cluster, task("none", 2, name="w"))
    eventually(lambda: len(pods(cluster)) == 2)
    give_address(cluster, "walk-w-0", "10.0.0.1")
    answers = []
    path = api.path().removeprefix("job/")
    caller = threading.Thread(target=lambda: answers.append(api.ask("GET", path, params={"timeout": 30})))
    caller.start()
    eventually(lambda: bool(data(api.ask("GET", path)) == ["10.0.0.1:22270", ""]))
    assert not answers
    give_address(cluster, "walk-w-1", "fd00::2")

    caller.join(240)
    assert data(answers[0]) == ["10.0.0.1:22270", "[fd00::2]:22270"]


def test_who_asks_at_once_shares_one_look(
    api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a thousand replicas ask for addresses at once, these are computed once for each change, and not once
    for each caller."""
    create(cluster)
    api.seen()
    looks: list[Any] = []

    def counted(*arguments: Any) -> Any:
        looks.append(arguments)
        return replica_addresses(*arguments)

    monkeypatch.setattr("edl_workflows.services.di_server.replicas.replica_addresses", counted)
    for _ in range(10):
        assert data(api.ask("GET", api.path())) == ["", "", ""]
    assert len(looks) <= 1
    assert "not matched" in refusal(api.ask("GET", api.path(generation=".7")), 400)
    data(api.ask("POST", api.path(), json={"replicas": 1}))
    assert data(api.ask("GET", api.path())) == ["", "", "", ""]
    client.delete(cluster, DI_JOBS, "walk")
    eventually(lambda: api.ask("GET", api.path()).status_code == 404)
    create(cluster, task("none", 2, name="w"))
    eventually(lambda: bool(api.ask("GET", api.path()).json()["data"] == ["", ""]))


def test_discovery_gives_up(api: Api, cluster: Cluster, controller: RunningController) -> None:
    """When the time-out of a call passes, it gets 408 with the number of missing addresses."""
    create(cluster)
    eventually(lambda: len(pods(cluster)) == 3)
    assert "3 of 3 replicas" in refusal(api.ask("GET", api.path(), params={"timeout": 0.2}), 408)


def test_a_task_may_be_named(api: Api, cluster: Cluster) -> None:
    """A request may name a task. Without a name, it scales the collector."""
    create(cluster)
    api.seen()
    data(api.ask("POST", api.path(), json={"replicas": 1, "task": "learner"}))
    data(api.ask("POST", api.path(), json={"replicas": 1}))
    assert replicas(cluster) == {"learner": 2, "collector": 3}


@pytest.mark.parametrize(
    ("method", "body", "said"),
    [
        ("POST", {"replicas": 3}, "at most 4"),
        ("DELETE", {"replicas": 2}, "at least 1"),
        ("DELETE", {"replicas": 9999}, "at least 1"),
        ("POST", {"replicas": 1, "task": "evaluator"}, "no task 'evaluator'; it has learner, collector"),
        ("POST", {"replicas": 0}, "greater than or equal to 1"),
        ("POST", {"replicas": -1}, "greater than or equal to 1"),
        ("POST", {"replicas": 10_001}, "less than or equal to 10000"),
        ("POST", {"replicas": "1"}, "valid integer"),
        ("POST", {"replicas": True}, "valid integer"),
        ("POST", {"replicas": 1, "tsak": "learner"}, "tsak"),
        ("POST", {}, "replicas: Field required"),
        ("POST", [], "should be an object"),
    ],
)
def test_bounds_are_named(api: Api, cluster: Cluster, method: str, body: object, said: str) -> None:
    """An impossible request gets 422 with the bound or the field, and nothing changes."""
    create(cluster, task("learner"), task("collector", 2, maxReplicas=4))
    api.seen()
    assert said in refusal(api.ask(method, api.path(), json=body), 422)
    assert replicas(cluster) == {"learner": 1, "collector": 2}


def test_several_tasks_need_a_name(api: Api, cluster: Cluster) -> None:
    """If a job has several tasks and none is a collector, a request without a task is refused, and the error
    lists the tasks."""
    create(cluster, task("none", name="a"), task("none", name="b"))
    api.seen()
    assert "say which of a, b" in refusal(api.ask("POST", api.path(), json={"replicas": 1}), 422)


def test_concurrent_changes_all_count(api: Api, cluster: Cluster) -> None:
    """Concurrent requests and edits by others all take effect."""
    create(cluster)
    api.seen()
    answers: list[int] = []

    def add() -> None:
        status = 409
        while status == 409:
            status = api.ask("POST", api.path(), json={"replicas": 1}).status_code
        answers.append(status)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for index in range(20):
        client.patch(cluster, DI_JOBS, "walk", {"metadata": {"annotations": {"edit": str(index)}}})
    for thread in threads:
        thread.join()
    assert answers == [200] * 8
    assert replicas(cluster)["collector"] == 10


def test_a_job_that_always_changes_is_a_conflict(
    api: Api, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If others change the job at each attempt, the caller is told to try again, and nothing was done."""
    create(cluster)
    api.seen()
    patch = client.patch
    edits = iter(range(100))

    def beaten(*arguments: object, **more: object) -> object:
        annotations = {"metadata": {"annotations": {"edit": str(next(edits))}}}
        patch(cluster, DI_JOBS, "walk", annotations)
        return patch(*arguments, **more)  # type: ignore[arg-type]  # as it was called

    monkeypatch.setattr(client, "patch", beaten)
    assert "5 times in a row" in refusal(api.ask("POST", api.path(), json={"replicas": 1}), 409)
    assert replicas(cluster)["collector"] == 2


def test_a_job_that_is_over_does_not_change(api: Api, cluster: Cluster) -> None:
    """A request for a job that has ended gets 409 with its phase."""
    create(cluster)
    api.seen()
    client.patch_status(cluster, DI_JOBS, "walk", {"phase": "Succeeded"})
    assert "is Succeeded" in refusal(api.ask("POST", api.path(), json={"replicas": 1}), 409)


def test_a_preemptible_job_is_sized_by_its_allocator(api: Api, cluster: Cluster) -> None:
    """With maxReplicas, the allocator decides within the bounds, which the response names. Without it,
    `replicas` is the allocator's maximum and can be changed."""
    create(cluster, task("collector", 2, minReplicas=1, maxReplicas=4), name="bounded", preemptible=True)
    create(cluster, task("collector", 2), name="open", preemptible=True)
    api.seen("bounded")
    api.seen("open")
    message = refusal(api.ask("POST", api.path(name="bounded"), json={"replicas": 1}), 409)
    assert "minReplicas 1 and maxReplicas 4" in message
    data(api.ask("POST", api.path(name="open"), json={"replicas": 1}))
    assert replicas(cluster, "open") == {"collector": 3}


def test_ids(api: Api, cluster: Cluster) -> None:
    """Job ids with and without a generation are accepted. A generation that differs from the job's is
    rejected with upstream's message."""
    create(cluster, token="t")
    api.seen()
    assert data(api.ask("GET", api.path(generation=".0"))) == ["", "", ""]
    stale = refusal(api.ask("POST", api.path(generation=".7"), json={"replicas": 1}), 400)
    assert stale == "request generation 7 is not matched with job generation 0"
    words = refusal(api.ask("GET", api.path(generation=".one")), 400)
    assert words == "request generation 'one' is not a valid number"
    for text in ("walk", "a.b.1.2", "Default.walk", "-.-", "a..b"):
        said = refusal(api.ask("GET", f"job/{text}/replicas"), 400)
        assert said == f"job id {text!r} must be in namespace.name[.generation] format"
    assert "no DIJob" in refusal(api.ask("GET", api.path(name="gone")), 404)
    assert replicas(cluster) == {"learner": 1, "collector": 2}
