"""Checks for jobs of every kind: of the job's name, and of the parts of its pod templates that the pods are
built from.

Paths are relative to the checked value. Pure functions that return problems; the models raise them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from edl_workflows.core.exceptions import Problem
from edl_workflows.core.kubernetes.objects import DNS_LABEL, Metadata, parse_quantity
from edl_workflows.core.kubernetes.pod_types import find_type_problems

GENERATED_SUFFIX = 5
"""Characters that the API server appends to generateName."""

MAX_LEVELS = 64
"""How deeply maps and lists may be nested in a pod template."""

MAX_PORT = 65_535


def job_name(metadata: Metadata, limit: int, prefix: str = "") -> list[Problem]:
    """Problems of a job's name, which becomes part of its services' names and of label values.

    Args:
        metadata: the job's.
        limit: the most characters of the name, so that the services' names are not too long.
        prefix: what precedes the job's name in those names. With a prefix, the job's name may begin with a
            digit.
    """
    if metadata.name:
        return _name_fits("metadata.name", metadata.name, limit, prefix)
    if metadata.generate_name:
        shorter = limit - GENERATED_SUFFIX
        return _name_fits("metadata.generateName", metadata.generate_name, shorter, prefix, whole=False)
    return [Problem("metadata.name", "required field is missing (or metadata.generateName)")]


def _name_fits(path: str, value: str, limit: int, prefix: str, *, whole: bool = True) -> list[Problem]:
    problems = []
    if len(value) > limit:
        reason = "the names of the job's services add to it, and hold 63"
        problems.append(Problem(path, f"has {len(value)} characters, at most {limit} are possible: {reason}"))
    if not DNS_LABEL.match(prefix + (value if whole else value + "x")) or value.startswith("-"):
        first = "a letter or digit" if prefix else "a letter"
        message = f"{value!r} must be lower-case letters, digits and '-', beginning with {first}"
        problems.append(Problem(path, message))
    return problems


def _nested_too_deep(value: object) -> bool:
    """Whether a value is nested too deeply for code that copies or writes it recursively. Real pods have less
    than a third of `MAX_LEVELS`.
    """
    level = [value]
    for _ in range(MAX_LEVELS):
        level = [
            below
            for parent in level
            for below in (
                parent.values() if isinstance(parent, Mapping) else parent if isinstance(parent, list) else ()
            )
        ]
        if not level:
            return False
    return True


def template_problems(template: Mapping[str, Any], *, partial: bool = False) -> Iterator[Problem]:
    """The problems of a role's pod template, with paths relative to the template.

    Args:
        template: a PodTemplateSpec.
        partial: whether containers and images may be left out, because the controller has its own for the
            role.
    """
    if _nested_too_deep(template):
        yield Problem("spec", f"is nested deeper than {MAX_LEVELS} levels")
        return
    problems = list(_structure_problems(template, partial=partial))
    yield from problems
    reported = [problem.path for problem in problems]
    for problem in find_type_problems(template):
        if not any(_same_place(problem.path, path) for path in reported):
            yield problem


def part_problems(path: str, value: Any, kind: str) -> list[Problem]:
    """The problems of the types in a part of a pod that a job has outside of its templates.

    Args:
        path: of the part.
        value: what stands there.
        kind: see `find_type_problems`.
    """
    return [Problem(f"{path}.{problem.path}", problem.message) for problem in find_type_problems(value, kind)]


def _same_place(path: str, other: str) -> bool:
    """Whether one path is the other or leads to it."""
    return f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}.")


def _structure_problems(template: Mapping[str, Any], *, partial: bool) -> Iterator[Problem]:
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
    spec = template.get("spec") or {}
    if not _are_named(spec.get("volumes") or []):
        yield Problem("spec.volumes", "must be a list of volumes, each with a name")
    if isinstance(spec.get("initContainers") or [], list):
        yield from _containers(spec, "initContainers", ("name",))
    else:
        yield Problem("spec.initContainers", "must be a list of containers")
    containers = spec.get("containers")
    if not containers and partial:
        return
    if not isinstance(containers, list) or not containers:
        yield Problem("spec.containers", "at least one container is needed")
        return
    yield from _containers(spec, "containers", ("name",) if partial else ("name", "image"))


def _containers(spec: Mapping[str, Any], field: str, required: Sequence[str]) -> Iterator[Problem]:
    for index, container in enumerate(spec.get(field) or ()):
        path = f"spec.{field}.{index}"
        if not isinstance(container, Mapping):
            yield Problem(path, "must be a map")
            continue
        yield from (Problem(f"{path}.{p.path}", p.message) for p in _container(container, required))


def _are_named(values: Any) -> bool:
    """Whether these are a list of maps, each with a name."""
    return isinstance(values, list) and all(
        isinstance(element, Mapping) and isinstance(element.get("name"), str) and element["name"]
        for element in values
    )


def _container(container: Mapping[str, Any], required: Sequence[str]) -> Iterator[Problem]:
    for field in required:
        if not isinstance(container.get(field), str) or not container[field]:
            yield Problem(field, "required field is missing")
    if not _are_named(container.get("env") or []):
        yield Problem("env", "must be a list of variables, each with a name")
    if not _are_named(container.get("volumeMounts") or []):
        yield Problem("volumeMounts", "must be a list of mounts, each with the name of a volume")
    if not _are_ports(container.get("ports") or []):
        yield Problem("ports", f"must be a list of ports, each with a containerPort from 1 to {MAX_PORT}")
    yield from _resources(container)


def _are_ports(values: Any) -> bool:
    return isinstance(values, list) and all(
        isinstance(element, Mapping)
        and isinstance(port := element.get("containerPort"), int)
        and 1 <= port <= MAX_PORT
        for element in values
    )


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
