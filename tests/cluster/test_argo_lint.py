"""The linter against the real thing: Argo's own examples, and an API server that is asked to be strict."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import resources

import pytest
import yaml

from edl_workflows.argo.lint import check_texts, crds, schema
from edl_workflows.argo.lint.cel import RULES as CEL_RULES
from edl_workflows.argo.lint.documents import DUPLICATE_KEY
from edl_workflows.exceptions import InvalidError
from edl_workflows.kube import transport
from edl_workflows.kube.connect import Cluster
from tests.argo.lint.cases import Case
from tests.argo.lint.rule_cases import CASES
from tests.cluster.bed.build import ARGO_SOURCES

STRUCTURAL = {rule.name for rule in (*schema.RULES, *CEL_RULES, DUPLICATE_KEY)} - {"quoted-number"}
"""What an API server checks. A resource template's manifest is a text to it."""
BEYOND = {"depends-and-dependencies-mixed", "depends-and-continue-on", "missing-field-name"}
"""Cases of those rules that the definitions let pass and Argo's controller refuses."""


@dataclass(frozen=True)
class Example:
    """One document of a file.

    Attributes:
        source: the file.
        text: the document as it stands.
        kind: of Argo's.
    """

    source: str
    text: str
    kind: str


@pytest.fixture(scope="module")
def texts() -> list[tuple[str, str]]:
    """Argo's examples: (file, text)."""
    folder = ARGO_SOURCES / "examples"
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".yaml", ".yml"))
    if not files:
        pytest.skip(f"no examples in {folder}: build the test bed first")
    return [(str(path.relative_to(folder)), path.read_text()) for path in files]


def documents(source: str, text: str) -> Iterator[Example]:
    """The documents of a file that are Argo's."""
    for part in re.split(r"(?m)^---.*$", text):
        value = yaml.safe_load(part)
        if isinstance(value, dict) and value.get("kind") in schema.load().kinds:
            yield Example(source, part, value["kind"])


def refusal(cluster: Cluster, namespace: str, example: Example) -> str:
    """What a strict API server says against a document; empty if it takes it. Nothing is stored."""
    plural = f"{example.kind.lower()}s"
    scope = "" if example.kind.startswith("Cluster") else f"/namespaces/{namespace}"
    request = transport.Request(
        "create",
        plural,
        f"/apis/argoproj.io/v1alpha1{scope}/{plural}",
        f"create {example.source}",
        query=(("dryRun", "All"), ("fieldValidation", "Strict")),
        body=example.text,
        content_type="application/yaml",
    )
    try:
        transport.send(cluster, request)
    except InvalidError as error:
        return str(error)
    return ""


def test_no_example_of_argos_is_a_false_alarm(
    cluster: Cluster, module_namespace: str, texts: list[tuple[str, str]]
) -> None:
    """In some 225 documents something is found exactly where the API server refuses one."""
    examples = [one for source, text in texts for one in documents(source, text)]
    refused = {one.source: why for one in examples if (why := refusal(cluster, module_namespace, one))}
    found = {one.source: str(one) for one in check_texts(texts)}

    assert len(examples) > 200
    assert found.keys() == refused.keys(), (found, refused)
    assert len(refused) <= 3  # no name twice, a key that stands twice


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_good_twins_are_accepted(cluster: Cluster, module_namespace: str, case: Case) -> None:
    """What the linter calls good, a strict API server takes."""
    good = case.good.replace("namespace: ml", f"namespace: {module_namespace}")

    assert [refusal(cluster, module_namespace, one) for one in documents(case.id, good)] == [""]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.rule in STRUCTURAL and case.id not in BEYOND],
    ids=lambda case: case.id,
)
def test_broken_structure_is_refused(cluster: Cluster, module_namespace: str, case: Case) -> None:
    """What the linter says of structure, a strict API server says too."""
    broken = case.broken.replace("namespace: ml", f"namespace: {module_namespace}")

    assert all(refusal(cluster, module_namespace, one) for one in documents(case.id, broken))


def test_the_shipped_definitions_are_those_of_the_controller() -> None:
    """The committed schemas are what the generator makes of the definitions that the bed's Argo brings."""
    file = resources.files("edl_workflows.argo.lint") / crds.FILE
    folder = ARGO_SOURCES / "manifests" / "base" / "crds" / "full"

    assert file.read_text(encoding="utf-8") == crds.render(folder, schema.load().version)
