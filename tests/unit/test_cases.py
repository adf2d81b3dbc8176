"""The cases in `tests.cases` belong to the kinds, stages and policies of the registries."""

from pathlib import Path

import pytest

from edl_workflows.core.jobs.kinds import KINDS, kind_of
from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS
from tests.cases.kinds import KIND_CASES
from tests.cases.policies import POLICY_CASES
from tests.cases.stages import STAGE_CASES

ROOT = Path(__file__).parents[2]


def test_every_kind_of_job_has_its_cases() -> None:
    """Each kind of job has a module in `tests.cases.kinds`, and each module there belongs to a kind."""
    kinds = {kind.name for kind in KINDS if kind.view is not None}
    assert kinds == KIND_CASES.keys(), "each kind of job needs tests/cases/kinds/<kind>.py with its CASES"


@pytest.mark.parametrize("kind", [kind for kind in KIND_CASES if kind != "ElasticJob"])
def test_every_kind_of_job_has_its_tests_and_its_page(kind: str) -> None:
    """Each kind has unit tests, an end-to-end test with a part that `make test` runs, and a how-to page.
    Those of ElasticJob are named by topic."""
    module = kind_of(kind).model.__module__.split(".")[-2]
    end_to_end = ROOT / f"tests/e2e/test_{module}.py"
    pages = (ROOT / "docs/how-to").glob("*.md")

    assert list((ROOT / "tests/unit/core/jobs").glob(f"test_{module}_*.py")), f"test_{module}_….py is missing"
    assert end_to_end.exists()
    assert "@pytest.mark.smoke" in end_to_end.read_text(), f"{end_to_end} needs one test marked smoke"
    assert any(f"Submit{kind}Operator" in page.read_text() for page in pages), (
        f"a page in docs/how-to needs to show Submit{kind}Operator"
    )


def test_every_stage_has_its_cases() -> None:
    """Each stage has an entry in `STAGE_CASES`, and each entry there belongs to a stage."""
    stages = {stage.name for stage in STAGES}
    assert stages == STAGE_CASES.keys(), "each stage needs an entry in STAGE_CASES of tests/cases/stages.py"


def test_every_policy_has_its_cases() -> None:
    """Each policy has an entry in `POLICY_CASES` that shows whom it prefers, and each entry belongs to a
    policy."""
    policies = {entry.name for entry in SCHEDULERS}
    assert policies == POLICY_CASES.keys(), (
        "each policy needs an entry in POLICY_CASES of tests/cases/policies.py"
    )
    assert all(cases.decisions for cases in POLICY_CASES.values()), "each policy needs an example"
