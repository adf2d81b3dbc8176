"""Selectors, names and generated names as pure functions."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.apiserver.objects import metadata, selectors

LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y", "1"]))


def _holds(selector: str, labels: dict[str, str]) -> bool:
    return all(requirement(labels) for requirement in selectors.parse_label_selector(selector))


@given(LABELS, st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y"]))
def test_opposites(labels: dict[str, str], key: str, value: str) -> None:
    """For each label set, exactly one of a requirement and its negation matches."""
    for one, other in (
        (f"{key}={value}", f"{key}!={value}"),
        (f"{key} in ({value},1)", f"{key} notin ({value},1)"),
        (key, f"!{key}"),
    ):
        assert _holds(one, labels) is not _holds(other, labels)


def test_prefixed_keys() -> None:
    """Label keys may have a DNS prefix, and values may be empty."""
    assert _holds("example.com/role=,a", {"example.com/role": "", "a": "b"})


@pytest.mark.parametrize("selector", ["a b", "a in (", "a in ()x", "=", "a=b c", "a>x"])
def test_unparsable(selector: str) -> None:
    """A malformed selector is a BadRequest that quotes it."""
    with pytest.raises(ApiError, match="unable to parse"):
        selectors.parse_label_selector(selector)


@given(st.from_regex(r"\A[a-z]([a-z0-9-]{0,80})\Z"))
def test_generated_names_fit(base: str) -> None:
    """A name that is generated from a base of letters, digits and hyphens is a valid DNS label, however long
    the base is."""
    assert metadata.name_problem(metadata.generate_name(base), label=True) == ""


@pytest.mark.parametrize(
    ("raw", "problem"),
    [
        ({"name": 5}, "metadata.name: must be str"),
        ({"labels": {"a": 1}}, "metadata.labels.a: must be a string"),
        ({"finalizers": [1]}, "metadata.finalizers: must be strings"),
        ({"ownerReferences": ["x"]}, "metadata.ownerReferences: must be objects"),
        ([], "metadata: must be an object"),
    ],
)
def test_metadata_of_the_wrong_shape(raw: object, problem: str) -> None:
    """The error for metadata that can't be read names the field."""
    assert metadata.shape_problem(raw).startswith(problem)


def test_owner_references_are_checked() -> None:
    """An owner reference needs all of its four fields, and only one owner may be the controller."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": "u", "controller": True}
    broken = {"metadata": {"name": "a", "ownerReferences": [owner, {**owner, "uid": ""}]}}
    fields = [cause.field for cause in metadata.check_metadata(broken)]

    assert fields == ["metadata.ownerReferences[1].uid", "metadata.ownerReferences"]
