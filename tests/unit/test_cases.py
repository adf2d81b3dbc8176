"""The cases in `tests.cases` belong to the kinds, stages and policies of the registries."""

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.pipelines.stages.catalog import STAGES
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS
from tests.cases.kinds import KIND_CASES
from tests.cases.policies import POLICY_CASES
from tests.cases.stages import STAGE_CASES


def test_every_kind_of_job_has_its_cases() -> None:
    """Each kind of job has a module in `tests.cases.kinds`, and each module there belongs to a kind."""
    kinds = {kind.name for kind in KINDS if kind.view is not None}
    assert kinds == KIND_CASES.keys(), "each kind of job needs tests/cases/kinds/<kind>.py with its CASES"


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
