"""ValidatingAdmissionPolicies, which restrict what RBAC cannot restrict (Kubernetes 1.30 and newer).

RBAC grants verbs on resources. It cannot express that only the controller may create objects that a job owns,
that a master may create plans for its own job only, or that a user may suspend a job but not change its
template. Each policy expresses one of these rules in CEL.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import PLURAL as SCALE_PLANS
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install.options import InstallOptions

Manifest = dict[str, Any]
_API = "admissionregistration.k8s.io"
_FINALIZERS = "object.metadata.?finalizers.orValue([])"
_LABELS = "object.metadata.?labels.orValue({})"
_ANNOTATIONS = "object.metadata.?annotations.orValue({})"
_NOTES = (names.GONE_ANNOTATION, names.SUSPENDED_ANNOTATION)
"""Annotations of jobs that an identity may write even if it may not create jobs."""
_OWNERS = "metadata.?ownerReferences.orValue([])"
_CHILDREN = (
    ("", ("pods", "services", "secrets", "configmaps", "serviceaccounts")),
    ("rbac.authorization.k8s.io", ("roles", "rolebindings")),
    ("networking.k8s.io", ("networkpolicies",)),
)


def admission_policies(options: InstallOptions) -> Iterator[Manifest]:
    """The policies and their bindings, for the namespaces with jobs of the installation."""
    jobs = [kind for kind in options.job_kinds if kind.view is not None]
    yield from _policy(options, "edl-children", _children(options, jobs))
    yield from _policy(options, "edl-job-labels", _job_labels(options, jobs))
    if any(kind.source.api.plural == SCALE_PLANS for kind in options.job_kinds):
        yield from _policy(options, "edl-plans", _plans(options))
    yield from _policy(options, "edl-job-specs", _job_specs(options, jobs))


def _children(options: InstallOptions, jobs: Sequence[Kind]) -> Manifest:
    """Only the controller may create objects that a job controls. Otherwise a Secret with a forged owner
    reference would be adopted as the job's token.
    """
    kinds = " || ".join(
        f"(o.kind == '{kind.name}' && o.apiVersion.startsWith('{kind.source.api.group}/'))" for kind in jobs
    )
    owned = f"{_OWNERS}.exists(o, o.?controller.orValue(false) && ({kinds}))"
    return {
        "rules": [_rule(group, resources, "CREATE", "UPDATE") for group, resources in _CHILDREN],
        "conditions": {
            "newly-controlled-by-a-job": f"object.{owned} && "
            f"(request.operation == 'CREATE' || !oldObject.{owned})"
        },
        "expression": _made_by_operator(options),
        "message": "only the installation's controller may create objects that a job controls: "
        "remove the owner reference",
    }


def _job_labels(options: InstallOptions, jobs: Sequence[Kind]) -> Manifest:
    """Only the controller may label pods as pods of a job, since NetworkPolicies and Services select them by
    these labels."""
    marked = " || ".join(_marked(kind) for kind in jobs)
    pairs = ((kind.labels[0], kind.pods.selector.partition("=")[0]) for kind in jobs)
    keys = list(dict.fromkeys(key for pair in pairs for key in pair))
    same = " && ".join(
        f"object.metadata.?labels[?'{key}'] == oldObject.metadata.?labels[?'{key}']" for key in keys
    )
    return {
        "rules": [_rule("", ("pods",), "CREATE", "UPDATE")],
        "conditions": {
            "has-a-jobs-labels": marked,
            "newly": f"request.operation == 'CREATE' || !({same})",
        },
        "expression": _made_by_operator(options),
        "message": "only the installation's controller may give a pod the label of a job: remove it",
    }


def _made_by_operator(options: InstallOptions) -> str:
    """A CEL condition: whether the request comes from the controller, or from another operator that runs jobs
    of the same kinds."""
    others = [f"system:serviceaccount:{account}" for account in options.other_operators]
    accounts = ", ".join(f"'{account}'" for account in (_account(options, names.CONTROLLER), *others))
    return f"request.userInfo.username in [{accounts}]"


def _marked(kind: Kind) -> str:
    """A CEL condition: whether an object has the labels of a kind's pods. If several operators use the same
    label for the job's name, the operator's label must match too.
    """
    operator, _, value = kind.pods.selector.partition("=")
    named = f"'{kind.labels[0]}' in {_LABELS}"
    return f"({named} && {_LABELS}[?'{operator}'].orValue('') == '{value}')" if value else f"({named})"


def _plans(options: InstallOptions) -> Manifest:
    """Only a job's master may create auto plans, and only for its own job."""
    controller = _account(options, names.CONTROLLER)
    auto = f"{_LABELS}[?'{names.SCALE_TYPE_LABEL}'].orValue('') == '{names.SCALE_AUTO}'"
    was_auto = _former(auto)
    accounts = [f"'{name}'" for name in options.master_accounts]
    return {
        "rules": [_rule(names.GROUP, (SCALE_PLANS,), "CREATE", "UPDATE")],
        "conditions": {"not-the-controller": f"request.userInfo.username != '{controller}'"},
        "variables": {
            "job": "object.spec.?ownerJob.orValue('') != '' ? object.spec.ownerJob"
            f" : {_LABELS}[?'{names.JOB_LABEL}'].orValue({_LABELS}[?'{names.LEGACY_JOB_LABEL}'].orValue(''))",
            "account": "request.userInfo.username"
            ".startsWith('system:serviceaccount:' + request.namespace + ':')"
            " ? request.userInfo.username.split(':')[3] : ''",
            "own": f"variables.account == variables.job + '{names.master_account_name('')}'",
            "shared": f"variables.account in [{', '.join(accounts)}]",
            "unchanged": f"request.operation == 'UPDATE' && {was_auto} && object.spec == oldObject.spec",
        },
        "expression": f"variables.own || (!variables.account.endsWith('{names.master_account_name('')}')"
        f" && (variables.shared || !({auto}) || variables.unchanged))",
        "message": "only the master of a job may create its auto ScalePlans, and a master may create plans "
        "for its own job only; other users create plans with scale-type: manual. "
        "If masters share a service account, name it with `edl install --master-account`",
    }


def _job_specs(options: InstallOptions, jobs: Sequence[Kind]) -> Manifest:
    """An identity that may update jobs but not create them, such as `edl-triggerer`, may only suspend and
    resume them, and record that in annotations. It may not change other annotations, since they can be
    instructions, like the one for autoscaling.

    Nor may it add finalizers, since a new finalizer would keep a deleted job for ever. The garbage collector,
    which may not create jobs either, only removes finalizers.
    """
    exempt = ", ".join(f"'{_account(options, name)}'" for name in (names.CONTROLLER, names.DI_SERVER))
    plurals: dict[str, list[str]] = {}
    for kind in jobs:
        plurals.setdefault(kind.source.api.group, []).append(kind.source.api.plural)
    mine = (
        "authorizer.group(request.resource.group).resource(request.resource.resource)"
        ".namespace(request.namespace).check('create').allowed()"
    )
    held = f"{_FINALIZERS}.all(f, f in {_former(_FINALIZERS)})"
    nested = [kind for kind in jobs if len(kind.suspend) > 1]
    parent = nested[0].suspend[0] if nested else "none"
    assert all(kind.suspend == (parent, "suspend") for kind in nested), "one expression for all of them"
    of_kind = f"object.kind in [{', '.join(repr(kind.name) for kind in nested)}]" if nested else "false"
    return {
        "rules": [_rule(group, tuple(resources), "UPDATE") for group, resources in plurals.items()],
        "conditions": {
            "changes-the-job": "object.spec != oldObject.spec"
            f" || {_LABELS} != {_former(_LABELS)} || {_ANNOTATIONS} != {_former(_ANNOTATIONS)}"
            f" || !({held})",
            "not-the-installation": f"!(request.userInfo.username in [{exempt}])",
        },
        "variables": {
            "now": f"{of_kind} ? object.spec.?{parent}.orValue({{}}) : object.spec",
            "then": f"{of_kind} ? oldObject.spec.?{parent}.orValue({{}}) : oldObject.spec",
            "beside": f"!({of_kind}) || ({_same('object.spec', 'oldObject.spec', parent)})",
            "notes": _ANNOTATIONS,
            "formerNotes": _former(_ANNOTATIONS),
            "marked": f"{held} && {_LABELS} == {_former(_LABELS)} && "
            + _same("variables.notes", "variables.formerNotes", *_NOTES),
        },
        "expression": f"{mine} || (variables.marked && variables.beside && "
        f"{_same('variables.now', 'variables.then', 'suspend')})",
        "message": "an identity that may not create jobs may only suspend and resume them: "
        "it cannot add finalizers, or change labels, annotations or other fields of the spec",
    }


def _former(path: str) -> str:
    """The CEL path in the object as it was before the request."""
    return path.replace("object.", "oldObject.", 1)


def _same(now: str, then: str, *but: str) -> str:
    """A CEL condition: whether two maps are equal except for some keys."""
    exempt = " || ".join(f"k == '{key}'" for key in but)
    kept = f"{now}.all(k, {exempt} || (k in {then} && {now}[k] == {then}[k]))"
    return f"{kept} && {then}.all(k, {exempt} || k in {now})"


def _account(options: InstallOptions, name: str) -> str:
    return f"system:serviceaccount:{options.namespace}:{name}"


def _rule(group: str, resources: Sequence[str], *operations: str) -> Manifest:
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": list(operations),
        "resources": list(resources),
    }


def _policy(options: InstallOptions, name: str, policy: Manifest) -> Iterator[Manifest]:
    full = options.name_in_cluster(name)
    head = {"apiVersion": f"{_API}/v1", "metadata": {"name": full}}
    yield {
        "kind": "ValidatingAdmissionPolicy",
        **head,
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": policy["rules"]},
            "matchConditions": [{"name": n, "expression": e} for n, e in policy["conditions"].items()],
            "variables": [{"name": n, "expression": e} for n, e in policy.get("variables", {}).items()],
            "validations": [
                {"expression": policy["expression"], "message": policy["message"], "reason": "Forbidden"}
            ],
        },
    }
    where = options.jobs_namespaces.match
    scope = {"matchResources": {"namespaceSelector": where}} if where else {}
    yield {
        "kind": "ValidatingAdmissionPolicyBinding",
        "apiVersion": f"{_API}/v1",
        "metadata": {"name": full},
        "spec": {"policyName": full, "validationActions": ["Deny"], **scope},
    }
