"""Keys of YAML maps are texts before a map is built, in every reader of the package."""

from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.local.apiserver import requests
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.pipelines.argo.lint.rules import manifests
from edl_workflows.pipelines.manifests import manifest
from edl_workflows.runtime.kube.yaml_keys import TextKeys

EQUAL_HASHES = [number * (2**61 - 1) for number in range(3)]
REFUSED = {
    "null": "null",
    "a list": "[a]",
    "a map": "{a: b}",
    "bytes": "!!binary YQ==",
    "a date": "!!timestamp 2026-01-01",
}


def _loaders(base: type[Any] = yaml.constructor.SafeConstructor) -> set[type[Any]]:
    derived = {loader for child in base.__subclasses__() for loader in {child, *_loaders(child)}}
    return {loader for loader in derived if loader.__module__.startswith("edl_workflows.")}


def test_all_readers_make_texts_of_keys() -> None:
    """Every loader of the package is one that makes texts of keys; so is one that a reader adds."""
    readers = _loaders() - {TextKeys}

    assert {loader.__module__ for loader in readers} >= {
        requests.__name__,
        manifest.__name__,
        manifests.__name__,
    }
    assert all(issubclass(loader, TextKeys) for loader in readers)


@pytest.mark.parametrize("loader", sorted(_loaders() - {TextKeys}, key=str))
@pytest.mark.parametrize("tag", ["!!map", "!!set"])
def test_a_map_is_never_built_of_numbers(loader: type[Any], tag: str) -> None:
    """Numbers with equal hashes, of which Python builds a map or a set in quadratic time, are texts in it."""
    built = yaml.load("\n".join([tag, *(f"? {number}" for number in EQUAL_HASHES)]), loader)

    assert set(built) == {str(number) for number in EQUAL_HASHES}


@pytest.mark.parametrize("key", REFUSED.values(), ids=REFUSED)
def test_a_key_that_is_no_text_is_refused(key: str) -> None:
    """A key that the API server can't read is an error of the text, with the line and the remedy."""
    text = f"a: b\nmap:\n  ? {key}\n  : c\n"
    with pytest.raises(InvalidError, match=r"job\.yaml: .*put it in quotes \(line 3\)"):
        manifest.parse_object(text, "job.yaml")
    with pytest.raises(ApiError, match="put it in quotes") as refused:
        requests.parse_body(text.encode(), "application/yaml")

    assert refused.value.code == 400


def test_numbers_and_booleans_are_keys() -> None:
    """Labels such as ``1`` and ``true`` need no quotes, as in kubectl."""
    text = "{1: a, 0.5: b, true: c, text: d}"

    expected = {"1": "a", "0.5": "b", "true": "c", "text": "d"}
    assert manifest.parse_object(text, "job.yaml") == expected
    assert requests.parse_body(text.encode(), "application/yaml") == expected


def test_a_value_that_stands_in_two_places_is_two_values() -> None:
    """A change of one part of a manifest does not change another that a YAML alias made equal."""
    read = manifest.parse_object("a: &a {b: c}\nd: *a\n", "job.yaml")
    read["a"]["b"] = "e"

    assert read["d"] == {"b": "c"}
