"""Lists: selectors, pages, versions, forms."""

from collections.abc import Callable

import pytest

from tests.conformance.support import Api, Object, config_map, pod, refusal

MakeWidget = Callable[..., Object]


def _names(answer: Object) -> list[str]:
    return [item["metadata"]["name"] for item in answer["items"]]


@pytest.fixture
def labelled(api: Api, core: str) -> str:
    """Three config maps with labels."""
    for name, labels in {"a": {"app": "x", "tier": "1"}, "b": {"app": "y"}, "c": {}}.items():
        api.post(f"{core}/configmaps", config_map(name, metadata={"labels": {**labels, "mine": "yes"}}))
    return f"{core}/configmaps"


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("app=x", ["a"]),
        ("app==x,mine", ["a"]),
        ("app!=x,mine", ["b", "c"]),
        ("app in (x, y)", ["a", "b"]),
        ("app notin (x),mine", ["b", "c"]),
        ("tier", ["a"]),
        ("!app,mine", ["c"]),
        ("mine,tier>0", ["a"]),
        ("app=none", []),
    ],
)
def test_label_selectors(api: Api, labelled: str, selector: str, found: list[str]) -> None:
    """Equality and set based selectors find what they say."""
    assert _names(api.get(labelled, labelSelector=selector)) == found


@pytest.mark.parametrize("selector", ["a=b=c", "a in", "=x", "a in x"])
def test_bad_label_selector(api: Api, labelled: str, selector: str) -> None:
    """A selector that can't be parsed is a BadRequest."""
    assert refusal(lambda: api.get(labelled, labelSelector=selector)).code == 400


def test_field_selectors(api: Api, core: str, labelled: str) -> None:
    """Objects can be selected by name, pods by phase and node too; other fields are refused."""
    api.post(f"{core}/pods", pod("p", schedulerName="nobody"))  # it stays Pending

    assert _names(api.get(labelled, fieldSelector="metadata.name=b")) == ["b"]
    assert _names(api.get(labelled, fieldSelector="metadata.name!=b,metadata.name!=kube-root-ca.crt")) == [
        "a",
        "c",
    ]
    assert _names(api.get(f"{core}/pods", fieldSelector="status.phase=Pending,spec.nodeName=")) == ["p"]
    assert _names(api.get(f"{core}/pods", fieldSelector="status.phase=Running")) == []
    assert refusal(lambda: api.get(labelled, fieldSelector="data.k=v")).code == 400


def test_all_namespaces(api: Api, core: str, namespace: str) -> None:
    """A list without a namespace has the objects of all namespaces."""
    api.post(f"{core}/secrets", {"metadata": {"name": "everywhere"}})
    answer = api.get("/api/v1/secrets", fieldSelector="metadata.name=everywhere")

    assert [item["metadata"]["namespace"] for item in answer["items"]] == [namespace]


def test_list_has_kind_and_version(api: Api, wpath: str, widgets: str) -> None:
    """A list names its kind and a version to watch from."""
    answer = api.get(wpath)

    assert (answer["kind"], answer["apiVersion"], answer["items"]) == ("WidgetList", f"{widgets}/v1", [])
    assert int(answer["metadata"]["resourceVersion"]) > 0


def test_pages_are_one_snapshot(api: Api, core: str) -> None:
    """All pages show the objects as they were at the first page, whatever changes in between."""
    path = f"{core}/secrets"
    for name in ("a", "b", "c", "d", "e"):
        api.post(path, {"metadata": {"name": name}})
    first = api.get(path, limit=2)
    api.delete(f"{path}/d")
    api.post(path, {"metadata": {"name": "bb"}})
    second = api.get(path, limit=2, **{"continue": first["metadata"]["continue"]})
    third = api.get(path, limit=2, **{"continue": second["metadata"]["continue"]})

    assert [_names(page) for page in (first, second, third)] == [["a", "b"], ["c", "d"], ["e"]]
    assert first["metadata"]["remainingItemCount"] == 3
    assert "continue" not in third["metadata"]
    assert first["metadata"]["resourceVersion"] == third["metadata"]["resourceVersion"]


def test_bad_continue(api: Api, core: str) -> None:
    """A continue token that the server did not make is a BadRequest."""
    assert refusal(lambda: api.get(f"{core}/secrets", limit=1, **{"continue": "nonsense"})).code == 400


def test_exact_version(api: Api, core: str) -> None:
    """A list at an exact version shows that version."""
    path = f"{core}/secrets"
    made = api.post(path, {"metadata": {"name": "a"}})
    version = made["metadata"]["resourceVersion"]
    api.post(path, {"metadata": {"name": "b"}})
    then = api.get(path, resourceVersion=version, resourceVersionMatch="Exact")

    assert (_names(then), then["metadata"]["resourceVersion"]) == (["a"], version)
    assert _names(api.get(path, resourceVersion=version, resourceVersionMatch="NotOlderThan")) == ["a", "b"]
    assert _names(api.get(path, resourceVersion="0")) == ["a", "b"]


def test_table(api: Api, wpath: str, widget: MakeWidget) -> None:
    """A list can be requested as a Table with the definition's columns."""
    api.post(wpath, widget(replicas=4))
    accept = {"accept": "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"}
    table = api.http.get(wpath, headers=accept).json()

    assert (table["kind"], table["apiVersion"]) == ("Table", "meta.k8s.io/v1")
    assert [column["name"] for column in table["columnDefinitions"]] == ["Name", "Phase", "Replicas"]
    assert [row["cells"] for row in table["rows"]] == [["w", None, 4]] or table["rows"][0]["cells"] == [
        "w",
        "",
        4,
    ]
    assert table["rows"][0]["object"]["kind"] == "PartialObjectMetadata"


def test_partial_metadata(api: Api, wpath: str, widget: MakeWidget) -> None:
    """A list can be requested as metadata alone."""
    api.post(wpath, widget(metadata={"labels": {"a": "b"}}))
    accept = {"accept": "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"}
    answer = api.http.get(wpath, headers=accept).json()

    assert answer["kind"] == "PartialObjectMetadataList"
    assert answer["items"][0]["metadata"]["labels"] == {"a": "b"}
    assert "spec" not in answer["items"][0]


def test_not_acceptable(api: Api, core: str) -> None:
    """A requested format that the server can't write gets 406."""
    assert api.http.get(f"{core}/secrets", headers={"accept": "text/html"}).status_code == 406
