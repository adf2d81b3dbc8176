"""A manifest's text means here what it means to kubectl."""

import tracemalloc

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.manifests import manifest


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("2026-01-01", "2026-01-01"),
        ("12:30", "12:30"),
        ("1e3", 1000.0),
        ("0o17", 15),
        ("0x10", 16),
        ("y", True),
        ("'y'", "y"),
        ("2", 2),
        ("500m", "500m"),
        ("null", None),
    ],
)
def test_scalars_are_read_as_kubectl_reads_them(text: str, value: object) -> None:
    """Dates and times of day are texts, and numbers in Kubernetes' notations are numbers."""
    assert manifest.parse_object(f"a: {text}\n", "job.yaml") == {"a": value}


def test_a_text_nested_without_end_is_refused() -> None:
    """A deeply nested text is rejected before a parser overflows its stack."""
    with pytest.raises(InvalidError, match=r"job\.yaml: line 1 is nested deeper than 100 levels"):
        manifest.parse_object("[" * 200_000, "job.yaml")


LONG = "x" * 2**20
EXPANDED = {
    "a string": f"a: &a {LONG[:20_000]}\nb: [{', '.join(['*a'] * 1000)}]\n",
    "a key": f"a: &a\n  ? {LONG[:20_000]}\n  : 1\nb: [{', '.join(['*a'] * 1000)}]\n",
    "an integer": f"a: &a {'9' * 900}\nb: [{', '.join(['*a'] * 10_000)}]\n",
}


@pytest.mark.parametrize("row", EXPANDED)
def test_text_that_aliases_make_long_is_refused(row: str) -> None:
    """A few KiB whose aliases stand for much more than a request may hold are rejected before they are
    written out: Argo's agent serves the workflows of others."""
    with pytest.raises(InvalidError, match=r"job\.yaml: the strings of the manifest are larger than 3 MiB"):
        manifest.parse_object(EXPANDED[row], "job.yaml")


def _merged(levels: int) -> str:
    """A map that merges ten times a map that merges ten times a map, and so on."""
    if not levels:
        return "&a0 {k: v}"
    again = f", *a{levels - 1}" * 9
    return f"&a{levels} {{<<: [{_merged(levels - 1)}{again}]}}"


def test_merge_keys_that_copy_without_end_are_refused() -> None:
    """A few hundred characters of nested merge keys stand for billions of entries, of which the built map has
    one: they are rejected before they are copied."""
    assert manifest.parse_object(f"a: {_merged(4)}\n", "job.yaml") == {"a": {"k": "v"}}
    tracemalloc.start()
    try:
        with pytest.raises(InvalidError, match=r"job\.yaml: .*merge keys \(<<\) copy more than 200000"):
            manifest.parse_object(f"a: {_merged(7)}\n", "job.yaml")
        assert tracemalloc.get_traced_memory()[1] < 2**26
    finally:
        tracemalloc.stop()


_NESTED = (f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12))
NESTED = "a0: &a0 [x]\n" + "".join(_NESTED)
"""Lists of aliases that stand for 9¹¹ values."""


@pytest.mark.parametrize("tag", ["int", "float", "bool", "timestamp", "binary", "str"])
def test_a_tag_expands_no_aliases(tag: str) -> None:
    """A scalar's tag on a list of nested aliases is refused, and the list is not written out: not even in the
    message."""
    with pytest.raises(InvalidError, match=r"job\.yaml: not valid YAML") as raised:
        manifest.parse_object(f"{NESTED}z: !!{tag} [*a11]\n", "job.yaml")
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("value", ["!!pairs [a: *a11]", "!!omap [a: *a11]", "!!set {a, b}"])
def test_a_type_that_json_lacks_is_not_written_out(value: str) -> None:
    """A value of such a type is refused with its type and path; what its aliases stand for is not in the
    message."""
    with pytest.raises(InvalidError, match=r"z\S*: this is read as a (tuple|set), which JSON") as raised:
        manifest.parse_object(f"z: {value}\n" if "set" in value else f"{NESTED}z: {value}\n", "job.yaml")
    assert len(str(raised.value)) < 2000


@pytest.mark.parametrize("text", ["!!bool foo", "!!timestamp foo", "!!float foo", "!!binary ä"])
def test_a_tag_that_does_not_fit_its_value_is_refused(text: str) -> None:
    """It is invalid YAML, whatever PyYAML raises for it."""
    with pytest.raises(InvalidError, match=r"job\.yaml: not valid YAML"):
        manifest.parse_object(f"a: {text}\n", "job.yaml")


@pytest.mark.parametrize("text", ["a: {<<: 1}", "a: {<<: [1]}", "a: &a {<<: *a}"])
def test_wrong_merge_keys_are_refused(text: str) -> None:
    """A merge key whose value is no map, or the map itself, is invalid YAML."""
    with pytest.raises(InvalidError, match=r"job\.yaml: not valid YAML"):
        manifest.parse_object(text, "job.yaml")


def test_merge_keys_merge() -> None:
    """A map's own entry wins over a merged one, and an earlier merged map over a later one, as in kubectl."""
    text = "x: &x {a: 1, b: 2, c: 3}\ny: &y {b: 4, d: 5}\nz: {<<: [*y, *x], c: 6}\n"
    assert manifest.parse_object(text, "job.yaml")["z"] == {"a": 1, "b": 4, "c": 6, "d": 5}


def test_a_long_key_above_many_values_takes_no_memory() -> None:
    """The path of each value is made for messages only: a key of 1 MiB above 10,000 values would take 10
    GiB."""
    text = f"? {LONG}\n: {[0] * 10_000}\n"
    tracemalloc.start()
    try:
        manifest.parse_object(text, "job.yaml")
        assert tracemalloc.get_traced_memory()[1] < 2**28
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("text", ["9" * 5000, f"0x{'f' * 5000}", f"0{'7' * 5000}"])
def test_an_integer_without_end_is_a_string(text: str) -> None:
    """Python does not write such an integer, so the request would fail with its error."""
    assert manifest.parse_object(f"a: {text}\n", "job.yaml") == {"a": text}
