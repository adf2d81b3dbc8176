"""The Deployments of the controller, Argo's agent, the DI server and the Brain, with their Services,
NetworkPolicies and PodDisruptionBudgets.
"""

import hashlib
from collections.abc import Iterator
from typing import Any

from edl_workflows.core.jobs.di_job import pods as di_pods
from edl_workflows.core.jobs.manifests import merge_env, overlay_template
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install import rbac
from edl_workflows.pipelines.install.crds import render_yaml
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart

Manifest = dict[str, Any]

CONFIG_FOLDER = "/etc/edl-workflows"
MASTER_TEMPLATE = "master-template.yaml"
"""Key of the ConfigMap, and name of the file in `CONFIG_FOLDER`."""
TRAINING_TEMPLATE = "training-template.yaml"
"""As `MASTER_TEMPLATE`, if the installation has one."""
COMMAND = ("edl",)
"""The command `edl` in the image, in the same form as in a master's pod."""
PORT = names.CONTROLLER_PORT

POD_SECURITY = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "readOnlyRootFilesystem": True,
}
"""Together these satisfy the Pod Security Standard "restricted" and make the file system read-only."""

BRAIN_TOKENS = "tokens.json"
"""Key of the Secret, and name of the file in `CONFIG_FOLDER`."""
BRAIN_FOLDER = "/var/lib/edl-brain"
BRAIN_STORAGE = "10Gi"
"""Enough for thousands of jobs: one that reports for 30 days has about 4,600 samples, each of half a kilobyte
if it has 5 nodes.
"""
_GROUP = 65532
"""The group in `Containerfile`. Without it, a volume would belong to root."""

_RESOURCES = {"requests": {"cpu": "100m", "memory": "128Mi"}, "limits": {"memory": "1Gi"}}
"""1,000 jobs with 4 pods each need about 220 MiB. There is no CPU limit, because a throttled leader would
lose its lease."""


def workload_manifests(options: InstallOptions) -> Iterator[Manifest]:
    """Deployments with their Services, policies and budgets, in the order in which they are applied."""
    config = _config(options)
    yield config
    where = _where(options.jobs_namespaces)
    elect = ["--leader-elect-namespace", options.namespace]
    arguments = ["controller", "run", *where, *_controller_arguments(options), *elect]
    deployment = _deployment(options, names.CONTROLLER, arguments)
    deployment["spec"]["replicas"] = options.controller_partitions + options.replicas - 1
    _mount(deployment["spec"]["template"], config)
    yield from _guarded(options, deployment)
    if InstallPart.ARGO_AGENT in options.parts:
        yield from _guarded(options, _deployment(options, rbac.ARGO_AGENT, ["argo", "agent", *where, *elect]))
    if InstallPart.DI_SERVER in options.parts:
        yield from _di_server(options, where)
    if InstallPart.BRAIN in options.parts:
        yield from _brain(options)


def _where(selection: NamespaceSelection) -> list[str]:
    """Options of the components that serve the namespaces."""
    if selection.selector:
        return ["--jobs-namespace-selector", selection.selector]
    if len(selection.names) == 1:
        return ["--namespace", *selection.names]
    named = [part for name in selection.names for part in ("--jobs-namespace", name)]
    return named or ["--all-namespaces"]


def _controller_arguments(options: InstallOptions) -> list[str]:
    partitions, ttl = options.controller_partitions, options.ttl_seconds_after_finished
    training = f"{CONFIG_FOLDER}/{TRAINING_TEMPLATE}" if options.training_template else None
    served = InstallPart.DI_SERVER in options.parts
    address = f"http://{names.DI_SERVER}.{options.namespace}.svc:{names.DI_SERVER_PORT}"
    writes = options.progress_writes_per_second
    valued = {
        "--master-image": options.image,
        "--master-template": f"{CONFIG_FOLDER}/{MASTER_TEMPLATE}",
        "--training-template": training,
        "--ttl-seconds-after-finished": None if ttl is None else str(ttl),
        "--kinds": ",".join(options.kinds) or None,
        "--master-cpu-limit": options.master_cpu_limit or None,
        "--prometheus-namespace": options.prometheus_namespace or None,
        "--prometheus-labels": ",".join(f"{k}={v}" for k, v in options.prometheus_labels.items()) or None,
        "--progress-writes-per-second": None if writes is None else f"{writes:g}",
        "--partitions": str(partitions) if partitions > 1 else None,
        "--di-server-url": address if served else None,
    }
    flags = {
        "--autoscaler": options.autoscaler,
        "--network-policies": options.network_policies,
        "--force-delete-lost-pods": options.force_delete_lost_pods,
    }
    arguments = [part for option, value in valued.items() if value is not None for part in (option, value)]
    return [*arguments, *(flag for flag, given in flags.items() if given)]


def pod_labels(name: str) -> dict[str, str]:
    """Labels of a workload's pods."""
    return {"app.kubernetes.io/name": "edl-workflows", "app.kubernetes.io/component": name}


def master_template(options: InstallOptions) -> Manifest:
    """The base template of masters' pods: pull policy and Secrets of the image, a restricted security
    context, and the installation's own template over them.
    """
    container: Manifest = {"name": "main", "securityContext": CONTAINER_SECURITY}
    spec: Manifest = {"securityContext": POD_SECURITY, "containers": [container]}
    _pull(options, spec)
    template = {"spec": spec}
    return overlay_template(template, options.master_template) if options.master_template else template


def _config(options: InstallOptions) -> Manifest:
    templates = {MASTER_TEMPLATE: master_template(options), TRAINING_TEMPLATE: options.training_template}
    texts = {key: render_yaml([value]) for key, value in templates.items() if value}
    return _object("v1", "ConfigMap", names.CONTROLLER, options.namespace) | {"data": texts}


def _deployment(options: InstallOptions, name: str, arguments: list[str]) -> Manifest:
    labels = pod_labels(name)
    plain = {"metadata": {"labels": labels}, "spec": _pod_spec(options, name, arguments)}
    pod = overlay_template(plain, options.pod_template) if options.pod_template else plain
    pod["metadata"]["labels"] |= labels  # the selector's
    return _object("apps/v1", "Deployment", name, options.namespace) | {
        "spec": {
            "replicas": options.replicas,
            "selector": {"matchLabels": labels},
            # The leader is stopped only when a candidate of the new version is ready to take over.
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}},
            "template": pod,
        }
    }


def _pod_spec(options: InstallOptions, name: str, arguments: list[str]) -> Manifest:
    # Probes come from the node.
    listen = ["--metrics-host", "0.0.0.0", "--metrics-port", str(PORT)]  # noqa: S104
    container: Manifest = {
        "name": "main",
        "image": options.image,
        "command": [*COMMAND, *arguments, *listen],
        "ports": [{"name": "metrics", "containerPort": PORT}],
        # Importing Python modules takes seconds on a busy node.
        "startupProbe": _probe("/healthz") | {"periodSeconds": 2, "failureThreshold": 60},
        "livenessProbe": _probe("/healthz") | {"periodSeconds": 10, "failureThreshold": 6},
        "readinessProbe": _probe("/readyz") | {"periodSeconds": 5},
        "resources": _RESOURCES,
        "securityContext": CONTAINER_SECURITY,
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }
    spec: Manifest = {
        "serviceAccountName": name,
        "automountServiceAccountToken": True,
        "securityContext": POD_SECURITY,
        "topologySpreadConstraints": [_spread(name)],
        "containers": [container],
    }
    _pull(options, spec)
    return spec


def _probe(path: str) -> Manifest:
    return {"httpGet": {"path": path, "port": "metrics"}, "timeoutSeconds": 5}


def _spread(name: str) -> Manifest:
    """Spread replicas over nodes if possible; several on one node are better than none."""
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": pod_labels(name)},
    }


def _pull(options: InstallOptions, spec: Manifest) -> None:
    if options.pull_policy:
        spec["containers"][0]["imagePullPolicy"] = str(options.pull_policy)
    if options.pull_secrets:
        spec["imagePullSecrets"] = [{"name": name} for name in options.pull_secrets]


def _mount(template: Manifest, config: Manifest) -> None:
    """Mount the configuration as files. It is read at the start, so a hash of its content in the pod template
    makes changes restart the pods."""
    digest = hashlib.sha256("".join(config["data"].values()).encode()).hexdigest()
    template["metadata"].setdefault("annotations", {})["checksum/config"] = digest
    _attach(template["spec"], "config", {"configMap": {"name": config["metadata"]["name"]}}, CONFIG_FOLDER)


def _di_server(options: InstallOptions, where: list[str]) -> Iterator[Manifest]:
    """The DI server, for pods of DIJobs in any namespace."""
    name, port = names.DI_SERVER, names.DI_SERVER_PORT
    listen = ["--host", "0.0.0.0", "--port", str(port)]  # noqa: S104 - the jobs' pods are elsewhere
    deployment = _deployment(options, name, ["di-server", "run", *where, *listen])
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["ports"].append({"name": "api", "containerPort": port})
    # The Secret is optional: it enables the administrator's token. Jobs have tokens of their own.
    key = {"name": name, "key": names.TOKEN_KEY, "optional": True}
    _add_env(container, {"name": names.ENV_DI_SERVER_TOKEN, "valueFrom": {"secretKeyRef": key}})
    jobs = {
        "podSelector": {"matchLabels": {di_pods.OPERATOR_LABEL: di_pods.OPERATOR}},
        "namespaceSelector": {},
    }
    yield from _guarded(options, deployment, [_api(jobs, port)])
    yield _api_service(options, name, port)


def _brain(options: InstallOptions) -> Iterator[Manifest]:
    """The Brain, for masters in any namespace. It has one pod, because an SQLite database allows one Brain
    and only one Brain should watch the cluster. While it is down, masters make plans on their own."""
    name, port = names.BRAIN, names.BRAIN_PORT
    listen = ["--host", "0.0.0.0", "--port", str(port)]  # noqa: S104 - the masters are elsewhere
    tokens = ["--tokens-file", f"{CONFIG_FOLDER}/{BRAIN_TOKENS}"]
    monitor = ["--monitor", "--all-namespaces"] if options.jobs_namespaces.is_everything else []
    deployment = _deployment(options, name, ["brain", "run", *listen, *tokens, *monitor])
    deployment["spec"] |= {"replicas": 1, "strategy": {"type": "Recreate"}}
    spec = deployment["spec"]["template"]["spec"]
    spec["automountServiceAccountToken"] = bool(monitor)
    spec["containers"][0]["ports"].append({"name": "api", "containerPort": port})
    _attach(spec, "tokens", {"secret": {"secretName": name}}, CONFIG_FOLDER)
    if options.brain_database_secret:
        key = {"name": options.brain_database_secret, "key": "url"}
        _add_env(
            spec["containers"][0], {"name": names.ENV_BRAIN_DATABASE_URL, "valueFrom": {"secretKeyRef": key}}
        )
    else:
        yield _volume_claim(options, name, BRAIN_STORAGE)
        _attach(spec, "store", {"persistentVolumeClaim": {"claimName": name}}, BRAIN_FOLDER)
        spec["securityContext"] = {"fsGroup": _GROUP} | spec["securityContext"]
        _add_env(
            spec["containers"][0],
            {"name": names.ENV_BRAIN_DATABASE_URL, "value": f"sqlite:///{BRAIN_FOLDER}/brain.db"},
            {"name": "SQLITE_TMPDIR", "value": BRAIN_FOLDER},  # the only writable folder
        )
    masters = {
        "podSelector": {"matchLabels": {names.REPLICA_TYPE_LABEL: names.MASTER_TYPE}},
        "namespaceSelector": {},
    }
    yield from _guarded(options, deployment, [_api(masters, port)])
    yield _api_service(options, name, port)


def _add_env(container: Manifest, *variables: Manifest) -> None:
    """Add our variables to those of the installation's template."""
    container["env"] = merge_env(container.get("env") or (), variables)


def _attach(spec: Manifest, name: str, source: Manifest, path: str) -> None:
    """Add a volume to a pod's container. It is read-only unless it has a claim."""
    spec.setdefault("volumes", []).append({"name": name} | source)
    mount = {"name": name, "mountPath": path, "readOnly": "persistentVolumeClaim" not in source}
    spec["containers"][0].setdefault("volumeMounts", []).append(mount)


def _volume_claim(options: InstallOptions, name: str, size: str) -> Manifest:
    spec = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return _object("v1", "PersistentVolumeClaim", name, options.namespace) | {"spec": spec}


def _api(peer: Manifest, port: int) -> Manifest:
    """An ingress rule that admits a peer to a port."""
    return {"from": [peer], "ports": [{"port": port, "protocol": "TCP"}]}


def _api_service(options: InstallOptions, name: str, port: int) -> Manifest:
    return _object("v1", "Service", name, options.namespace) | {
        "spec": {
            "selector": pod_labels(name),
            "ports": [{"name": "api", "port": port, "targetPort": "api"}],
        }
    }


def _guarded(
    options: InstallOptions, deployment: Manifest, besides: list[Manifest] | None = None
) -> Iterator[Manifest]:
    """A Deployment with a Service for its metrics, a NetworkPolicy and a PodDisruptionBudget.

    Args:
        options: the installation.
        deployment: the Deployment.
        besides: ingress rules in addition to the one for metrics.
    """
    name = deployment["metadata"]["name"]
    labels = pod_labels(name)
    yield deployment
    service = _object("v1", "Service", f"{name}-metrics", options.namespace)
    service["metadata"]["labels"] = labels
    # The convention of Prometheus' example configuration, which most installations follow.
    service["metadata"]["annotations"] = {"prometheus.io/scrape": "true", "prometheus.io/port": str(PORT)}
    yield service | {
        "spec": {"selector": labels, "ports": [{"name": "metrics", "port": PORT, "targetPort": "metrics"}]}
    }
    # Egress is not restricted: a policy would need the addresses of the API server, which differ between
    # clusters.
    metrics = {"ports": [{"port": PORT, "protocol": "TCP"}]}
    yield _policy(options.namespace, name, labels, [metrics, *(besides or [])])
    yield _object("policy/v1", "PodDisruptionBudget", name, options.namespace) | {
        "spec": {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    }


def _policy(namespace: str, name: str, labels: dict[str, str], ingress: list[Manifest]) -> Manifest:
    spec = {"podSelector": {"matchLabels": labels}, "policyTypes": ["Ingress"], "ingress": ingress}
    return _object("networking.k8s.io/v1", "NetworkPolicy", name, namespace) | {"spec": spec}


def _object(api_version: str, kind: str, name: str, namespace: str) -> Manifest:
    metadata: Manifest = {"name": name, "namespace": namespace}
    return {"apiVersion": api_version, "kind": kind, "metadata": metadata}
