"""What is wrong with an ElasticJob beyond its single fields. Each rule has its twin in the CRD (CEL) where CEL can say it.

Paths are relative to the checked value. Pure functions that return problems; the models raise them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from edl_workflows.exceptions import Problem
from edl_workflows.jobs import names
from edl_workflows.jobs.objects import DNS_LABEL, Metadata, parse_quantity

if TYPE_CHECKING:
    from edl_workflows.jobs.elastic_job.model import ElasticJobSpec, EnvVar

_ENV_NAME = re.compile(r"^[-._a-zA-Z][-._a-zA-Z0-9]*\Z")
_GENERATED_SUFFIX = 5  # characters that the API server appends to generateName

MAX_LEVELS = 64
"""Of maps and lists in a pod template."""
RESERVED_ENVS = frozenset(
    {
        names.ENV_MASTER_ADDR, names.ENV_JOB_NAME, names.ENV_JOB_UID, names.ENV_NAMESPACE, names.ENV_POD_NAME,
        names.ENV_NODE_TYPE, names.ENV_NODE_ID, names.ENV_NODE_RANK, names.ENV_JOB_TOKEN,
    }
)  # fmt: skip
"""Variables that tell a node who it is. A template's own are replaced; in ``envs`` they are an error."""


def name(metadata: Metadata) -> list[Problem]:
    """The job's name becomes part of its services' names and a label's value."""
    if metadata.name:
        return _name_fits("metadata.name", metadata.name, names.MAX_JOB_NAME)
    if metadata.generate_name:
        limit = names.MAX_JOB_NAME - _GENERATED_SUFFIX
        return _name_fits("metadata.generateName", metadata.generate_name, limit, whole=False)
    return [Problem("metadata.name", "required field is missing (or metadata.generateName)")]


def _name_fits(path: str, value: str, limit: int, *, whole: bool = True) -> list[Problem]:
    problems = []
    if len(value) > limit:
        reason = "the names of the job's services add to it, and hold 63"
        problems.append(Problem(path, f"has {len(value)} characters, at most {limit} are possible: {reason}"))
    if not DNS_LABEL.match(value if whole else value + "x"):
        problems.append(
            Problem(path, f"{value!r} must be lower-case letters, digits and '-', beginning with a letter")
        )
    return problems


def roles(spec: "ElasticJobSpec") -> list[Problem]:
    """Which roles go together."""
    problems = []
    if not ({names.WORKER_TYPE, names.CHIEF_TYPE} & set(spec.replica_specs)):
        problems.append(Problem("replicaSpecs", "a job needs a 'worker' or a 'chief'"))
    if spec.distribution_strategy in ("AllreduceStrategy", "Local") and names.PS_TYPE in spec.replica_specs:
        message = f"{spec.distribution_strategy} has no parameter servers; remove the role or the strategy"
        problems.append(Problem("replicaSpecs.ps", message))
    for role in (names.CHIEF_TYPE, names.MASTER_TYPE):
        replicas = spec.replica_specs[role].replicas if role in spec.replica_specs else 0
        if replicas > 1:
            message = f"a job has one {role} (got {replicas})"
            problems.append(Problem(f"replicaSpecs.{role}.replicas", message))
    return problems


def templates(spec: "ElasticJobSpec") -> list[Problem]:
    """The parts of the pod templates that the pods are built on."""
    return [
        Problem(f"replicaSpecs.{role}.template.{problem.path}", problem.message)
        for role, replica_spec in spec.replica_specs.items()
        for problem in template(role, replica_spec.template)
    ]


def _nested_too_deep(value: object) -> bool:
    """Whether a value has more levels than whoever copies or writes it can follow. No pod has a third of them."""
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [
            below
            for one in level
            for below in (one.values() if isinstance(one, Mapping) else one if isinstance(one, list) else ())
        ]
        if not level:
            return False
    return True


def template(role: str, template: Mapping[str, Any]) -> Iterator[Problem]:
    """The problems of one role's pod template, by their paths in it."""
    if _nested_too_deep(template):
        yield Problem("spec", f"is nested deeper than {MAX_LEVELS} levels")
        return
    for part in ("metadata", "spec"):
        if not isinstance(template.get(part) or {}, Mapping):
            yield Problem(part, "must be a map")
            return
    for part in ("labels", "annotations"):
        values = (template.get("metadata") or {}).get(part) or {}
        if not isinstance(values, Mapping) or not all(isinstance(value, str) for value in values.values()):
            yield Problem(
                f"metadata.{part}", "must be a map of strings; write numbers and booleans in quotes"
            )
    containers = (template.get("spec") or {}).get("containers")
    if not containers and role == names.MASTER_TYPE:
        return  # the controller brings a container of its own
    if not isinstance(containers, list) or not containers:
        yield Problem("spec.containers", "at least one container is needed")
        return
    for index, container in enumerate(containers):
        path = f"spec.containers.{index}"
        if not isinstance(container, Mapping):
            yield Problem(path, "must be a map")
            continue
        yield from (Problem(f"{path}.{p.path}", p.message) for p in _container(role, container))


def _container(role: str, container: Mapping[str, Any]) -> Iterator[Problem]:
    required = ("name",) if role == names.MASTER_TYPE else ("name", "image")
    for field in required:
        if not isinstance(container.get(field), str) or not container[field]:
            yield Problem(field, "required field is missing")
    variables = container.get("env") or []
    if not isinstance(variables, list) or not all(
        isinstance(v, Mapping) and v.get("name") for v in variables
    ):
        yield Problem("env", "must be a list of variables, each with a name")
    yield from _resources(container)


def _resources(container: Mapping[str, Any]) -> Iterator[Problem]:
    resources = container.get("resources") or {}
    for part in ("requests", "limits"):
        amounts = resources.get(part) or {} if isinstance(resources, Mapping) else None
        if not isinstance(amounts, Mapping):
            yield Problem(f"resources.{part}", "must be a map of quantities")
            continue
        for resource, amount in amounts.items():
            try:
                parse_quantity(str(amount))
            except ValueError as error:
                yield Problem(f"resources.{part}.{resource}", str(error))


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
