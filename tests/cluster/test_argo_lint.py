"""The linter against the real thing: Argo's own examples, and an API server that is asked to be strict."""

import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.lint import check_texts, schema
from edl_workflows.pipelines.argo.lint.cel import RULES as CEL_RULES
from edl_workflows.pipelines.argo.lint.documents import DUPLICATE_KEY
from edl_workflows.pipelines.manifests.manifest import Loader
from edl_workflows.runtime.kube import transport
from edl_workflows.runtime.kube.connect import Cluster
from release import argo_schemas
from tests.argo.lint.cases import Case
from tests.argo.lint.handed_cases import CASES as HANDED
from tests.argo.lint.rule_cases import CASES
from tests.cluster.bed.build import ARGO_SOURCES

Validate = Callable[[Sequence[str]], list[str]]

STRUCTURAL = {rule.name for rule in (*schema.RULES, *CEL_RULES, DUPLICATE_KEY)} - {"quoted-number"}
"""What an API server checks. A resource template's manifest is a text to it."""
BEYOND = {"depends-and-dependencies-mixed", "depends-and-continue-on", "missing-field-name"}
"""Cases of those rules that the definitions let pass and Argo's controller refuses."""


ABOVE_SPEC = {"no-name", "object-name", "unreadable", "unknown-kind"}
"""What the API server checks of any object."""


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
        value = yaml.load(part, Loader)
        if isinstance(value, dict) and value.get("kind") in schema.load_schemas().kinds:
            yield Example(source, part, value["kind"])


def refusal(cluster: Cluster, namespace: str, example: Example) -> str:
    """What a strict API server says against a document; empty if it takes it. Nothing is stored."""
    plural = f"{example.kind.lower()}s"
    scope = "" if example.kind.startswith("Cluster") else f"/namespaces/{namespace}"
    request = transport.ApiRequest(
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


@pytest.fixture(scope="module")
def validate(tmp_path_factory: pytest.TempPathFactory) -> Validate:
    """Argo's own validation, built from the bed's copy of its module."""
    argo = ARGO_SOURCES.parent
    if not shutil.which("go") or not (argo / "go.mod").exists():
        pytest.skip("Go and the test bed's sources of Argo are needed: build the test bed first")
    folder = tmp_path_factory.mktemp("validator")
    (folder / "go.mod").write_text((argo / "go.mod").read_text().replace("=> ./src", f"=> {ARGO_SOURCES}"))
    shutil.copy(argo / "go.sum", folder)
    shutil.copy(Path(__file__).parent / "validator" / "main.go", folder)
    # As the bed builds Argo's controller, so that what both are made of is compiled once.
    build = ["go", "build", "-mod=mod", "-trimpath", "-ldflags", "-s -w ", "-o", "validator", "."]
    settings = {"CGO_ENABLED": "0", "GOFLAGS": "-buildvcs=false"}
    subprocess.run(build, cwd=folder, env=os.environ | settings, check=True)

    def run(texts: Sequence[str]) -> list[str]:
        given = json.dumps(texts)
        said = subprocess.run([folder / "validator"], input=given, capture_output=True, text=True, check=True)
        return list(json.loads(said.stdout))

    return run


def corpus() -> Iterator[Example]:
    """Some thousand documents: Argo's examples, its documentation's, and what its tests call good and bad."""
    for folder, pattern, block in (
        ("examples", "*.yaml", r"(.*)"),
        ("test/e2e", "*.yaml", r"(.*)"),
        ("docs", "*.md", r"```yaml\n(.*?)```"),
        ("workflow", "*_test.go", r"`([^`]*)`"),
    ):
        for path in sorted((ARGO_SOURCES / folder).rglob(pattern)):
            for number, text in enumerate(re.findall(block, path.read_text(), re.DOTALL)):
                with contextlib.suppress(yaml.YAMLError):
                    yield from documents(f"{path.relative_to(ARGO_SOURCES)}#{number}", text)


@pytest.mark.timeout(600)
def test_the_linter_agrees_with_argos_own_validation(validate: Validate) -> None:
    """Beyond structure, the linter reports no error where Argo's validation finds none, except in what Argo
    does not check. It finds nearly all errors that Argo finds."""
    examples = list(corpus())
    wrong, silent, refused = {}, [], 0
    for example, message in zip(examples, validate([one.text for one in examples]), strict=True):
        if "not given" in message or "is not validated" in message:
            continue
        found = [one for one in check_texts([(example.source, example.text)]) if one.is_error]
        names = {one.rule.name for one in found} - STRUCTURAL - ABOVE_SPEC
        if not message and names:
            wrong[example.source] = names
        refused += bool(message)
        if message and not found:
            silent.append(f"{example.source}: {message}")

    assert len(examples) > 900
    # Hooks that hang, and a manifest's text: Argo sees them when it is too late.
    assert set().union(*wrong.values()) <= {"step-exit-hook", "manifest-schema"}, wrong
    assert len(wrong) <= 2, wrong
    assert len(silent) < 10 < refused / 10, silent


@pytest.mark.timeout(600)
def test_argos_own_validation_takes_the_good_twins(validate: Validate) -> None:
    """Argo accepts the workflows that the linter accepts."""
    good = [one for case in CASES for one in documents(case.id, case.good)]
    messages = dict(zip((one.source for one in good), validate([one.text for one in good]), strict=True))
    refused = {
        source: message for source, message in messages.items() if message and "not given" not in message
    }

    assert refused == {}


@pytest.mark.timeout(600)
def test_argos_own_validation_refuses_what_is_handed_on_wrongly(validate: Validate) -> None:
    """Argo's validation rejects each broken manifest of the table, so that the linter claims no more than
    Argo."""
    broken = [one for case in HANDED for one in documents(case.id, case.broken)]
    messages = zip((one.source for one in broken), validate([one.text for one in broken]), strict=True)

    assert [source for source, message in messages if not message] == []


def test_no_example_of_argos_is_a_false_alarm(
    cluster: Cluster, module_namespace: str, texts: list[tuple[str, str]]
) -> None:
    """In about 225 documents, the linter reports an error exactly where the API server rejects one, and a
    warning in the one example that leaves a job behind."""
    examples = [one for source, text in texts for one in documents(source, text)]
    refused = {one.source: why for one in examples if (why := refusal(cluster, module_namespace, one))}
    findings = check_texts(texts)
    found = {one.source: str(one) for one in findings if one.is_error}

    assert len(examples) > 200
    assert found.keys() == refused.keys(), (found, refused)
    assert len(refused) <= 3  # no name twice, a key that stands twice
    warnings = [(Path(one.source).name, one.rule.name) for one in findings if not one.is_error]
    assert warnings == [("k8s-resource-log-selector.yaml", "unowned-job")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_good_twins_are_accepted(cluster: Cluster, module_namespace: str, case: Case) -> None:
    """A strict API server accepts each manifest that the linter accepts."""
    good = case.good.replace("namespace: ml", f"namespace: {module_namespace}")

    assert [refusal(cluster, module_namespace, one) for one in documents(case.id, good)] == [""]


@pytest.mark.parametrize(
    "case",
    [case for case in CASES if case.rule in STRUCTURAL and case.id not in BEYOND],
    ids=lambda case: case.id,
)
def test_broken_structure_is_refused(cluster: Cluster, module_namespace: str, case: Case) -> None:
    """A strict API server rejects each manifest whose structure the linter rejects."""
    broken = case.broken.replace("namespace: ml", f"namespace: {module_namespace}")

    assert all(refusal(cluster, module_namespace, one) for one in documents(case.id, broken))


def test_the_shipped_definitions_are_those_of_the_controller() -> None:
    """The committed schemas are those that the generator makes of the test bed's Argo."""
    file = resources.files("edl_workflows.pipelines.argo.lint") / argo_schemas.FILE
    folder = ARGO_SOURCES / "manifests" / "base" / "crds" / "full"

    assert file.read_text(encoding="utf-8") == argo_schemas.render(folder, schema.load_schemas().version)
