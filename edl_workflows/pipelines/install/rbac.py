"""RBAC roles of the controller, of the other components, and of users who run pipelines.

The permissions of the controller follow from the registry of kinds (`edl_workflows.core.jobs.kinds`). They
include those of masters, because the controller creates a Role for each master and Kubernetes lets no
identity grant permissions that it does not have. Tests compare all permissions with an audit log of real use.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import PLURAL as SCALE_PLANS
from edl_workflows.core.kubernetes import api, names
from edl_workflows.core.partitions import MAX_PARTITIONS, lease_name
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart

Manifest = dict[str, Any]

GROUP = "rbac.authorization.k8s.io"
ARGO_AGENT = "edl-argo-agent"
"""Name of the ServiceAccount, the Deployment and the Lease of Argo's agent."""
PIPELINE = "edl-pipeline"
VIEWER = "edl-viewer"
TRIGGERER = "edl-triggerer"

_READ = ("get", "list", "watch")
_ARGO = "argoproj.io"


def policy_rule(group: str, resource: str, *verbs: str, only: Collection[str] = ()) -> Manifest:
    """A PolicyRule for one resource; `only` restricts it to the objects with these names."""
    rule: Manifest = {"apiGroups": [group], "resources": [resource], "verbs": list(verbs)}
    return rule | {"resourceNames": list(only)} if only else rule


_LOGS = (policy_rule("", "pods", "list"), policy_rule("", "pods/log", "get"))


def _jobs(*verbs: str) -> list[Manifest]:
    """The same verbs for the jobs of every kind."""
    apis = (kind.source.api for kind in kinds.KINDS if kind.view is not None)
    return [policy_rule(api.group, api.plural, *verbs) for api in apis]


def controller_rules(
    job_kinds: Collection[Kind] = kinds.KINDS, *, network_policies: bool = True
) -> list[Manifest]:
    """Permissions of the controller in namespaces with jobs of these kinds: for its own work, for those that
    it grants to masters, and for events."""
    watched = [kind.isolated() if network_policies else kind for kind in job_kinds]
    own = [
        policy_rule(source.api.group, "/".join(filter(None, (source.api.plural, subresource))), *verbs)
        for source in kinds.used_sources(watched)
        for subresource, verbs in source.rights
    ]
    # get: to increase the count of an event that an earlier process has recorded.
    events = policy_rule("", "events", "get", "create", "patch")
    masters = pods.master_rules("") if ELASTIC_JOB in job_kinds else []
    return merge_rules([*own, *masters, events])


def stage_rules() -> list[Manifest]:
    """Permissions for stages. Pods are listed to find the parameter server with a rank and the pod whose log
    is read."""
    return [
        *_jobs(*_READ, "create", "patch", "delete"),
        policy_rule(names.GROUP, SCALE_PLANS, *_READ, "create", "patch", "delete"),
        *_LOGS,
    ]


def pipeline_rules() -> list[Manifest]:
    """Permissions for stages, and to submit programs that travel with their jobs, in ConfigMaps."""
    return [*stage_rules(), policy_rule("", "configmaps", "get", "create")]


def viewer_rules() -> list[Manifest]:
    """Permissions to view jobs and to wait for them."""
    return [*_jobs(*_READ), policy_rule(names.GROUP, SCALE_PLANS, *_READ)]


def triggerer_rules() -> list[Manifest]:
    """Permissions to wait for jobs and plans, to read the logs of their pods, and to end or suspend them when
    their task is killed."""
    return [
        *_jobs(*_READ, "patch", "delete"),
        policy_rule(names.GROUP, SCALE_PLANS, *_READ, "delete"),
        *_LOGS,
    ]


def argo_agent_rules() -> list[Manifest]:
    """Permissions of Argo's agent: those for stages, to serve plugin steps, and to read the workflows whose
    deadline has passed."""
    return [
        *stage_rules(),
        policy_rule(_ARGO, "workflowtasksets", "list", "watch"),
        policy_rule(_ARGO, "workflowtasksets/status", "patch"),
        policy_rule(_ARGO, "workflows", "get", "patch"),
    ]


def node_rules(job_kinds: Collection[Kind] = kinds.KINDS) -> list[Manifest]:
    """Cluster-wide permissions to place preemptible DIJobs. An installation for named namespaces does not get
    them.
    """
    return [policy_rule("", "nodes", "list", "watch")] if DI_JOB in job_kinds else []


def autoscaler_rules(job_kinds: Collection[Kind] = kinds.KINDS) -> list[Manifest]:
    """Additional permissions of the controller to change the replicas of elastic jobs, by updates of the spec
    or by ScalePlans.
    """
    elastic = [kind for kind in job_kinds if kind.elastic is not None]
    rules = []
    for kind in elastic:
        api = kind.source.api
        rules.append(policy_rule(api.group, api.plural, "get" if kind.scale is None else "patch"))
    if any(kind.scale is None for kind in elastic):
        rules.append(policy_rule(names.GROUP, SCALE_PLANS, "create"))
    return [*rules, policy_rule("", "nodes", "list", "watch"), policy_rule("", "pods", "list", "watch")]


def di_server_rules() -> list[Manifest]:
    """Permissions of the DI server: to find jobs and their pods, to update jobs, and to store what programs
    report. It needs no Secrets: it compares tokens with a digest.
    """
    group, plural = api.DI_JOBS.group, api.DI_JOBS.plural
    return [
        policy_rule(group, plural, *_READ, "patch"),
        policy_rule(group, f"{plural}/status", "patch"),
        policy_rule("", "pods", "list", "watch"),
    ]


def brain_rules() -> list[Manifest]:
    """Permissions of the Brain's cluster monitor, which reads nodes, pods, plans and the jobs of every kind.
    A kind that is not installed is skipped.
    """
    seen = [
        policy_rule(kind.source.api.group, kind.source.api.plural, "list", "watch") for kind in kinds.KINDS
    ]
    nodes, pods = (policy_rule("", resource, "list", "watch") for resource in ("nodes", "pods"))
    return [nodes, pods, *seen, policy_rule("metrics.k8s.io", "nodes", "list")]


def lease_rules(*leases: str, listed: bool = False) -> list[Manifest]:
    """Permissions for leader election with Leases. Creation and, for replicas that share their work, the list
    cannot be restricted by name, because the API server does not know the name when it authorizes."""
    group, plural = "coordination.k8s.io", "leases"
    anywhere = policy_rule(group, plural, *(["list"] if listed else []), "create")
    return [anywhere, policy_rule(group, plural, "get", "update", only=leases)]


def merge_rules(rules: Iterable[Mapping[str, Any]]) -> list[Manifest]:
    """Merge rules to one for each resource, with all verbs that any of the rules has for it. Restrictions to
    single objects are removed.
    """
    verbs: dict[tuple[str, str], dict[str, None]] = {}
    for rule in rules:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                verbs.setdefault((group, resource), {}).update(dict.fromkeys(rule["verbs"]))
    order = (*_READ, "create", "update", "patch", "delete")
    return [
        policy_rule(*key, *sorted(rule_verbs, key=order.index)) for key, rule_verbs in sorted(verbs.items())
    ]


def access_manifests(options: InstallOptions) -> Iterator[Manifest]:
    """ServiceAccounts of the components with their roles and bindings, in the order in which they are
    applied."""
    everywhere = [] if options.jobs_namespaces.names else node_rules(options.job_kinds)
    if options.autoscaler:
        everywhere = [*everywhere, *autoscaler_rules(options.job_kinds)]
    own = controller_rules(options.job_kinds, network_policies=options.network_policies)
    # Always those of all slots: while fewer partitions are rolled out, the replicas so far need their Leases.
    slots = [lease_name(names.CONTROLLER, slot) for slot in range(MAX_PARTITIONS)]
    elections = lease_rules(*slots, listed=True)
    yield from _account(options, names.CONTROLLER, merge_rules([*own, *everywhere]), elections)
    if InstallPart.ARGO_AGENT in options.parts:
        yield from _account(options, ARGO_AGENT, argo_agent_rules(), lease_rules(ARGO_AGENT))
    if InstallPart.DI_SERVER in options.parts:
        yield from _account(options, names.DI_SERVER, di_server_rules())
    if InstallPart.BRAIN in options.parts:
        # The monitor needs the nodes and the jobs of the whole cluster, so an installation for some
        # namespaces has none.
        monitors = options.jobs_namespaces.is_everything
        yield from _account(options, names.BRAIN, brain_rules() if monitors else [])


def shared_roles() -> Iterator[Manifest]:
    """The roles of people and pipelines, the same in every installation."""
    # Aggregated to the user-facing roles of Kubernetes: users who may view or edit a namespace may do the
    # same with its jobs. `edit` includes `view`, and `admin` includes both.
    yield _cluster_role(VIEWER, viewer_rules(), aggregated_to="view")
    yield _cluster_role(PIPELINE, pipeline_rules(), aggregated_to="edit")
    yield _cluster_role(TRIGGERER, triggerer_rules())


def _account(
    options: InstallOptions, name: str, rules: list[Manifest], election: Collection[Manifest] = ()
) -> Iterator[Manifest]:
    """A ServiceAccount with these permissions in the namespaces with jobs and, if its replicas elect a
    leader, permissions for the Leases in its own namespace.
    """
    yield {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": options.namespace},
        # Pods that need the token request it themselves.
        "automountServiceAccountToken": False,
    }
    subject = {"kind": "ServiceAccount", "name": name, "namespace": options.namespace}
    if election:
        role = f"{name}-leader-election"
        yield _role("Role", role, options.namespace, list(election))
        yield _binding("RoleBinding", role, options.namespace, "Role", subject)
    if not rules:
        return
    selection = options.jobs_namespaces
    for namespace in selection.names:
        yield _role("Role", name, namespace, rules)
        yield _binding("RoleBinding", name, namespace, "Role", subject)
    if not selection.names:
        if selection.selector:
            rules = merge_rules([*rules, policy_rule("", "namespaces", "list", "watch")])
        full = options.name_in_cluster(name)
        yield _role("ClusterRole", full, "", rules)
        yield _binding("ClusterRoleBinding", full, "", "ClusterRole", subject)


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
