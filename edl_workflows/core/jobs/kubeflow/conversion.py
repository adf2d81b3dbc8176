"""A Kubeflow job as an ElasticJob. Pure. Fields that can't be converted are reported, never dropped
silently.
"""

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from edl_workflows.core.jobs.conversion import AGENT, ConvertedJob, converted_manifest
from edl_workflows.core.jobs.kubeflow.model import KubeflowJob, ReplicaType, container_of
from edl_workflows.core.kubernetes import api, names


def to_elastic_job(
    job: KubeflowJob, container: str, roles: Mapping[ReplicaType, str], lost: Iterable[str] = (), **spec: Any
) -> ConvertedJob:
    """The job as an ElasticJob: replica types become roles, and each container's command is run by the agent.

    Args:
        job: the job.
        container: name of the container that runs the replica's program.
        roles: the ElasticJob's role for each of the kind's types.
        lost: fields of this job's spec, peculiar to its kind, that an ElasticJob does not have.
        spec: further fields of the ElasticJob's spec.
    """
    notes: list[str] = []
    replica_specs: dict[str, dict[str, Any]] = {}
    policies = job.spec.policies
    for kind, replica in job.spec.replicas.items():
        template = copy.deepcopy(replica.template)
        _run_under_agent(roles[kind], container_of(template, container), notes)
        replica_specs[roles[kind]] = {"replicas": replica.replicas, "template": template}
        if policies.scheduling_policy is not None:
            replica_specs[roles[kind]]["BatchScheduler"] = "volcano"
    collective = names.PS_TYPE not in replica_specs
    if collective and names.CHIEF_TYPE in replica_specs:
        _make_chief_a_worker(replica_specs, notes)
    elif names.CHIEF_TYPE not in replica_specs:
        notes.append(f"spec.replicaSpecs.worker: worker 0 is the chief, as in a {job.kind} without one")
    notes += [f"spec.{path}: an ElasticJob has no such setting" for path in [*_lost_policies(job), *lost]]
    strategy = "AllreduceStrategy" if collective else "ParameterServerStrategy"
    made: dict[str, Any] = {
        "distributionStrategy": strategy,
        "optimizeMode": "manual",
        "replicaSpecs": replica_specs,
        **spec,
    }
    if job.spec.run_policy.suspend:
        made["suspend"] = True
    if policies.ttl_seconds_after_finished is not None:
        made["ttlSecondsAfterFinished"] = policies.ttl_seconds_after_finished
    if policies.active_deadline_seconds is not None:
        made["activeDeadlineSeconds"] = policies.active_deadline_seconds
    notes.append(
        "spec.replicaSpecs: the program gets its data and its cluster from the agent; "
        "see how-to/write-a-training-program"
    )
    return ConvertedJob(converted_manifest(names.API_VERSION, api.ELASTIC_JOBS.kind, job, made), tuple(notes))


def _make_chief_a_worker(roles: dict[str, dict[str, Any]], notes: list[str]) -> None:
    """Merge the chief into the workers: a collective ElasticJob has no chief role; its oldest worker is the
    chief."""
    chief = roles.pop(names.CHIEF_TYPE)
    workers = roles.get(names.WORKER_TYPE, chief | {"replicas": 0})
    roles[names.WORKER_TYPE] = workers | {"replicas": workers["replicas"] + chief["replicas"]}
    notes.append(
        "spec.replicaSpecs.worker: the chief is one more worker, with the workers' template; "
        "the oldest is the chief"
    )


def _run_under_agent(role: str, container: dict[str, Any], notes: list[str]) -> None:
    command = list(container.get("command") or ())
    if not command:
        message = f"the image's own command is not known here; write `command: [{', '.join(AGENT)}, …]`"
        notes.append(f"spec.replicaSpecs.{role}.template: {message}")
        return
    container["command"] = [*AGENT, *command]


def _lost_policies(job: KubeflowJob) -> list[str]:
    policies = job.spec.policies
    named = {
        "runPolicy.cleanPodPolicy": policies.clean_pod_policy in ("All", "None"),
        "runPolicy.backoffLimit": policies.backoff_limit is not None,
    }
    return [path for path, lost in named.items() if lost]
