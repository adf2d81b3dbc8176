"""A job's NetworkPolicy: only the job's own pods reach its pods, on any port. Pure.

Each job has its own policy, because selectors cannot compare labels: no single policy can say "pods of the
same job". The job owns its policy, which is deleted with it. An installation may admit Prometheus to the port
of masters; since policies add up, a further policy can let others in.

A job with ``hostNetwork`` pods gets no policy: such a pod has its node's address, which a policy does not
recognize as a pod of the job, so a worker on the host network could not reach a master on the pod network.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edl_workflows.core.jobs import manifests, obstacles
from edl_workflows.core.jobs.actions import Actions, InstallationSettings, Manifest, Observed, merge_patch
from edl_workflows.core.kubernetes import api, names, pod_state
from edl_workflows.core.kubernetes.namespaces import NAME_LABEL
from edl_workflows.core.kubernetes.objects import Resource


def network_policy(
    job: Resource, pod_labels: Mapping[str, str], settings: InstallationSettings
) -> dict[str, Any]:
    """The policy of a job.

    Args:
        job: the job.
        pod_labels: what all its pods carry, and no others.
        settings: the installation's; they may admit Prometheus to the port of masters, in all pods.
    """
    policy = manifests.owned_manifest(
        api.NETWORK_POLICIES.api_version,
        api.NETWORK_POLICIES.kind,
        names.network_policy_name(job.kind, job.metadata.name),
        job,
        {names.ISOLATES_LABEL: job.metadata.name},
    )
    pods = {"matchLabels": dict(pod_labels)}
    # A peer without a namespaceSelector is of the policy's own namespace.
    policy["spec"] = {
        "podSelector": pods,
        "policyTypes": ["Ingress"],
        "ingress": [{"from": [{"podSelector": pods}]}],
    }
    if settings.prometheus_namespace and job.kind == api.ELASTIC_JOBS.kind:
        policy["spec"]["ingress"].append(_admit_prometheus(settings))
    return policy


def _admit_prometheus(settings: InstallationSettings) -> dict[str, Any]:
    """A rule for pods of another namespace. Without the job's token a master tells them figures only. As the
    policy is that of all pods, a program that listens on the master's port in another pod is reached, too."""
    namespace = {"matchLabels": {NAME_LABEL: settings.prometheus_namespace}}
    peer: dict[str, Any] = {"namespaceSelector": namespace}
    if settings.prometheus_labels:
        peer["podSelector"] = {"matchLabels": dict(settings.prometheus_labels)}
    return {"from": [peer], "ports": [{"port": names.MASTER_PORT, "protocol": "TCP"}]}


def isolate_pods(
    job: Resource, pod_labels: Mapping[str, str], manifest: Manifest, observed: Observed, actions: Actions
) -> Actions:
    """A decision with the job's policy in front of its pods.

    No pod is made before the policy exists. If the policy can't be made, the only action is to report why in
    the status.

    Args:
        job: the job.
        pod_labels: see `network_policy`.
        manifest: the job as it is stored.
        observed: what is observed of it, including its policies.
        actions: the decision without the policy.
    """
    makes_pods = any(child["kind"] == "Pod" for child in actions.create)
    if not makes_pods and not _has_pods(job, observed):
        return actions
    policy = network_policy(job, pod_labels, observed.settings)
    key = (policy["kind"], manifests.name_of(policy))
    existing = observed.find(*key)
    if existing is not None and manifests.owned_by(existing, job):
        return actions
    if _uses_nodes_network(manifest.get("spec")):
        return actions
    create = (policy,) if existing is None else ()
    obstacle = obstacles.find_conflict(job, observed, [key]) or obstacles.find_refusal(observed, create)
    if obstacle is None or not makes_pods:
        return replace(actions, create=(*create, *actions.create))
    status = manifest.get("status") or {}
    desired = {"reason": obstacle.reason, "message": obstacle.message}
    return Actions(create=create, status=merge_patch(status, desired), requeue_after=obstacle.seconds)


def _uses_nodes_network(spec: Any) -> bool:
    """Whether a pod template somewhere in a job's spec says ``hostNetwork``, as TrainingJobs do for all their
    pods.
    """
    left = [spec]
    while left:
        value = left.pop()
        if isinstance(value, Mapping):
            if any(value.get(name) is True for name in ("hostNetwork", "host_network")):
                return True
            left.extend(value.values())
        elif isinstance(value, list):
            left.extend(value)
    return False


def _has_pods(job: Resource, observed: Observed) -> bool:
    own = (pod for pod in observed.of("Pod") if manifests.owned_by(pod, job))
    return any(not pod_state.has_stopped(pod) for pod in own)
