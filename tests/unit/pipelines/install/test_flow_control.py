"""The FlowSchemas as manifests. That an API server takes them and matches requests is tested on a real one
(``tests/cluster/test_flow_control.py``)."""

from typing import Any

import pytest

from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install import flow_control, rbac
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import CrdMode, InstallOptions
from tests.unit.pipelines.install.test_manifests import IMAGE, OPTIONS, described, of_kind, rights

BUILT_IN = {"kube-system-service-accounts": 900, "service-accounts": 9000}
"""Precedences of Kubernetes' own FlowSchemas, of which the lowest that matches counts."""


def schema(options: InstallOptions, name: str) -> dict[str, Any]:
    full = options.name_in_cluster(name)
    found: dict[str, Any] = next(
        one["spec"] for one in of_kind(options, "FlowSchema") if one["metadata"]["name"] == full
    )
    return found


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_each_schema_has_its_level_and_its_place(options: InstallOptions) -> None:
    """Each FlowSchema leads to a level of the installation or to one of Kubernetes, is looked at after
    those of Kubernetes' own components and before that of all service accounts, and serves accounts in
    turn."""
    levels = {one["metadata"]["name"] for one in of_kind(options, "PriorityLevelConfiguration")}
    schemas = [one["spec"] for one in of_kind(options, "FlowSchema")]
    precedences = [one["matchingPrecedence"] for one in schemas]

    assert levels == {names.CONTROLLER, flow_control.MASTERS}
    assert {one["priorityLevelConfiguration"]["name"] for one in schemas} == {*levels, "leader-election"}
    assert precedences == sorted(set(precedences))
    assert all(
        BUILT_IN["kube-system-service-accounts"] < precedence < BUILT_IN["service-accounts"]
        for precedence in precedences
    )
    assert all(one["distinguisherMethod"] == {"type": "ByUser"} for one in schemas)


@pytest.mark.parametrize("options", OPTIONS, ids=described)
def test_accounts_of_the_installation_are_in_the_controllers_level(options: InstallOptions) -> None:
    """Each account of the installation is named, in its own namespace, with all its requests; those for
    Leases don't wait for the others."""
    everything, election = (
        schema(options, names.CONTROLLER),
        schema(options, flow_control.ELECTIONS),
    )
    subjects = everything["rules"][0]["subjects"]
    accounts = {(one["serviceAccount"]["namespace"], one["serviceAccount"]["name"]) for one in subjects}

    assert {
        (options.namespace, one["metadata"]["name"]) for one in of_kind(options, "ServiceAccount")
    } <= accounts
    assert {where for where, _ in accounts} == {options.namespace}
    assert election["rules"][0]["subjects"] == subjects
    leases = election["rules"][0]["resourceRules"]
    granted = rights(rbac.lease_rules(names.CONTROLLER, listed=True))
    assert {(group, resource, "*") for group, resource, _ in granted} == rights(leases)
    assert [one["namespaces"] for one in leases] == [[options.namespace]]


@pytest.mark.parametrize("namespaces", [("training",), ("training", "vision")])
def test_masters_of_named_namespaces_are_matched_with_all_that_they_may(namespaces: tuple[str, ...]) -> None:
    """In an installation for named namespaces, all requests that a master may make are in the masters'
    level."""
    options = InstallOptions(IMAGE, jobs_namespaces=NamespaceSelection(namespaces))
    (rule,) = schema(options, flow_control.MASTERS)["rules"]

    groups = [subject["group"]["name"] for subject in rule["subjects"]]
    assert groups == [f"system:serviceaccounts:{namespace}" for namespace in namespaces]
    assert rights(rule["resourceRules"]) == rights(pods.master_rules("mnist"))
    assert all(one["namespaces"] == list(namespaces) for one in rule["resourceRules"])


@pytest.mark.parametrize("selector", ["", "team=vision"])
def test_masters_elsewhere_are_matched_by_our_resources_alone(selector: str) -> None:
    """In an installation for all namespaces, or for those with a label, no request that is about resources of
    others changes its level."""
    options = InstallOptions(IMAGE, jobs_namespaces=NamespaceSelection(selector=selector))
    (rule,) = schema(options, flow_control.MASTERS)["rules"]

    assert rule["subjects"] == [{"kind": "Group", "group": {"name": "system:serviceaccounts"}}]
    matched = rights(rule["resourceRules"])
    assert {group for group, _, _ in matched} == {names.GROUP}
    assert matched == {one for one in rights(pods.master_rules("mnist")) if one[0] == names.GROUP}


@pytest.mark.parametrize("crds", CrdMode)
def test_they_can_be_left_out(crds: CrdMode) -> None:
    """FlowSchemas and levels can be left out, by who may not create such objects."""
    objects = installation_manifests(InstallOptions(IMAGE, crds=crds, flow_schemas=False))

    assert not [one for one in objects if one["apiVersion"].startswith("flowcontrol.apiserver.k8s.io/")]
