"""Manifests of an ElasticJob's pods and of the two services by which they reach each other: the master's and
the nodes'.

A user's template stays as it is, except where the master and the agents need other values. The command of a
training container is the user's own: it starts ``edl agent run -- python train.py``, and nothing is wrapped
around it here.
"""

import base64
import copy
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from edl_workflows.core.jobs.actions import InstallationSettings
from edl_workflows.core.jobs.elastic_job.model import PLURAL, ElasticJob, ReplicaSpec
from edl_workflows.core.jobs.grace import pod_grace
from edl_workflows.core.jobs.manifests import (
    elastic_job_child,
    headless_service,
    merge_env,
    overlay_template,
    report_init_output,
)
from edl_workflows.core.jobs.scale_plan.model import PLURAL as SCALE_PLANS
from edl_workflows.core.jobs.scale_plan.model import NodeResource
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.pod_state import mark_own_container
from edl_workflows.core.protocol.trace_context import checked_traceparent

_GPU = "nvidia.com/gpu"

Container = dict[str, Any]


@dataclass(frozen=True)
class NodeToMake:
    """One training node to make.

    Attributes:
        type: ps, worker, chief or evaluator.  id: never used twice in (job, type).  rank: kept by
            replacements.
        replicas: how many nodes of the type the job wants.
        resource: overrides requests and limits of the template's first container.
    """

    type: str
    id: int
    rank: int
    replicas: int
    resource: NodeResource = field(default_factory=NodeResource)


def role_spec(job: ElasticJob, role: str) -> ReplicaSpec | None:
    """The role's spec. A chief without a spec of its own uses the worker's (upstream's rule)."""
    specs: Mapping[str, ReplicaSpec] = job.spec.replica_specs  # type: ignore[assignment]  # keys are literals
    return specs.get(role) or (specs.get(names.WORKER_TYPE) if role == names.CHIEF_TYPE else None)


def node_labels(job: ElasticJob, node_type: str, node_id: int) -> dict[str, str]:
    """Labels that name exactly this node's pod: by id, not by rank, since during a migration two pods have
    the same rank.
    """
    return {
        names.JOB_LABEL: job.metadata.name,
        names.REPLICA_TYPE_LABEL: node_type,
        names.REPLICA_INDEX_LABEL: str(node_id),
    }


def node_pod(job: ElasticJob, node: NodeToMake) -> dict[str, Any]:
    """The pod of a training node.

    Its ``restartPolicy`` is Never: the master replaces nodes by its own policy. Environment, labels and
    resources override the template's; its other labels and its annotations stay.
    """
    spec = role_spec(job, node.type)
    if spec is None:
        raise ValueError(f"ElasticJob {job.key}: spec.replicaSpecs has no {node.type!r}")
    labels = node_labels(job, node.type, node.id) | {names.RANK_INDEX_LABEL: str(node.rank)}
    pod = _pod(names.node_name(job.metadata.name, node.type, node.id), job, spec.template, labels)
    pod["spec"] |= {
        "hostname": pod["metadata"]["name"],
        "subdomain": names.nodes_service_name(job.metadata.name),
    }
    pod["spec"].setdefault("terminationGracePeriodSeconds", pod_grace(spec.template, _save_seconds(job)))
    # Training code talks only to its master; a template that needs the API's credentials sets this field
    # itself.
    pod["spec"].setdefault("automountServiceAccountToken", False)
    main = pod["spec"]["containers"][0]
    mark_own_container(pod, main["name"])
    main["env"] = merge_env(main.get("env") or (), [*_node_env(job, node), *_user_env(job)])
    _set_resources(main, node.resource)
    _set_scheduling(pod["spec"], spec, node)
    return pod


def nodes_service(job: ElasticJob) -> dict[str, Any]:
    """The headless service that gives each node its DNS name, `names.node_address`.

    A job has one such service, while upstream has one for each node: for a large job, endpoints and
    kube-proxy rules for each node would be the largest cost to the cluster. A node's name resolves before the
    node is Ready, because parameter servers and workers wait for each other.
    """
    ports = sorted({port for pair in names.NODE_PORTS.values() for port in pair} | {names.AGENT_PORT})
    own = {names.JOB_LABEL: job.metadata.name}
    return headless_service(
        names.nodes_service_name(job.metadata.name),
        job,
        {names.APP_LABEL: names.APP_VALUE} | own,
        [(f"node-{port}", port) for port in ports],
        selector=own,
    )


def master_pod(job: ElasticJob, index: int, restarts: int, settings: InstallationSettings) -> dict[str, Any]:
    """The job's master number `index`, made after `restarts` failures that count.

    The ``dlrover-master`` template is merged over the installation's template, and the result over the
    defaults, so a template may name only an image, or only resources. ``restartPolicy`` is Never: the
    controller replaces masters, and counts the replacements.
    """
    spec = role_spec(job, names.MASTER_TYPE)
    labels = node_labels(job, names.MASTER_TYPE, index) | {names.RELAUNCH_COUNT_LABEL: str(restarts)}
    template = overlay_template(settings.master_template, spec.template if spec else {})
    pod = _pod(names.master_pod_name(job.metadata.name, index), job, template, labels)
    pod["spec"].setdefault("terminationGracePeriodSeconds", pod_grace(template, _save_seconds(job)))
    pod["spec"].setdefault("serviceAccountName", names.master_account_name(job.metadata.name))
    containers = pod["spec"].setdefault("containers", [])
    own = containers[0] if containers else {}
    main = _master_container(settings) | own
    main["env"] = merge_env(own.get("env") or (), _master_env(job))
    pod["spec"]["containers"] = [main, *containers[1:]]
    mark_own_container(pod, main["name"])
    if spec and spec.priority in ("high", "low"):
        pod["spec"]["priorityClassName"] = spec.priority
    return pod


def master_account_named(job: ElasticJob, settings: InstallationSettings) -> str:
    """The ServiceAccount that the job's or the installation's master template names; "" if neither does, so
    that the job gets its own.
    """
    spec = role_spec(job, names.MASTER_TYPE)
    template = overlay_template(settings.master_template, spec.template if spec else {})
    return str(template["spec"].get("serviceAccountName") or "")


def master_service(job: ElasticJob) -> dict[str, Any]:
    """The service of the master's HTTP API: the same address for every master that the job ever has.

    It publishes the master before it is Ready: the master listens only once it knows its job, and agents
    would otherwise also wait for its next readiness probe.
    """
    labels = {names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}
    service = elastic_job_child("v1", "Service", names.master_name(job.metadata.name), job, labels)
    port = {"name": "http", "port": names.MASTER_PORT, "targetPort": names.MASTER_PORT, "protocol": "TCP"}
    selector = {names.JOB_LABEL: job.metadata.name, names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}
    service["spec"] = {"selector": selector, "ports": [port], "publishNotReadyAddresses": True}
    return service


def _pod(
    name: str, job: ElasticJob, template: Mapping[str, Any], labels: Mapping[str, str]
) -> dict[str, Any]:
    template = copy.deepcopy(dict(template))
    pod = elastic_job_child("v1", "Pod", name, job, labels)
    metadata = template.get("metadata") or {}
    own = pod["metadata"]["labels"]
    app = {names.APP_LABEL: own.pop(names.APP_LABEL)}
    pod["metadata"]["labels"] = app | (metadata.get("labels") or {}) | own
    if metadata.get("annotations"):
        pod["metadata"]["annotations"] = metadata["annotations"]
    pod["spec"] = (template.get("spec") or {}) | {"restartPolicy": "Never"}
    report_init_output(pod["spec"])
    return pod


def _save_seconds(job: ElasticJob) -> float:
    return job.status.checkpoint.save_seconds if job.status.checkpoint is not None else 0.0


def _user_env(job: ElasticJob) -> list[dict[str, Any]]:
    return [{"name": name} | variable.to_dict() for name, variable in job.spec.envs.items()]


def _value(name: str, value: object) -> dict[str, Any]:
    return {"name": name, "value": str(value)}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _common_env(job: ElasticJob) -> list[dict[str, Any]]:
    token = {"name": names.token_secret_name(job.metadata.name), "key": names.TOKEN_KEY}
    trace = checked_traceparent(job.metadata.annotations.get(names.TRACE_ANNOTATION, ""))
    return [
        _value(names.ENV_JOB_NAME, job.metadata.name),
        _value(names.ENV_JOB_UID, job.metadata.uid),
        _field(names.ENV_NAMESPACE, "metadata.namespace"),
        _field(names.ENV_POD_NAME, "metadata.name"),
        _field(names.ENV_POD_IP, "status.podIP"),
        {"name": names.ENV_JOB_TOKEN, "valueFrom": {"secretKeyRef": token}},
        *([_value(names.ENV_TRACEPARENT, trace)] if trace else []),
    ]


def _node_env(job: ElasticJob, node: NodeToMake) -> list[dict[str, Any]]:
    address = names.master_address(job.metadata.name, job.metadata.namespace or "default")
    return [
        *_common_env(job),
        _field(names.ENV_HOST_IP, "status.hostIP"),
        _value(names.ENV_MASTER_ADDR, address),
        _value(names.ENV_NODE_TYPE, node.type),
        _value(names.ENV_NODE_ID, node.id),
        _value(names.ENV_NODE_RANK, node.rank),
        _value(names.ENV_NODE_NUM, node.replicas),
        # Upstream's older names for the same values, which users' scripts read.
        _value("WORKER_TYPE", node.type),
        _value("WORKER_ID", node.id),
        _value("WORKER_RANK", node.rank),
        _value("WORKER_NUM", node.replicas),
    ]


def _master_env(job: ElasticJob) -> list[dict[str, Any]]:
    brain = [_value(names.ENV_BRAIN_ADDR, job.spec.brain_service)] if job.spec.brain_service else []
    return [*_common_env(job), *brain]


def _master_container(settings: InstallationSettings) -> Container:
    requests = {"cpu": settings.master_cpu, "memory": settings.master_memory}
    limits = {"memory": settings.master_memory_limit}
    if settings.master_cpu_limit:
        limits["cpu"] = settings.master_cpu_limit
    return {
        "name": "main",
        "image": settings.master_image,
        "command": list(settings.master_command),
        "ports": [{"name": "http", "containerPort": names.MASTER_PORT}],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": names.MASTER_PORT}, "periodSeconds": 5},
        "resources": {"requests": requests, "limits": limits},
        "terminationMessagePolicy": "FallbackToLogsOnError",  # the job's message quotes its last line
    }


def _set_resources(container: Container, resource: NodeResource) -> None:
    requested = {"cpu": resource.cpu, "memory": resource.memory, _GPU: resource.gpu, **resource.others}
    amounts = {name: amount for name, amount in requested.items() if amount is not None}
    if amounts:
        resources = container.get("resources") or {}
        container["resources"] = resources | {
            part: (resources.get(part) or {}) | amounts for part in ("requests", "limits")
        }


def _set_scheduling(pod_spec: dict[str, Any], spec: ReplicaSpec, node: NodeToMake) -> None:
    if node.resource.gpu_type is not None:
        selector = pod_spec.get("nodeSelector") or {}
        pod_spec["nodeSelector"] = selector | {names.GPU_TYPE_LABEL: node.resource.gpu_type}
    if spec.batch_scheduler == "volcano":
        pod_spec["schedulerName"] = "volcano"
    if spec.priority in ("high", "low"):
        pod_spec["priorityClassName"] = spec.priority
    elif spec.priority:
        # The share is applied by rank, so that a replacement has its predecessor's class. Upstream gives it
        # to one node too many.
        high = node.rank < round(node.replicas * float(spec.priority))
        pod_spec["priorityClassName"] = "high" if high else "low"


_RBAC = "rbac.authorization.k8s.io"


def token_secret(job: ElasticJob, token: str) -> dict[str, Any]:
    """The token that the job's agents and its master share."""
    secret = elastic_job_child("v1", "Secret", names.token_secret_name(job.metadata.name), job, {})
    return secret | {
        "type": "Opaque",
        "immutable": True,  # running pods hold the old value for ever
        "data": {names.TOKEN_KEY: base64.b64encode(token.encode()).decode()},
    }


def state_config_map(job: ElasticJob) -> dict[str, Any]:
    """The ConfigMap in which the master keeps its durable state. It is created empty; only the master writes
    to it, and creates those for the parts of a large state."""
    return elastic_job_child("v1", "ConfigMap", names.state_config_map_name(job.metadata.name), job, {})


def master_account(job: ElasticJob) -> dict[str, Any]:
    """The ServiceAccount that the master uses for the Kubernetes API."""
    return elastic_job_child("v1", "ServiceAccount", names.master_account_name(job.metadata.name), job, {})


def master_role(job: ElasticJob) -> dict[str, Any]:
    """The master's rights: read its job and the pods, write the job's status, create ScalePlans, keep its
    state, create Events.
    """
    role = elastic_job_child(f"{_RBAC}/v1", "Role", names.master_account_name(job.metadata.name), job, {})
    return role | {"rules": master_rules(job.metadata.name)}


def master_rules(job: str) -> list[dict[str, Any]]:
    """The rules of the master's role. Whoever creates the role must hold each of these rights, too.

    Args:
        job: the job's name; where RBAC allows it, the rights are limited to objects with this name.
    """
    parts = names.state_part_names(job)
    return [
        _rule("", ["pods"], ["list", "watch"]),
        _rule("", ["configmaps"], ["get", "patch"], [names.state_config_map_name(job), *parts]),
        _rule("", ["configmaps"], ["delete"], parts),
        _rule("", ["configmaps"], ["create"]),  # RBAC can't restrict it to names
        _rule(names.GROUP, [PLURAL], ["get", "list", "watch"], [job]),
        _rule(names.GROUP, [f"{PLURAL}/status"], ["patch"], [job]),
        _rule(names.GROUP, [SCALE_PLANS], ["list", "watch", "create"]),
        _rule(names.GROUP, [f"{SCALE_PLANS}/status"], ["patch"]),
        _rule("", ["events"], ["create"]),
    ]


def master_role_binding(job: ElasticJob) -> dict[str, Any]:
    """Give the master's account its role."""
    name = names.master_account_name(job.metadata.name)
    binding = elastic_job_child(f"{_RBAC}/v1", "RoleBinding", name, job, {})
    account = {"kind": "ServiceAccount", "name": name, "namespace": job.metadata.namespace or "default"}
    return binding | {
        "roleRef": {"apiGroup": _RBAC, "kind": "Role", "name": name},
        "subjects": [account],
    }


def _rule(
    group: str, resources: list[str], verbs: list[str], only: list[str] | None = None
) -> dict[str, Any]:
    rule: dict[str, Any] = {"apiGroups": [group], "resources": resources, "verbs": verbs}
    return rule | {"resourceNames": only} if only else rule
