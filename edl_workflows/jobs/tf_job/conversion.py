"""A TFJob in its other version, and as an ElasticJob. Pure. Fields that can't be converted
are reported, never dropped silently.
"""

import copy
from collections.abc import Mapping
from typing import Any

from edl_workflows.jobs import api, names
from edl_workflows.jobs.conversion import AGENT, ConvertedJob, converted_manifest
from edl_workflows.jobs.kubeflow.model import Policies, ReplicaType, container_of
from edl_workflows.jobs.tf_job.model import TFJob, TFJobSpec, TFReplicaType
from edl_workflows.jobs.tf_job.pods import TENSORFLOW

V1, V1ALPHA2 = "kubeflow.org/v1", "kubeflow.org/v1alpha2"
_ROLES: dict[ReplicaType, str] = {
    TFReplicaType.CHIEF: "chief",
    TFReplicaType.MASTER: "chief",
    TFReplicaType.PS: "ps",
    TFReplicaType.WORKER: "worker",
    TFReplicaType.EVALUATOR: "evaluator",
}


def to_v1(job: TFJob) -> ConvertedJob:
    """The job as ``kubeflow.org/v1``: policies in ``runPolicy``, types in v1's spelling."""
    spec = job.spec.to_dict()
    for name in _policy_fields():
        spec.pop(name, None)
    run_policy = spec.pop("runPolicy", {}) | job.spec.policies.to_dict()
    spec["tfReplicaSpecs"] = _by_type(spec)
    return ConvertedJob(
        converted_manifest(
            V1, api.TF_JOBS.kind, job, spec | ({"runPolicy": run_policy} if run_policy else {})
        )
    )


def to_v1alpha2(job: TFJob) -> ConvertedJob:
    """The job as ``kubeflow.org/v1alpha2``: flat policies. What came later than that version has no place
    there.
    """
    spec = job.spec.to_dict()
    run_policy = spec.pop("runPolicy", {})
    newer = {f"runPolicy.{name}": run_policy.get(name) for name in ("suspend", "managedBy")}
    newer |= {name: spec.pop(name, None) for name in ("successPolicy", "enableDynamicWorker")}
    notes = [f"spec.{path}: v1alpha2 has no such field" for path, value in newer.items() if value]
    spec["tfReplicaSpecs"] = _by_type(spec)
    return ConvertedJob(
        converted_manifest(V1ALPHA2, api.TF_JOBS.kind, job, spec | job.spec.policies.to_dict()), tuple(notes)
    )


def to_elastic_job(job: TFJob) -> ConvertedJob:
    """The job as an ElasticJob: replicas as roles, each container's command under the agent."""
    notes: list[str] = []
    roles: dict[str, dict[str, Any]] = {}
    policies = job.spec.policies
    for kind, replica in job.spec.replicas.items():
        template = copy.deepcopy(replica.template)
        _under_agent(kind, container_of(template, TENSORFLOW.container), notes)
        roles[_ROLES[kind]] = {"replicas": replica.replicas, "template": template}
        if policies.scheduling_policy is not None:
            roles[_ROLES[kind]]["BatchScheduler"] = "volcano"
    collective = TFReplicaType.PS not in job.spec.replicas
    if collective and names.CHIEF_TYPE in roles:
        _chief_as_worker(roles, notes)
    elif names.CHIEF_TYPE not in roles:
        notes.append("spec.replicaSpecs.worker: worker 0 is the chief, as in a TFJob without one")
    notes += [f"spec.{path}: an ElasticJob has no such setting" for path in _without_a_place(job)]
    strategy = "AllreduceStrategy" if collective else "ParameterServerStrategy"
    spec: dict[str, Any] = {"distributionStrategy": strategy, "optimizeMode": "manual", "replicaSpecs": roles}
    if job.spec.run_policy.suspend:
        spec["suspend"] = True
    if policies.ttl_seconds_after_finished is not None:
        spec["ttlSecondsAfterFinished"] = policies.ttl_seconds_after_finished
    notes.append(
        "spec.replicaSpecs: the program gets its data and its cluster from the agent; "
        "see how-to/write-a-training-program"
    )
    return ConvertedJob(converted_manifest(names.API_VERSION, api.ELASTIC_JOBS.kind, job, spec), tuple(notes))


def _chief_as_worker(roles: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """A collective ElasticJob has no chief: its oldest worker is it."""
    chief = roles.pop(names.CHIEF_TYPE)
    workers = roles.get(names.WORKER_TYPE, chief | {"replicas": 0})
    roles[names.WORKER_TYPE] = workers | {"replicas": workers["replicas"] + chief["replicas"]}
    notes.append(
        "spec.replicaSpecs.worker: the chief is one more worker, with the workers' template; "
        "the oldest is the chief"
    )


def _under_agent(kind: ReplicaType, container: dict[str, Any], notes: list[str]) -> None:
    command = list(container.get("command") or ())
    if not command:
        message = f"the image's own command is not known here; write `command: [{', '.join(AGENT)}, …]`"
        notes.append(f"spec.replicaSpecs.{_ROLES[kind]}.template: {message}")
        return
    container["command"] = [*AGENT, *command]


def _without_a_place(job: TFJob) -> list[str]:
    policies = job.spec.policies
    named = {
        "runPolicy.cleanPodPolicy": policies.clean_pod_policy in ("All", "None"),
        "runPolicy.activeDeadlineSeconds": policies.active_deadline_seconds is not None,
        "runPolicy.backoffLimit": policies.backoff_limit is not None,
        "successPolicy": job.spec.success_policy != "",
    }
    return [path for path, lost in named.items() if lost]


def _policy_fields() -> list[str]:
    return [field.alias or name for name, field in Policies.model_fields.items()]


def _by_type(spec: Mapping[str, Any]) -> dict[str, Any]:
    return {str(TFJobSpec.replica_type(key)): value for key, value in spec["tfReplicaSpecs"].items()}
