"""The one registry of kinds: a new kind is one folder and one row here."""

from edl_workflows.exceptions import InvalidError
from edl_workflows.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.jobs.kind import Kind, Source
from edl_workflows.jobs.scale_plan.kind import SCALE_PLAN
from edl_workflows.jobs.tf_job.kind import TF_JOB

KINDS: tuple[Kind, ...] = (ELASTIC_JOB, SCALE_PLAN, TF_JOB)


def sources() -> tuple[Source, ...]:
    """Every resource type that a controller watches, each once."""
    return tuple(dict.fromkeys(s for kind in KINDS for s in (kind.source, *kind.observes)))


def touched() -> tuple[Source, ...]:
    """Every resource type that a controller needs rights on."""
    return (*sources(), *(made for kind in KINDS for made in kind.makes))


def kind_of(name: str) -> Kind:
    """The row of a ``kind``.

    Raises:
        InvalidError: this package has no such kind.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise InvalidError(f"{name!r} is no kind of this package; known are {', '.join(k.name for k in KINDS)}")
