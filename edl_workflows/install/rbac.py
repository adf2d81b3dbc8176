"""RBAC roles of the controller, of Argo's agent, and of those who run pipelines.

The controller's rights come from the kinds' table (`edl_workflows.jobs.kinds`) and from what it passes on:
the API server lets nobody grant a right that they do not hold, and the controller makes a Role for each job's
master. The tests compare every right here with an audit log of real use.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from edl_workflows.install.options import InstallOptions, InstallPart
from edl_workflows.jobs import api, kinds, names
from edl_workflows.jobs.di_job.kind import DI_JOB
from edl_workflows.jobs.elastic_job import pods
from edl_workflows.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.jobs.kind import Kind
from edl_workflows.jobs.scale_plan.model import PLURAL as SCALE_PLANS

Manifest = dict[str, Any]

GROUP = "rbac.authorization.k8s.io"
ARGO_AGENT = "edl-argo-agent"
"""The agent's account, its Deployment, and the Lease by which its replicas take turns."""
PIPELINE = "edl-pipeline"
VIEWER = "edl-viewer"
TRIGGERER = "edl-triggerer"

_READ = ("get", "list", "watch")
_ARGO = "argoproj.io"


def policy_rule(group: str, resource: str, *verbs: str, name: str = "") -> Manifest:
    """A PolicyRule of one resource; `name` limits it to one object."""
    found: Manifest = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return found | {"resourceNames": [name]} if name else found


def _jobs(*verbs: str) -> list[Manifest]:
    """The same rights on the jobs of every kind."""
    found = (kind.source.api for kind in kinds.KINDS if kind.view is not None)
    return [policy_rule(one.group, one.plural, *verbs) for one in found]


def controller_rules(
    rows: Collection[Kind] = kinds.KINDS, *, network_policies: bool = True
) -> list[Manifest]:
    """In every namespace with jobs of these kinds: its own work, what the masters get from it, and events."""
    watched = [row.isolated() if network_policies else row for row in rows]
    own = [
        policy_rule(source.api.group, "/".join(filter(None, (source.api.plural, subresource))), *verbs)
        for source in kinds.used_sources(watched)
        for subresource, verbs in source.rights
    ]
    # get: an event that an earlier process told already is counted up.
    events = policy_rule("", "events", "get", "create", "patch")
    masters = pods.master_rules("") if ELASTIC_JOB in rows else []
    return merge_rules([*own, *masters, events])


def pipeline_rules() -> list[Manifest]:
    """What stages do with jobs. The pods are listed to find which parameter server holds a rank."""
    return [
        *_jobs(*_READ, "create", "patch", "delete"),
        policy_rule(names.GROUP, SCALE_PLANS, *_READ, "create", "patch", "delete"),
        policy_rule("", "pods", "list"),
    ]


def viewer_rules() -> list[Manifest]:
    """To look at jobs and to wait for them."""
    return [*_jobs(*_READ), policy_rule(names.GROUP, SCALE_PLANS, *_READ)]


def triggerer_rules() -> list[Manifest]:
    """To wait for jobs and plans, and to end or suspend them when their task is killed."""
    return [
        *_jobs(*_READ, "patch", "delete"),
        policy_rule(names.GROUP, SCALE_PLANS, *_READ, "delete"),
    ]


def argo_agent_rules() -> list[Manifest]:
    """All that stages do, the steps to do it for, and the workflows whose deadline has passed."""
    return [
        *pipeline_rules(),
        policy_rule(_ARGO, "workflowtasksets", "list", "watch"),
        policy_rule(_ARGO, "workflowtasksets/status", "patch"),
        policy_rule(_ARGO, "workflows", "get", "patch"),
    ]


def node_rules(rows: Collection[Kind] = kinds.KINDS) -> list[Manifest]:
    """In the whole cluster, for who places preemptible DIJobs. An installation for one namespace does not get
    them.
    """
    return [policy_rule("", "nodes", "list", "watch")] if DI_JOB in rows else []


def autoscaler_rules(rows: Collection[Kind] = kinds.KINDS) -> list[Manifest]:
    """What the controller needs besides to change the replicas of elastic jobs: by edits of the spec, or by
    ScalePlans.
    """
    elastic = [row for row in rows if row.elastic is not None]
    found = []
    for row in elastic:
        one = row.source.api
        found.append(policy_rule(one.group, one.plural, "get" if row.scale is None else "patch"))
    if any(row.scale is None for row in elastic):
        found.append(policy_rule(names.GROUP, SCALE_PLANS, "create"))
    return [*found, policy_rule("", "nodes", "list", "watch"), policy_rule("", "pods", "list", "watch")]


def di_server_rules() -> list[Manifest]:
    """To find jobs and their pods, to edit the one, and to keep what programs report. No Secrets: a digest is
    enough.
    """
    group, plural = api.DI_JOBS.group, api.DI_JOBS.plural
    return [
        policy_rule(group, plural, *_READ, "patch"),
        policy_rule(group, f"{plural}/status", "patch"),
        policy_rule("", "pods", "list", "watch"),
    ]


def brain_rules() -> list[Manifest]:
    """For its cluster monitor, which sees nodes, pods, plans and the jobs of every kind. A kind that is not
    there is left out.
    """
    seen = [
        policy_rule(kind.source.api.group, kind.source.api.plural, "list", "watch") for kind in kinds.KINDS
    ]
    nodes, pods = (policy_rule("", resource, "list", "watch") for resource in ("nodes", "pods"))
    return [nodes, pods, *seen, policy_rule("metrics.k8s.io", "nodes", "list")]


def lease_rules(lease: str) -> list[Manifest]:
    """To take turns by a Lease. Creation can't be limited by name: the API server does not know it yet."""
    group, leases = "coordination.k8s.io", "leases"
    return [policy_rule(group, leases, "create"), policy_rule(group, leases, "get", "update", name=lease)]


def merge_rules(rules: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """One rule a resource, with all verbs that any of the rules has for it; limits to single objects are
    dropped.
    """
    verbs: dict[tuple[str, str], dict[str, None]] = {}
    for one in rules:
        for group in one["apiGroups"]:
            for resource in one["resources"]:
                verbs.setdefault((group, resource), {}).update(dict.fromkeys(one["verbs"]))
    order = (*_READ, "create", "update", "patch", "delete")
    return [policy_rule(*key, *sorted(found, key=order.index)) for key, found in sorted(verbs.items())]


def access_manifests(options: InstallOptions) -> Iterator[Manifest]:
    """Accounts, roles and bindings, in the order of applying."""
    everywhere = [] if options.jobs_namespace else node_rules(options.rows)
    if options.autoscaler:
        everywhere = [*everywhere, *autoscaler_rules(options.rows)]
    own = controller_rules(options.rows, network_policies=options.network_policies)
    yield from _account(options, names.CONTROLLER, merge_rules([*own, *everywhere]), lease=True)
    if InstallPart.ARGO_AGENT in options.parts:
        yield from _account(options, ARGO_AGENT, argo_agent_rules(), lease=True)
    if InstallPart.DI_SERVER in options.parts:
        yield from _account(options, names.DI_SERVER, di_server_rules(), lease=False)
    if InstallPart.BRAIN in options.parts:
        # The monitor sees the nodes of the whole cluster, so an installation for one namespace goes without
        # it.
        yield from _account(
            options, names.BRAIN, [] if options.jobs_namespace else brain_rules(), lease=False
        )
    # Whoever may view or edit a namespace may do so with its jobs; `edit` takes in `view`, and `admin` both.
    yield _cluster_role(VIEWER, viewer_rules(), aggregated_to="view")
    yield _cluster_role(PIPELINE, pipeline_rules(), aggregated_to="edit")
    yield _cluster_role(TRIGGERER, triggerer_rules())


def _account(options: InstallOptions, name: str, rules: list[Manifest], *, lease: bool) -> Iterator[Manifest]:
    """A service account with these rights, if any, where the jobs are, and its lease at home if its replicas
    take turns.
    """
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": options.namespace},
        # The pods that need the token say so.
        "automountServiceAccountToken": False,
    }
    subject = {"kind": "ServiceAccount", "name": name, "namespace": options.namespace}
    if lease:
        election = f"{name}-leader-election"
        yield _role("Role", election, options.namespace, lease_rules(name))
        yield _binding("RoleBinding", election, options.namespace, "Role", subject)
    if not rules:
        return
    if options.jobs_namespace:
        yield _role("Role", name, options.jobs_namespace, rules)
        yield _binding("RoleBinding", name, options.jobs_namespace, "Role", subject)
    else:
        yield _role("ClusterRole", name, "", rules)
        yield _binding("ClusterRoleBinding", name, "", "ClusterRole", subject)


def _cluster_role(name: str, rules: list[Manifest], aggregated_to: str = "") -> Manifest:
    role = _role("ClusterRole", name, "", rules)
    if aggregated_to:
        role["metadata"]["labels"] = {f"{GROUP}/aggregate-to-{aggregated_to}": "true"}
    return role


def _role(kind: str, name: str, namespace: str, rules: list[Manifest]) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": _metadata(name, namespace),
        "rules": rules,
    }


def _binding(kind: str, name: str, namespace: str, role_kind: str, subject: Manifest) -> Manifest:
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": kind,
        "metadata": _metadata(name, namespace),
        "roleRef": {"apiGroup": GROUP, "kind": role_kind, "name": name},
        "subjects": [subject],
    }


def _metadata(name: str, namespace: str) -> Manifest:
    return {"name": name, "namespace": namespace} if namespace else {"name": name}
