"""Every rule catches what it is for, under its name, and leaves the good twin alone."""

import pytest

from edl_workflows.pipelines.argo.lint import check_texts
from edl_workflows.pipelines.argo.lint.rules import RULES
from tests.argo.lint.cases import Case
from tests.argo.lint.rule_cases import CASES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_broken_manifest_is_told_by_its_rule_alone(case: Case) -> None:
    """A broken manifest gives findings of its rule, and of no other."""
    found = check_texts([("file.yaml", case.broken)])

    assert {one.rule.name for one in found} == {case.rule}, "\n".join(map(str, found))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_its_good_twin_has_no_finding(case: Case) -> None:
    """The corrected twin of a broken manifest has no finding, so that its smallest change is enough."""
    assert [str(one) for one in check_texts([("file.yaml", case.good)])] == []


def test_every_rule_has_a_case() -> None:
    """For each rule there is a workflow that breaks it."""
    untested = {rule.name for rule in RULES} - {case.rule for case in CASES}

    # Stands for rules of future definitions; see test_schema.
    assert untested == {"crd-rule"}


def test_names_of_rules_are_unique_and_kebab_case() -> None:
    """Names of rules are unique and in kebab case, since people write them after --ignore."""
    names = [rule.name for rule in RULES]

    assert sorted(set(names)) == sorted(names)
    assert all(name == name.lower() and " " not in name and "_" not in name for name in names)
