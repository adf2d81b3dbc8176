"""The one registry of kinds: a new kind is one folder and one name here."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.di_job.kind import DI_JOB
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOB
from edl_workflows.core.jobs.kind import Kind, Source
from edl_workflows.core.jobs.pytorch_job.kind import PYTORCH_JOB
from edl_workflows.core.jobs.scale_plan.kind import SCALE_PLAN
from edl_workflows.core.jobs.tf_job.kind import TF_JOB
from edl_workflows.core.jobs.training_job.kind import TRAINING_JOB


def _with_foreign_labels(*kinds: Kind) -> tuple[Kind, ...]:
    """The kinds, each with the labels by which jobs of the other kinds find their pods."""
    job_labels = {kind.labels[0] for kind in kinds}
    return tuple(replace(kind, foreign_labels=frozenset(job_labels - {kind.labels[0]})) for kind in kinds)


KINDS = _with_foreign_labels(ELASTIC_JOB, SCALE_PLAN, TF_JOB, PYTORCH_JOB, TRAINING_JOB, DI_JOB)


DEFAULT_KINDS = (ELASTIC_JOB.name, SCALE_PLAN.name)
"""The kinds of this package. The others have operators of their own, which a cluster may run already, so they
are served on request only."""
ALL_KINDS = "all"


def watched_sources(kinds: Iterable[Kind] = KINDS) -> tuple[Source, ...]:
    """Every resource type that a controller of these kinds watches, each once."""
    return tuple(dict.fromkeys(s for kind in kinds for s in (kind.source, *kind.observes)))


def used_sources(kinds: Collection[Kind] = KINDS) -> tuple[Source, ...]:
    """Every resource type that a controller of these kinds needs rights on."""
    return (*watched_sources(kinds), *(made for kind in kinds for made in kind.makes))


def choose_kinds(names: Collection[str]) -> tuple[Kind, ...]:
    """The named kinds, in the registry's order; `DEFAULT_KINDS` if no names are given, and all kinds for the
    name `ALL_KINDS`.

    Raises:
        InvalidError: this package has no such kind, or a kind is named without another kind that it needs.
    """
    if list(names) == [ALL_KINDS]:
        return KINDS
    named = {kind_of(name) for name in names or DEFAULT_KINDS}
    for kind in KINDS:
        for other in KINDS:
            if kind in named and other not in named and other.source in kind.observes:
                raise InvalidError(
                    f"kinds {', '.join(names)}: {kind.name} works with {other.name} only: name both"
                )
    return tuple(kind for kind in KINDS if kind in named)


def kind_of(name: str) -> Kind:
    """The `Kind` of a ``kind``.

    Raises:
        InvalidError: this package has no such kind.
    """
    for kind in KINDS:
        if kind.name == name:
            return kind
    raise InvalidError(f"{name!r} is no kind of this package; known are {', '.join(k.name for k in KINDS)}")
