"""The admission policies as manifests. What they reject is tested on a real API server
(``tests/cluster/test_admission.py``)."""

import json
from typing import Any

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions

IMAGE = "registry.example/edl:1"


def of_kind(options: InstallOptions, kind: str) -> list[dict[str, Any]]:
    return [one for one in installation_manifests(options) if one["kind"] == kind]


@pytest.mark.parametrize(
    ("selection", "scope"),
    [
        (NamespaceSelection(), None),
        (NamespaceSelection(("a",)), {"matchLabels": {"kubernetes.io/metadata.name": "a"}}),
        (
            NamespaceSelection(("b", "a")),
            {
                "matchExpressions": [
                    {"key": "kubernetes.io/metadata.name", "operator": "In", "values": ["a", "b"]}
                ]
            },
        ),
        (
            NamespaceSelection(selector="team=vision, env notin (test), !frozen"),
            {
                "matchExpressions": [
                    {"key": "team", "operator": "In", "values": ["vision"]},
                    {"key": "env", "operator": "NotIn", "values": ["test"]},
                    {"key": "frozen", "operator": "DoesNotExist"},
                ]
            },
        ),
    ],
    ids=str,
)
def test_each_policy_is_bound_and_denies(selection: NamespaceSelection, scope: dict[str, Any] | None) -> None:
    """A policy without a binding has no effect; one for a single namespace leaves others alone."""
    options = InstallOptions(IMAGE, jobs_namespaces=selection, kinds=("all",))
    policies = of_kind(options, "ValidatingAdmissionPolicy")
    bindings = of_kind(options, "ValidatingAdmissionPolicyBinding")
    assert len(policies) == 4
    assert [b["spec"]["policyName"] for b in bindings] == [p["metadata"]["name"] for p in policies]
    assert all(p["spec"]["failurePolicy"] == "Fail" for p in policies)
    for binding in bindings:
        assert binding["spec"]["validationActions"] == ["Deny"]
        assert binding["spec"].get("matchResources", {}).get("namespaceSelector") == scope


def test_all_kinds_of_the_installation_are_guarded() -> None:
    """The policies name exactly the job kinds that are reconciled."""
    text = json.dumps(of_kind(InstallOptions(IMAGE, kinds=("all",)), "ValidatingAdmissionPolicy"))
    jobs = [kind for kind in KINDS if kind.view is not None]
    assert all(f"'{kind.name}'" in text and kind.labels[0] in text for kind in jobs)
    few = json.dumps(of_kind(InstallOptions(IMAGE, kinds=("DIJob",)), "ValidatingAdmissionPolicy"))
    assert [kind.name for kind in jobs if f"'{kind.name}'" in few] == ["DIJob"]


def test_a_change_of_any_label_that_marks_a_jobs_pod_is_looked_at() -> None:
    """The policies also cover changes of the operator's label, so that a pod of another operator can't become
    one of a TFJob."""
    policies = of_kind(InstallOptions(IMAGE, kinds=("all",)), "ValidatingAdmissionPolicy")
    labels = next(one for one in policies if one["metadata"]["name"] == "edl-job-labels")
    newly = next(one for one in labels["spec"]["matchConditions"] if one["name"] == "newly")["expression"]
    for kind in (kind for kind in KINDS if kind.view is not None):
        for key in (kind.labels[0], kind.pods.selector.partition("=")[0]):
            assert f"object.metadata.?labels[?'{key}'] == oldObject.metadata.?labels[?'{key}']" in newly


def test_a_job_of_any_kind_can_be_suspended_without_the_right_to_change_it() -> None:
    """The policy about specs knows each kind whose field for it is nested, such as ``runPolicy.suspend``."""
    policies = of_kind(InstallOptions(IMAGE, kinds=("all",)), "ValidatingAdmissionPolicy")
    specs = next(one for one in policies if one["metadata"]["name"] == "edl-job-specs")
    now = next(one for one in specs["spec"]["variables"] if one["name"] == "now")["expression"]
    nested = {kind.name: kind.suspend[0] for kind in KINDS if kind.view is not None and len(kind.suspend) > 1}
    assert {"TFJob", "PyTorchJob"} <= nested.keys()
    assert set(nested.values()) == {"runPolicy"}
    assert now == f"object.kind in {list(nested)} ? object.spec.?runPolicy.orValue({{}}) : object.spec"


def test_they_can_be_left_out() -> None:
    """The policies can be left out, since Kubernetes 1.29 does not have them."""
    options = InstallOptions(IMAGE, admission_policies=False)
    assert not of_kind(options, "ValidatingAdmissionPolicy")
    assert not of_kind(options, "ValidatingAdmissionPolicyBinding")


def test_a_masters_account_is_a_name() -> None:
    """The account is part of an expression that the API server evaluates, so only valid names are allowed."""
    with pytest.raises(InvalidError, match="not a valid name of a ServiceAccount"):
        InstallOptions(IMAGE, master_accounts=("a' || true || 'b",))


def test_another_operator_goes_on_with_its_jobs() -> None:
    """The policies about children of jobs exempt the account of another operator that is named, besides the
    controller's, and nobody else."""
    options = InstallOptions(IMAGE, kinds=("TFJob",), other_operators=("kubeflow:training-operator",))
    accounts = {
        policy["metadata"]["name"]: policy["spec"]["validations"][0]["expression"]
        for policy in of_kind(options, "ValidatingAdmissionPolicy")
    }
    both = (
        "request.userInfo.username in ['system:serviceaccount:edl-system:edl-controller', "
        "'system:serviceaccount:kubeflow:training-operator']"
    )

    assert {name for name, text in accounts.items() if text == both} == {"edl-children", "edl-job-labels"}
