"""Manifests with one mistake, for every kind: the model, the API server and the controller refuse them."""

import copy

import pytest

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.core.jobs.kinds import kind_of
from tests.cases.kind import KindCases, Manifest, Mistake
from tests.cases.kinds import KIND_CASES
from tests.cases.kubeflow import KUBEFLOW_KINDS, spec_of
from tests.jobs_namespace import JobsNamespace
from tests.unit.core.jobs.admission import refused_by_server

MISTAKES = [(cases, mistake) for cases in KIND_CASES.values() for mistake in cases.mistakes]


def each(mistakes: list[tuple[KindCases, Mistake]]) -> pytest.MarkDecorator:
    """Run a test for each of these mistakes."""
    ids = [f"{cases.kind}-{mistake.name}" for cases, mistake in mistakes]
    return pytest.mark.parametrize(("cases", "mistake"), mistakes, ids=ids)


def make_wrong(cases: KindCases, mistake: Mistake) -> Manifest:
    """The kind's example with this mistake."""
    manifest = copy.deepcopy(cases.example)
    mistake.change(manifest)
    return manifest


@pytest.mark.parametrize("kind", KIND_CASES)
def test_jobs_without_a_mistake_are_accepted(kind: str) -> None:
    """The model and the API server accept both jobs of a kind's cases."""
    for manifest in (KIND_CASES[kind].example, KIND_CASES[kind].detailed):
        kind_of(kind).model.parse(manifest)
        assert refused_by_server(manifest) == ""


@each(MISTAKES)
def test_a_wrong_manifest_is_refused_by_its_field(cases: KindCases, mistake: Mistake) -> None:
    """Each mistake gives an error that names the field, from the model and, where a schema can express it,
    from the API server."""
    manifest = make_wrong(cases, mistake)
    with pytest.raises(ManifestError, match=mistake.message):
        kind_of(cases.kind).model.parse(manifest)

    refusal = refused_by_server(manifest)
    assert bool(refusal) is (mistake.server is not None), refusal
    assert (mistake.server or "") in refusal


@each([(cases, mistake) for cases, mistake in MISTAKES if mistake.server is None])
def test_what_only_the_model_sees_fails_the_job_with_the_field(cases: KindCases, mistake: Mistake) -> None:
    """A mistake that the API server accepts fails the job at once, with a reason that names the field."""
    manifest = make_wrong(cases, mistake)
    with pytest.raises(ManifestError) as error:
        kind_of(cases.kind).model.parse(manifest)
    namespace = JobsNamespace()
    namespace.add(manifest)
    namespace.settle()
    status = namespace.objects[cases.kind, manifest["metadata"]["name"]]["status"]

    assert (status["phase"], status["reason"]) == (cases.ends[1], "InvalidSpec")
    assert error.value.problems[0].path in status["message"]


@pytest.mark.parametrize("kind", KUBEFLOW_KINDS)
def test_an_unknown_type_beside_all_others_is_refused_by_its_name(kind: str) -> None:
    """An API server says which types of replicas there are to a job that has all of them and one more."""
    spec = spec_of(kind)
    manifest = copy.deepcopy(KIND_CASES[kind].example)
    replicas = next(iter(manifest["spec"][spec.specs_key()].values())) | {"replicas": 1}
    manifest["spec"] = {spec.specs_key(): dict.fromkeys((*spec.replica_types, "Wrker"), replicas)}

    refusal = refused_by_server(manifest)
    assert f"types are {', '.join(spec.replica_types)}" in refusal, "its max_length is `max_types`"
