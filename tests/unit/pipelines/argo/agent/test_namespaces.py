"""Argo's agent for several namespaces, or for those with a label."""

import pytest

from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.argo.agent.run import ArgoAgentOptions
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import NAMESPACES
from tests.airflow import support
from tests.airflow.support import StandIn, elastic_job, eventually, jobs
from tests.unit.pipelines.argo.agent.support import Argo, answered, body, running
from tests.unit.runtime.kube.support import refuse_lists


def other_namespace(cluster: Cluster, **labels: str) -> Cluster:
    """A handle in another new namespace."""
    metadata = {"generateName": "test-", "labels": labels}
    made = client.create(cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
    return cluster.in_namespace(made["metadata"]["name"])


def begin(place: Cluster, workflow: str) -> Argo:
    """A workflow with a step that submits a job of the same name."""
    argo = Argo(place)
    argo.start(workflow)
    argo.add(workflow, "n1", body("submit", manifest=elastic_job(workflow)))
    return argo


def test_named_namespaces_are_served_and_no_others(cluster: Cluster) -> None:
    """An agent for named namespaces serves the workflows of each, also the objects that an earlier agent
    began there, and those of no other."""
    second, third = other_namespace(cluster), other_namespace(cluster)
    workflows = [begin(place, "mnist") for place in (cluster, second, third)]
    options = ArgoAgentOptions(namespaces=NamespaceSelection((cluster.namespace, second.namespace)))
    with running(cluster, options):
        eventually(lambda: "mnist" in jobs(cluster) and "mnist" in jobs(second), "the jobs")
    for argo in workflows:
        argo.delete("mnist")
    with running(cluster, options):
        eventually(lambda: not jobs(cluster) and not jobs(second), "the jobs of the workflows are cancelled")
    assert jobs(third) == {}


def test_namespaces_are_followed_by_their_labels(cluster: Cluster) -> None:
    """An agent for namespaces with a label begins the steps of one as soon as it gets the label. In one that
    loses it, no step is begun and nothing is cancelled, and a step that has begun is served to its end."""
    team = cluster.namespace
    options = ArgoAgentOptions(namespaces=NamespaceSelection(selector=f"team={team}"))
    place, kept = other_namespace(cluster), other_namespace(cluster, team=team)
    argo = begin(place, "begun")
    orphans = begin(kept, "orphan")

    def label(value: str | None) -> None:
        client.patch(place, NAMESPACES, place.namespace, {"metadata": {"labels": {"team": value}}})

    with support.running(StandIn(place)) as controller, running(cluster, options) as agent:
        eventually(lambda: "orphan" in jobs(kept), "the job in the namespace that has the label")
        assert jobs(place) == {}
        label(team)
        eventually(lambda: "begun" in jobs(place), "the job")

        label(None)
        eventually(lambda: not agent._served.includes(place.namespace), "it is left alone")
        begin(place, "later")
        controller.end("begun")
        answered(argo, "begun", "n1", "Succeeded")
        assert set(jobs(place)) == {"begun"}

        label(team)
        eventually(lambda: "later" in jobs(place), "the job")
        label(None)
        eventually(lambda: not agent._served.includes(place.namespace), "it is left alone")
    argo.delete("later")
    orphans.delete("orphan")
    with running(cluster, options):
        eventually(lambda: not jobs(kept), "the job in the namespace that has the label is cancelled")
    assert set(jobs(place)) == {"begun", "later"}


def test_a_namespace_that_may_not_be_read_stops_no_other(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the permissions in one of several namespaces are missing, the steps of the others are served. When
    the permissions are there, its steps are served, and what earlier agents began there is cancelled."""
    refused = other_namespace(cluster)
    orphans, later = begin(refused, "orphan"), begin(cluster, "mnist")
    options = ArgoAgentOptions(namespaces=NamespaceSelection((refused.namespace, cluster.namespace)))
    with running(cluster, options):
        eventually(lambda: "orphan" in jobs(refused) and "mnist" in jobs(cluster), "the jobs")
    for argo, workflow in ((orphans, "orphan"), (later, "mnist")):
        argo.delete(workflow)
    begin(cluster, "allowed")
    begin(refused, "late")

    refusing = {refused.namespace}
    refuse_lists(monkeypatch, refusing)
    with running(cluster, options) as agent:
        eventually(lambda: set(jobs(cluster)) == {"allowed"}, "the step in the other namespace")
        assert agent._watches.waits_for() == []
        refusing.clear()
        eventually(lambda: set(jobs(refused)) == {"late"}, "the steps in this one")
