"""What a controller does in namespaces that are listed late, or refused, without an API server."""

from collections.abc import Callable

import pytest

from edl_workflows.core.exceptions import ForbiddenError
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import ObjectList
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.services.controller import observed_cluster
from edl_workflows.services.controller.observed_cluster import ObservedCluster
from tests.unit.services.controller.test_parallel_pods import CLUSTER

MakeLists = Callable[[Callable[[Scope], bool]], None]


@pytest.fixture
def world() -> ObservedCluster:
    """The ElasticJobs of two named namespaces, which are not watched yet."""
    source = ELASTIC_JOB.source
    return ObservedCluster(
        CLUSTER,
        NamespaceSelection(("a", "b")),
        [source],
        [source.api],
        lambda _group: None,
        lambda _scope, _error: None,
    )


@pytest.fixture
def answer_lists(monkeypatch: pytest.MonkeyPatch) -> MakeLists:
    """Sets which lists are forbidden; the others are empty."""

    def answer(refuses: Callable[[Scope], bool]) -> None:
        def list_objects(_cluster: Cluster, scope: Scope) -> ObjectList:
            if refuses(scope):
                raise ForbiddenError(f"not allowed in {scope.namespace}")
            return ObjectList([], "1")

        monkeypatch.setattr(client, "list_objects", list_objects)

    return answer


def test_listeners_hear_of_a_late_namespace(world: ObservedCluster, answer_lists: MakeLists) -> None:
    """When one of several namespaces is listed, those hear of it that decide about all jobs, since they may
    not look again by themselves."""
    changes: list[tuple[str, bool]] = []
    world.on_namespace(lambda namespace, served: changes.append((namespace, served)))
    answer_lists(lambda _scope: False)
    for informer in world._informers:
        informer._list(CLUSTER)
    assert changes == [("a", True), ("b", True)]


def test_what_is_listed_is_served(world: ObservedCluster) -> None:
    """Who waits until everything is listed finds all namespaces served, also before the informers' threads
    have called their listeners."""
    for informer in world._informers:
        informer._synced.set()
    assert world.wait_synced(0)
    assert all(map(world.serves_namespace, ("a", "b")))


def test_a_take_over_needs_a_namespace_that_may_be_listed(
    world: ObservedCluster, answer_lists: MakeLists, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If all namespaces are refused, for example because the credentials have expired, the caches may lack
    writes of the lost replica: the take-over fails, and is tried again."""
    monkeypatch.setattr(observed_cluster, "REFUSED_SECONDS", 0.0)
    answer_lists(lambda _scope: True)
    with pytest.raises(ForbiddenError):
        world.refresh()


def test_a_namespace_that_is_refused_for_a_moment_is_listed_again(
    world: ObservedCluster, answer_lists: MakeLists, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A take-over leaves out a namespace at once only if its watch is refused, too, and otherwise only after
    several attempts."""
    attempts: list[str] = []

    def refuses(scope: Scope) -> bool:
        attempts.append(scope.namespace)
        return scope.namespace == "b" and attempts.count("b") <= 2

    answer_lists(refuses)
    monkeypatch.setattr(observed_cluster, "REFUSED_PAUSE", 0.01)
    world.refresh()
    assert attempts == ["a", "b", "b", "b"]

    attempts.clear()
    (refused,) = (informer for informer in world._informers if informer.scope.namespace == "b")
    refused.last_error = ForbiddenError("not allowed in b")
    world.refresh()
    assert attempts == ["a", "b"]

    attempts.clear()
    refused.last_error = None
    monkeypatch.setattr(observed_cluster, "REFUSED_SECONDS", 0.0)
    world.refresh()
    assert attempts == ["a", "b"]
