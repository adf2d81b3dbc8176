"""What is wrong with a TFJob beyond its single fields. Pure functions that return problems; the models raise
them.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from edl_workflows.exceptions import Problem
from edl_workflows.jobs import names, validation
from edl_workflows.jobs.objects import Metadata
from edl_workflows.jobs.tf_job.types import ReplicaType, replica_type

if TYPE_CHECKING:
    from edl_workflows.jobs.tf_job.model import TFJobSpec

MAX_NAME = 63 - len("-evaluator-9999")
"""A replica's service is named after the job, its type and its index, and holds 63 characters."""

COMPAT_ANNOTATION = f"{names.GROUP}/tfjob-compat"
"""Names of `COMPAT`, between commas."""
COMPAT: Mapping[str, str] = {
    "exit-codes-2021": "of exit codes above 127 only 130, 137, 138 and 143 restart a replica (tf-operator up to 2021)",
    "keep-pods": "without a cleanPodPolicy the pods of a finished job stay (training-operator from 1.6 on)",
    "sparse-cluster-key": "TF_CONFIG of a dynamic worker has sparseCluster for cluster (tf-operator 2021)",
    "static-cluster": "a change of replicas restarts nobody; pods keep the TF_CONFIG they began with (all upstream)",
}
"""Behaviours of upstream that users may depend on; the default is what upstream's documentation promises."""


def name(metadata: Metadata) -> list[Problem]:
    """The job's name becomes part of its services' names and a label's value."""
    return validation.job_name(metadata, MAX_NAME)


def compat(given: Mapping[str, str]) -> frozenset[str]:
    """The compat behaviours that annotations ask for."""
    return frozenset(part.strip() for part in given.get(COMPAT_ANNOTATION, "").split(",") if part.strip())


def annotations(given: Mapping[str, str]) -> list[Problem]:
    """Compat behaviours must be known ones."""
    unknown = sorted(compat(given) - set(COMPAT))
    path = f"metadata.annotations.{COMPAT_ANNOTATION}"
    return [Problem(path, f"{one!r} is unknown; known are {', '.join(sorted(COMPAT))}") for one in unknown]


def replicas(spec: "TFJobSpec") -> list[Problem]:
    """Which types go together, and the parts of the templates that the pods are built on."""
    if not spec.tf_replica_specs:
        return [Problem("tfReplicaSpecs", "at least one type of replicas is needed, such as Worker")]
    problems = []
    seen: dict[str, str] = {}
    for key, replica in spec.tf_replica_specs.items():
        kind = replica_type(key)
        same = "Chief" if kind.decides else kind.value
        if same in seen:
            problems.append(
                Problem(f"tfReplicaSpecs.{key}", f"is {seen[same]} once more; keep one of the two")
            )
        seen[same] = key
        if (kind.decides or kind is ReplicaType.EVALUATOR) and replica.replicas > 1:
            message = f"a job has one {kind.value} (got {replica.replicas})"
            problems.append(Problem(f"tfReplicaSpecs.{key}.replicas", message))
        problems += [
            Problem(f"tfReplicaSpecs.{key}.template.{problem.path}", problem.message)
            for problem in validation.template(replica.template)
        ]
        problems += _restart_policy(key, replica.template)
    return problems


def _restart_policy(key: str, template: Mapping[str, object]) -> list[Problem]:
    spec = template.get("spec")
    policy = spec.get("restartPolicy", "Never") if isinstance(spec, Mapping) else "Never"
    if policy in ("Always", "OnFailure", "Never"):
        return []
    path = f"tfReplicaSpecs.{key}.template.spec.restartPolicy"
    return [
        Problem(
            path, f"must be Always, OnFailure or Never (got {policy!r}); ExitCode stands beside the template"
        )
    ]


def gang(spec: "TFJobSpec") -> list[Problem]:
    """A gang is not larger than the job."""
    policy = spec.policies.scheduling_policy
    total = sum(replica.replicas for replica in spec.tf_replica_specs.values())
    if policy is None or (policy.min_available or 0) <= total:
        return []
    message = f"is {policy.min_available}, but the job has only {total} replicas"
    return [Problem("runPolicy.schedulingPolicy.minAvailable", message)]
