"""A controller for several namespaces, or for those with a label, against the embedded API server."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from edl_workflows.core.exceptions import ForbiddenError
from edl_workflows.core.jobs.kinds import choose_kinds
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import CONFIG_MAPS, ELASTIC_JOBS, NAMESPACES, PODS, Scope
from edl_workflows.services.controller.cluster_watches import OnDemandWatches
from edl_workflows.services.controller.manager import ManagerOptions
from edl_workflows.services.controller.run import RunOptions
from tests.controller_thread import RunningController, run_in_thread
from tests.unit.runtime.kube.support import eventually, refuse_lists
from tests.unit.services.controller.farm import Farm
from tests.unit.services.controller.support import elastic_job, names_of, status_of

pytestmark = pytest.mark.slow

MakeNamespace = Callable[..., Cluster]


@pytest.fixture
def make_namespace(cluster: Cluster) -> MakeNamespace:
    """Creates a namespace with labels, and returns a handle in it."""

    def make(**labels: str) -> Cluster:
        metadata = {"generateName": "test-", "labels": labels}
        made = client.create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
        return cluster.in_namespace(made["metadata"]["name"])

    return make


@contextmanager
def running(cluster: Cluster, selection: NamespaceSelection) -> Iterator[RunningController]:
    """A controller that serves the selected namespaces."""
    manager = ManagerOptions(selection, 2, kinds=choose_kinds(()))
    controller = run_in_thread(cluster, RunOptions(manager=manager))
    try:
        eventually(lambda: controller.wait_ready(0.1))
        yield controller
    finally:
        controller.stop()


def label(place: Cluster, **labels: str | None) -> None:
    """Change the labels of a namespace."""
    client.patch(place, NAMESPACES, place.namespace, {"metadata": {"labels": labels}})


def is_reconciled(place: Cluster, name: str = "mnist") -> bool:
    return status_of(place, name).get("phase") == "Pending"


def decisions(controller: RunningController) -> float:
    """The number of decisions so far."""
    labels = {"kind": "ElasticJob", "result": "success"}
    registry = controller.controller.metrics.registry
    return registry.get_sample_value("edl_controller_reconcile_total", labels) or 0.0


def test_named_namespaces_are_served_and_no_others(cluster: Cluster, make_namespace: MakeNamespace) -> None:
    """Jobs of each named namespace are reconciled, jobs of others aren't; nothing is requested of the whole
    cluster."""
    first, second, other = make_namespace(), make_namespace(), make_namespace()
    client.create(first, elastic_job())
    with running(cluster, NamespaceSelection((first.namespace, second.namespace))) as controller:
        client.create(other, elastic_job())
        client.create(second, elastic_job())
        eventually(lambda: is_reconciled(first) and is_reconciled(second))
        client.create(second, elastic_job("later"))
        eventually(lambda: is_reconciled(second, "later"))
        scopes = {informer.scope.namespace for informer in controller.controller.manager.world._informers}

        client.delete(first, PODS, names_of(first, Scope(PODS, first.namespace))[0])
        eventually(lambda: bool(names_of(first, Scope(PODS, first.namespace))))

    assert scopes == {first.namespace, second.namespace}
    assert status_of(other, "mnist") == {}
    assert names_of(other, Scope(PODS, other.namespace)) == []


def test_namespaces_are_followed_by_their_labels(cluster: Cluster, make_namespace: MakeNamespace) -> None:
    """A namespace that gets the label is served at once, with the jobs that it has. One that loses it is left
    alone: nothing is changed there any more, and nothing is deleted. If it gets the label back, its jobs go
    on."""
    team = make_namespace().namespace
    served, late = make_namespace(team=team), make_namespace(team="other")
    for place in (served, late):
        client.create(place, elastic_job())
    with running(cluster, NamespaceSelection(selector=f"team={team}")) as controller:
        eventually(lambda: is_reconciled(served))
        assert status_of(late, "mnist") == {}
        label(late, team=team)
        eventually(lambda: is_reconciled(late))

        label(served, team=None)
        eventually(lambda: not controller.controller.manager.world.serves_namespace(served.namespace))
        eventually(lambda: controller.controller.manager.idle)
        (pod,) = names_of(served, Scope(PODS, served.namespace))
        before = decisions(controller)
        client.delete(served, PODS, pod)
        client.create(served, elastic_job("ignored"))
        client.create(late, elastic_job("served"))  # a job that is seen later, in a served namespace
        eventually(lambda: is_reconciled(late, "served"))
        assert names_of(served, Scope(PODS, served.namespace)) == []
        assert status_of(served, "ignored") == {}
        assert is_reconciled(served)
        assert names_of(served, Scope(CONFIG_MAPS, served.namespace)) != []
        assert decisions(controller) > before

        label(served, team=team, again="yes")
        eventually(lambda: is_reconciled(served, "ignored"))
        eventually(lambda: len(names_of(served, Scope(PODS, served.namespace))) == 2)


def test_a_new_and_a_deleted_namespace(cluster: Cluster, make_namespace: MakeNamespace) -> None:
    """A namespace that is created with the label is served from its first job on. The deletion of a
    namespace ends no watch of the others."""
    team = make_namespace().namespace
    with running(cluster, NamespaceSelection(selector=f"team in ({team})")) as controller:
        first = make_namespace(team=team)
        client.create(first, elastic_job())
        eventually(lambda: is_reconciled(first))
        client.delete(first, NAMESPACES, first.namespace)
        eventually(lambda: not controller.controller.manager.world.serves_namespace(first.namespace))

        second = make_namespace(team=team)
        client.create(second, elastic_job())
        eventually(lambda: is_reconciled(second))
        assert controller.error is None


def test_jobs_elsewhere_count_for_nothing(cluster: Cluster, make_namespace: MakeNamespace) -> None:
    """Decisions about all jobs, such as the budget of progress, see only jobs of served namespaces."""
    team = make_namespace().namespace
    served, other = make_namespace(team=team), make_namespace()
    for place in (served, other):
        client.create(place, elastic_job())
    with running(cluster, NamespaceSelection(selector=f"team={team}")) as controller:
        world = controller.controller.manager.world
        (source,) = (kind.source for kind in choose_kinds(()) if kind.source.api == ELASTIC_JOBS)
        eventually(lambda: is_reconciled(served))

        assert [job["metadata"]["namespace"] for job in world.items(source)] == [served.namespace]
        changes: list[str] = []
        world.listen(source, lambda change: changes.append(change.key.namespace))
        for place in (other, served):
            client.patch(place, ELASTIC_JOBS, "mnist", {"metadata": {"labels": {"seen": "yes"}}})
        eventually(lambda: served.namespace in changes)
        assert set(changes) == {served.namespace}


def test_a_namespace_that_may_not_be_read_stops_no_other(
    cluster: Cluster, make_namespace: MakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the permissions in one of several namespaces are missing, the jobs of the others are reconciled, and
    taken over. When the permissions are there, so are those of this one."""
    allowed, refused = make_namespace(), make_namespace()
    for place in (allowed, refused):
        client.create(place, elastic_job())
    refusing = {refused.namespace}
    refuse_lists(monkeypatch, refusing)
    both = NamespaceSelection((refused.namespace, allowed.namespace))
    with running(cluster, both) as controller:
        manager = controller.controller.manager
        eventually(lambda: is_reconciled(allowed))
        assert manager.waits_for() == []
        manager.world.refresh()
        assert status_of(refused, "mnist") == {}

        refusing.clear()
        eventually(lambda: is_reconciled(refused))


def test_a_namespace_that_may_not_be_read_stops_no_scaling(
    cluster: Cluster, make_namespace: MakeNamespace, farm: Farm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the pods of one of several namespaces may not be read, the scaling loops decide nevertheless, and
    hear of nodes and of room that is freed in the others."""
    allowed, refused = make_namespace(), make_namespace()
    pod: dict[str, Any] = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "busy"}}
    pod["spec"] = {"nodeName": farm.add("a", 1), "containers": [{"name": "main", "image": "train:1"}]}
    client.create(allowed, pod)
    refuse_lists(monkeypatch, {refused.namespace})
    asked, freed = threading.Event(), threading.Event()
    watches = OnDemandWatches(cluster, (refused.namespace, allowed.namespace), asked.set, freed.set, "-")
    try:
        eventually(lambda: watches.running().wait_synced(0.1))
        farm.add("b", 1)
        client.patch_status(allowed, PODS, "busy", {"phase": "Succeeded"})
        assert asked.wait(240)
        assert freed.wait(240)
    finally:
        watches.rest()


def test_without_any_permission_it_is_not_ready(
    cluster: Cluster, make_namespace: MakeNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that may read none of its namespaces says what it waits for."""
    places = make_namespace(), make_namespace()

    def refuse(_connection: Cluster, scope: Scope, *_arguments: Any, **_options: Any) -> Any:
        raise ForbiddenError(f"not allowed in {scope.namespace}")

    monkeypatch.setattr(client, "list_objects", refuse)
    selection = NamespaceSelection(tuple(place.namespace for place in places))
    manager = ManagerOptions(selection, 2, kinds=choose_kinds(()))
    controller = run_in_thread(cluster, RunOptions(manager=manager))
    try:
        world = controller.controller.manager.world
        eventually(lambda: all(informer.last_error is not None for informer in world._informers))
        assert not controller.wait_ready(0.1)
        assert "not listed yet: elasticjobs" in controller.controller.manager.waits_for()
    finally:
        controller.stop()
