"""Which jobs an autoscaler may change, and how far: by the bounds in the job's spec and by an annotation.
Pure.

The annotation ``elastic.iml.github.io/autoscale`` is ``"false"`` (leave the job as it is), ``"true"``, or
bounds such as ``"2-8"`` within those of the spec. Without the annotation, a job is scaled only if its spec
names two different bounds (Paddle EDL: trainers with ``min-instance`` below ``max-instance``). An
ElasticJob's spec names no bounds; its `optimizeMode` decides who reads the annotation: the cluster's
autoscaler, or the job's own master (`edl_workflows.core.jobs.elastic_job.scaling`). A stage that asks for a
number of replicas writes ``"false"``, so that this number stays until autoscaling is switched on again.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from edl_workflows.core.exceptions import ManifestError, Problem
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.objects import Resource

ANNOTATION = f"{names.GROUP}/autoscale"
ON = "true"
OFF = "false"

_PATH = f"metadata.annotations.{ANNOTATION}"
_BOUNDS = re.compile(r"(\d{1,5})-(\d{1,5})")


@dataclass(frozen=True)
class ElasticRole:
    """The role of a job that an autoscaler may resize.

    Attributes:
        role: the role's name.
        minimum, maximum: how many replicas the spec allows.
        replicas: how many the job wants now.
        requests: what one replica's pod requests, in base units (cores, bytes, devices).
        placement: of the pods' spec: ``nodeSelector``, ``affinity`` and ``tolerations``.
        bounded: whether the spec itself names bounds; otherwise the annotation must.
    """

    role: str
    minimum: int
    maximum: int
    replicas: int
    requests: Mapping[str, float]
    placement: Mapping[str, Any]
    bounded: bool


def permitted_bounds(job: Resource, elastic: ElasticRole) -> ElasticRole | None:
    """The role with its bounds narrowed by the job's annotation; None if the job must not be resized.

    Raises:
        ManifestError: the annotation can't be read, or leaves no number that the spec allows.
    """
    annotation = read_annotation(job)
    if annotation is False or (annotation is None and not elastic.bounded):
        return None
    if annotation is None or annotation is True:
        if not elastic.bounded:
            raise _problem(job, f'the spec names no bounds: say some, such as "2-8", instead of "{ON}"')
        return elastic if elastic.minimum < elastic.maximum else None
    low, high = annotation
    low, high = max(low, elastic.minimum), min(high, elastic.maximum)
    if low > high:
        allowed = f"{elastic.minimum} to {elastic.maximum}"
        message = f"'{annotation[0]}-{annotation[1]}' leaves no number that the spec allows ({allowed})"
        raise _problem(job, message)
    return replace(elastic, minimum=low, maximum=high)


def read_annotation(job: Resource) -> tuple[int, int] | bool | None:
    """The value of the job's autoscaling annotation: bounds, or whether to scale the job at all; None without
    the annotation.

    Raises:
        ManifestError: it can't be read.
    """
    text = job.metadata.annotations.get(ANNOTATION, "")
    if text in ("", ON, OFF):
        return None if not text else text == ON
    match = _BOUNDS.fullmatch(text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise _problem(job, f'{text!r} must be "true", "false" or bounds such as "2-8"')
    return int(match[1]), int(match[2])


def _problem(job: Resource, message: str) -> ManifestError:
    return ManifestError(f"autoscaling of {job.kind} {job.key}", [Problem(_PATH, message)])
