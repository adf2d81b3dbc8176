"""What is wrong with an ElasticJob beyond its single fields. Each rule has its twin in the CRD (CEL) where
CEL can say it.

Paths are relative to the checked value. Pure functions that return problems; the models raise them.
"""

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from edl_workflows.exceptions import Problem
from edl_workflows.jobs import names, validation
from edl_workflows.jobs.objects import Metadata

if TYPE_CHECKING:
    from edl_workflows.jobs.elastic_job.model import ElasticJobSpec, EnvVar

_ENV_NAME = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
RESERVED_ENVS = frozenset(
    {
        names.ENV_MASTER_ADDR, names.ENV_JOB_NAME, names.ENV_JOB_UID, names.ENV_NAMESPACE, names.ENV_POD_NAME,
        names.ENV_NODE_TYPE, names.ENV_NODE_ID, names.ENV_NODE_RANK, names.ENV_JOB_TOKEN,
    }
)  # fmt: skip
"""Variables that tell a node who it is. A template's own are replaced; in ``envs`` they are an error."""


def name(metadata: Metadata) -> list[Problem]:
    """The job's name becomes part of its services' names and a label's value."""
    return validation.job_name(metadata, names.MAX_JOB_NAME)


def roles(spec: "ElasticJobSpec") -> list[Problem]:
    """Which roles go together."""
    problems = []
    if not ({names.WORKER_TYPE, names.CHIEF_TYPE} & set(spec.replica_specs)):
        problems.append(Problem("replicaSpecs", "a job needs a 'worker' or a 'chief'"))
    if spec.distribution_strategy in ("AllreduceStrategy", "Local") and names.PS_TYPE in spec.replica_specs:
        message = f"{spec.distribution_strategy} has no parameter servers; remove the role or the strategy"
        problems.append(Problem("replicaSpecs.ps", message))
    if spec.distribution_strategy == "AllreduceStrategy" and names.CHIEF_TYPE in spec.replica_specs:
        message = "AllreduceStrategy has no chief: the oldest worker is it; make it one more worker"
        problems.append(Problem("replicaSpecs.chief", message))
    for role in (names.CHIEF_TYPE, names.MASTER_TYPE):
        replicas = spec.replica_specs[role].replicas if role in spec.replica_specs else 0
        if replicas > 1:
            message = f"a job has one {role} (got {replicas})"
            problems.append(Problem(f"replicaSpecs.{role}.replicas", message))
    return problems


def rendezvous(spec: "ElasticJobSpec") -> list[Problem]:
    """How many workers of a collective job train together. Whether so many are asked for is its master's
    matter: replicas may be edited."""
    said = spec.rendezvous
    if spec.distribution_strategy != "AllreduceStrategy" or not 0 < said.max_nodes < said.min_nodes:
        return []
    message = f"minNodes ({said.min_nodes}) can't be above maxNodes ({said.max_nodes})"
    return [Problem("rendezvous.minNodes", message)]


def templates(spec: "ElasticJobSpec") -> list[Problem]:
    """The parts of the pod templates that the pods are built on."""
    return [
        Problem(f"replicaSpecs.{role}.template.{problem.path}", problem.message)
        for role, replica_spec in spec.replica_specs.items()
        for problem in validation.template(replica_spec.template, partial=role == names.MASTER_TYPE)
    ]


def envs(variables: Mapping[str, "EnvVar"]) -> list[Problem]:
    """``envs`` maps a variable's name to a core/v1 EnvVar."""
    problems = []
    for key, variable in variables.items():
        path = f"envs.{key}"
        if not _ENV_NAME.match(key):
            problems.append(Problem(path, f"{key!r} is no name of an environment variable"))
        if key in RESERVED_ENVS:
            problems.append(Problem(path, "is set by the controller; choose another name"))
        if variable.name not in (None, key):
            problems.append(Problem(f"{path}.name", f"{variable.name!r} differs from the key {key!r}"))
        if variable.value is not None and variable.value_from is not None:
            problems.append(Problem(path, "has both value and valueFrom; keep one"))
    return problems
