"""A TrainingJob as an ElasticJob. Pure. Fields that can't be converted are
reported, never dropped silently."""

from typing import Any

from edl_workflows.core.jobs.conversion import AGENT, ConvertedJob, converted_manifest
from edl_workflows.core.jobs.training_job import pods
from edl_workflows.core.jobs.training_job.model import TrainingJob
from edl_workflows.core.jobs.training_job.types import TrainingRole
from edl_workflows.core.kubernetes import api, names

_ROLES = {TrainingRole.PSERVER: names.PS_TYPE, TrainingRole.TRAINER: names.WORKER_TYPE}


def to_elastic_job(job: TrainingJob) -> ConvertedJob:
    """Pservers become ps and trainers become workers; the agent runs the entrypoint; the ElasticJob's own
    master replaces the job's.
    """
    counts = job.spec.counts
    roles = {
        named: {"replicas": counts[role], "template": _template(job, role)}
        for role, named in _ROLES.items()
        if role in counts
    }
    strategy = "ParameterServerStrategy" if TrainingRole.PSERVER in counts else "AllreduceStrategy"
    spec: dict[str, Any] = {"distributionStrategy": strategy, "optimizeMode": "manual", "replicaSpecs": roles}
    low, high = job.spec.trainer.bounds
    if TrainingRole.PSERVER not in counts and low != high:
        spec["rendezvous"] = {"minNodes": low, "maxNodes": high}
    if job.spec.suspend:
        spec["suspend"] = True
    return ConvertedJob(
        converted_manifest(names.API_VERSION, api.ELASTIC_JOBS.kind, job, spec), tuple(_notes(job))
    )


def _template(job: TrainingJob, role: TrainingRole) -> dict[str, Any]:
    """The role's pod without the parts that are specific to this job: name, addresses, ports, and the
    launcher's command."""
    pod = pods.make_pod(job, role, 0)
    own = {variable["name"] for variable in pods.make_environment(job, role, 0)}
    spec = pod["spec"]
    main, *remaining_containers = spec["containers"]
    entrypoint = job.spec.trainer.entrypoint
    kept = {key: main[key] for key in ("image", "resources", "volumeMounts", "workingDir") if key in main}
    env = [variable for variable in main.get("env") or () if variable["name"] not in own]
    command = [*AGENT, "sh", "-c", entrypoint] if entrypoint else [*AGENT]
    container = {"name": "main", **kept, "command": command} | ({"env": env} if env else {})
    if job.spec.trainer.workspace:
        container["workingDir"] = job.spec.trainer.workspace
    rest = {key: value for key, value in spec.items() if key not in ("restartPolicy", "containers")}
    return {"spec": {"containers": [container, *remaining_containers], **rest}}


def _notes(job: TrainingJob) -> list[str]:
    spec = job.spec
    low, high = spec.trainer.bounds
    lost = {
        "fault_tolerant": spec.fault_tolerant and "workers of an ElasticJob are always replaced",
        "master": TrainingRole.MASTER in spec.counts
        and "an ElasticJob's own master hands out the data; yours is not started",
        "pserver.entrypoint": bool(spec.pserver and spec.pserver.entrypoint)
        and "parameter servers run the workers' program; the agent tells it what it is",
        "trainer.entrypoint": not spec.trainer.entrypoint
        and f"is empty; write what follows {' '.join(AGENT)}",
        "trainer.min-instance": low != high
        and TrainingRole.PSERVER in spec.counts
        and f"an ElasticJob with parameter servers has no bounds ({low} to {high}); ScalePlans and edl scale "
        "change its workers",
        "passes": spec.all_passes > 1 and "the program says how many epochs it trains",
        "port": "the agent chooses the ports",
        "failurePercent": spec.failure_percent != 100
        and "an ElasticJob counts failures of each node: restartCount",
        "backoffLimit": spec.backoff_limit != 6
        and "an ElasticJob counts failures of each node: restartCount",
        "autoclean": spec.autoclean and "an ElasticJob has no such setting",
    }
    notes = [f"spec.{path}: {reason}" for path, reason in lost.items() if reason]
    text = "the program gets its data and its cluster from the agent, not from PADDLE_*"
    return [*notes, f"spec.replicaSpecs: {text}; see how-to/write-a-training-program"]
