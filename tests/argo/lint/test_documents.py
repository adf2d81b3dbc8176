"""Reading files: as the API server reads YAML, with lines, and within bounds whatever the file is."""

import time
from typing import Any

import pytest

from edl_workflows.pipelines.argo.lint import check, check_texts, documents
from edl_workflows.pipelines.argo.lint.documents import Document
from edl_workflows.pipelines.argo.lint.findings import Finding
from tests.argo.lint.cases import PRINT, template

SECONDS = 10.0
"""Of this process's work: a bound that no hostile file may reach; they take a fraction of it."""

_LAUGHS = "\n".join(
    ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    + [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
)


def only(text: str) -> Document | Finding:
    """What a text of one document gives."""
    (found,) = documents.read_documents(text, "file.yaml")
    return found


def value(scalar: str) -> Any:
    """How a scalar is read."""
    found = only(f"a: {scalar}")
    assert isinstance(found, Document)
    return found.manifest["a"]


@pytest.mark.parametrize(
    ("scalar", "expected"),
    [
        ("y", True), ("Off", False), ("0o17", 15), ("010", 8), ("0x1F", 31), ("1_000", 1000), ("0b11", 3),
        ("-1", -1),
        ("1e3", 1000.0), (".5", 0.5), ("2020-01-01", "2020-01-01"), ("12:30", "12:30"), ("1e", "1e"),
        ("=", "="),
        ("<<", "<<"), ("~", None), ("0o8", "0o8"),
    ],
)  # fmt: skip
def test_scalars_are_read_as_the_api_server_reads_them(scalar: str, expected: object) -> None:
    """Scalars have the types that the API server reads, since types decide what is accepted. Each row was
    compared with a real server."""
    assert value(scalar) == expected
    assert type(value(scalar)) is type(expected)


def test_keys_are_texts() -> None:
    """Numbers and Booleans as keys of a YAML map are read as strings, since JSON has only string keys."""
    assert value("{2: a, true: b}") == {"2": "a", "true": "b"}


def test_items_of_a_list_are_documents() -> None:
    """The items of a list, as `kubectl get -o yaml` prints it, are checked as documents, with the lines of
    the file."""
    text = (
        "apiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: argoproj.io/v1alpha1, kind: Workflow, metadata: {name: a},\n"
        "   spec: {entrypoint: b}}\n"
    )
    (found,) = check_texts([("list.yaml", text)])

    assert (found.rule.name, found.line, found.subject) == ("undefined-template", 5, "Workflow a")


def test_a_finding_has_file_and_line() -> None:
    """A finding has its file and line, even in a second document."""
    text = "---\nkind: ConfigMap\n---\n" + template(f"{PRINT}\ntimeout: '30'")
    (found,) = check_texts([("two.yaml", text)])

    assert found.source == "two.yaml"
    assert text.splitlines()[found.line - 1].strip() == "timeout: '30'"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: &a [*a]", "contains itself"),
        (_LAUGHS, "more than 200000 values"),
        (f"a: {'[' * 200}{']' * 200}", "nested deeper than 100"),
        ("[" * 100_000, "nested deeper than 100"),
        ("a: b\n" * (documents.MAX_CHARACTERS // 4), "larger than 16 MiB"),
        ("a: !!python/object/apply:os.system [id]", "not valid YAML"),
        ("a: \x00", "not valid YAML"),
        ("just text", "a document is a str"),
        ("a: [1, 2", "not valid YAML"),
        ("\ta: b", "not valid YAML"),
        ("- x: y", "a document is a list"),
        ("0b: 0x_", None),
    ],
    ids=["cycle", "aliases", "deep", "brackets", "huge", "object", "zero", "scalar", "open", "tab", "list",
    "odd"],
)  # fmt: skip
def test_hostile_files_end_in_a_finding(text: str, says: str | None) -> None:
    """Whatever a file holds, checking it ends in bounded time with one clear finding or none, and never with
    an exception."""
    started = time.process_time()
    found = check_texts([("bad.yaml", text)])

    assert time.process_time() - started < SECONDS
    assert [one.rule.name for one in found] == (["unreadable"] if says else [])
    assert says is None or says in found[0].message


def test_one_bad_file_does_not_hide_the_others() -> None:
    """A file that can't be read does not keep the others from being checked."""
    bad_name = template("timeout: '30'\n" + PRINT)
    found = check_texts([("bad.yaml", "a: ["), ("other.yaml", bad_name)])

    assert [(one.source, one.rule.name) for one in found] == [
        ("bad.yaml", "unreadable"),
        ("other.yaml", "bad-duration"),
    ]


def big(*bodies: dict[str, Any], **spec: object) -> dict[str, Any]:
    """A workflow of these templates."""
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "many"},
        "spec": {"entrypoint": "main", "templates": list(bodies), **spec},
    }


def shown(value: str) -> dict[str, Any]:
    """A template with a text in it."""
    return {"name": "main", "container": {"image": "a", "args": [value]}}


def names(number: int) -> list[str]:
    """Distinct names."""
    return [f"name-{n}" for n in range(number)]


_HOOKED = [
    {"name": name, "steps": [[{"name": "a", "template": below, "hooks": {"exit": {"template": below}}}]]}
    for name, below in zip(names(5_000), names(5_001)[1:], strict=True)
]
BIG = {
    "calls": big({"name": "main", "steps": [[{"name": n, "template": f"x{n}"}] for n in names(10_000)]},
                 *({"name": n, "suspend": {}} for n in names(10_000))),
    "tags": big({"name": "main", "inputs": {"parameters": [{"name": n} for n in names(10_000)]},
                 "container": {"image": "a", "args": ["{{inputs.parameters.none}}",
                 "{{=inputs.parameters.none}}"] * 10_000}}),
    "good tags": big({"name": "main",
                      "inputs": {"parameters": [{"name": n, "value": ""} for n in names(10_000)]},
                      "container": {"image": "a",
                                    "args": [f"{{{{inputs.parameters.{n}}}}}" for n in names(10_000)]}}),
    "unclosed": big(shown("{{item.x" * 300_000 + "}}")),
    "opened": big(shown("{{" * 1_000_000)),
    "closed": big(shown("}}" * 1_000_000)),
    "manifest": big({"name": "main", "resource": {"action": "create", "manifest": "{{" * 1_000_000}}),
    "manifest brackets": big({"name": "main", "resource": {"action": "create", "manifest": "[" * 1_000_000}}),
    "condition": big({"name": "main", "resource": {"action": "get", "successCondition": "a=b," * 200_000}}),
    "key": big({"name": "main", "resource": {"action": "get", "successCondition": "a-" * 500_000 + "!"}}),
    "depends": big({"name": "main", "dag": {"tasks": [{"name": "a", "template": "main",
    "depends": "a && " * 100_000}]}}),
    "dense dag": big({"name": "main", "dag": {"tasks": [
        {"name": f"t{n}", "template": "main", "dependencies": [f"t{m}" for m in range(n)],
         "arguments": {"parameters": [{"name": "a",
         "value": "{{tasks.t0.outputs.result}}"}]}} for n in range(400)]}}),
    "long chain": big({"name": "main", "dag": {"tasks": [
        {"name": f"t{n}", "template": "main", "dependencies": [f"t{n - 1}"]} for n in range(10_000)]}}),
    "hooks": big(*_HOOKED, {"name": "name-5000", "plugin": {"other": {}}}),
    "schedules": {**big(), "kind": "CronWorkflow", "spec": {"schedules": ["0 0 * * " + "1," * 100_000] * 5}},
    "names": big(*({"name": "a" * 100_000, "suspend": {}} for _ in range(10))),
    "fields": big({f"field{n}": n for n in range(60_000)}),
}  # fmt: skip


@pytest.mark.parametrize("case", BIG)
def test_big_manifests_take_bounded_time(case: str) -> None:
    """Work grows with a manifest's size and not with its square, and findings are cut off."""
    started = time.process_time()
    found = check(BIG[case])

    assert time.process_time() - started < SECONDS
    assert len(found) <= 501


def test_findings_are_cut_off_and_it_is_said() -> None:
    """A list of thousands of findings is cut off, and its last line says so."""
    found = check(BIG["calls"])

    assert len(found) == 501
    assert (
        "more than 500 findings in this document; the rest is left out" in [one.message for one in found][-1]
    )


def test_a_program_s_manifest_is_bounded_too() -> None:
    """Values that `check` gets from a program are limited, too, since no reader has checked them."""
    endless: dict[str, Any] = {"apiVersion": "argoproj.io/v1alpha1", "kind": "Workflow"}
    endless["spec"] = endless

    assert [one.rule.name for one in check(endless)] == ["unreadable"]
    assert [one.rule.name for one in check({"apiVersion": {1, 2}})] == ["unreadable"]
