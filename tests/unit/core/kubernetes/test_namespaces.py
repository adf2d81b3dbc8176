"""Which namespaces an installation serves."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes.label_selector import parse_selector
from edl_workflows.core.kubernetes.namespaces import MAX_NAMES, NamespaceSelection, check_labels

LABELS = st.dictionaries(st.sampled_from(["app", "tier"]), st.sampled_from(["x", "y", ""]))


@pytest.mark.parametrize(
    ("wrong", "complaint"),
    [
        ({"names": ("a.b",)}, "jobs namespace 'a.b' is not a valid namespace"),
        ({"names": ("A",)}, "jobs namespace 'A'"),
        ({"names": ("",)}, "jobs namespace ''"),
        ({"names": ("a,b",)}, "jobs namespace 'a,b'"),
        ({"names": ("a\n",)}, "is not a valid namespace"),
        ({"names": ("a" * 64,)}, "is not a valid namespace"),
        ({"names": ("a", "b", "a")}, "jobs namespace 'a' is given twice"),
        ({"names": tuple(f"n{index}" for index in range(MAX_NAMES + 1))}, "at most 16 can be served by name"),
        ({"names": ("a",), "selector": "b"}, "by name .a. and by labels .b.: choose one"),
        ({"selector": "a b"}, "selector 'a b': unable to parse requirement: 'a b'"),
        ({"selector": ","}, "it selects every namespace"),
        ({"selector": "a>1"}, "can't be selected by a comparison"),
        ({"selector": f"a={'x' * 64}"}, "can't be the value of a label"),
        ({"selector": "team in (a$b)"}, "'a[$]b' can't be the value of a label"),
        ({"selector": "a notin (x y)"}, "'x y' can't be the value of a label"),
        ({"selector": f"{'x' * 64}=a"}, "is not a label"),
    ],
)
def test_wrong_selections_are_refused(wrong: dict[str, Any], complaint: str) -> None:
    """The error names the value, and what is wrong with it."""
    with pytest.raises(InvalidError, match=complaint):
        NamespaceSelection(**wrong)


@pytest.mark.parametrize(
    ("selection", "scopes", "text"),
    [
        (NamespaceSelection(), ("",), "(all)"),
        (NamespaceSelection.of(""), ("",), "(all)"),
        (NamespaceSelection.of("a"), ("a",), "a"),
        (NamespaceSelection(("b", "a")), ("b", "a"), "b, a"),
        (NamespaceSelection(selector="team in (a,b)"), ("",), "team in (a,b)"),
    ],
)
def test_what_is_watched(selection: NamespaceSelection, scopes: tuple[str, ...], text: str) -> None:
    """Named namespaces are watched one by one. Only all namespaces can be watched together."""
    assert (selection.scopes, str(selection)) == (scopes, text)
    assert selection.is_everything is (text == "(all)")


@pytest.mark.parametrize("key", ["app", "a", "App_1.x-y", "app.kubernetes.io/name", "x" * 63])
def test_labels(key: str) -> None:
    """These keys are those of labels."""
    check_labels("labels", {key: "prometheus"})


@pytest.mark.parametrize(
    "key", ["app ", "a b", "", "-app", "app.", "ä", "a/b/c", "A/b", "a/", "app\n", "x" * 64]
)
def test_wrong_labels_are_refused(key: str) -> None:
    """The API server would refuse what has such a label."""
    with pytest.raises(InvalidError, match=r"labels: .* is not a label"):
        check_labels("labels", {key: "prometheus"})


def _holds(requirement: dict[str, Any], labels: dict[str, str]) -> bool:
    """A requirement of a manifest, as Kubernetes reads it."""
    value, values = labels.get(requirement["key"]), requirement.get("values", [])
    match requirement["operator"]:
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
    return value is None


@given(LABELS, st.sampled_from(["x", "y"]))
def test_a_manifest_selects_the_same(labels: dict[str, str], value: str) -> None:
    """The expressions for a manifest hold for the same labels as the text."""
    for text, expected in (
        (f"app={value}", labels.get("app") == value),
        (f"app == {value} , tier", labels.get("app") == value and "tier" in labels),
        (f"app!={value}", labels.get("app") != value),
        ("app=", labels.get("app") == ""),
        (f"app in (z, {value})", labels.get("app") == value),
        (f"app notin ({value})", labels.get("app") != value),
        ("!app", "app" not in labels),
    ):
        expressions = NamespaceSelection(selector=text).match["matchExpressions"]
        assert all(_holds(requirement, labels) for requirement in expressions) is expected, text


def test_the_number_of_requirements_is_limited() -> None:
    """A selector is compared with every object, so it may not be arbitrarily long."""
    with pytest.raises(InvalidError, match="at most 64 requirements, not 65"):
        parse_selector(",".join("a" * 65))
    with pytest.raises(InvalidError, match="at most 8192 characters"):
        parse_selector("a" * 8193)
