"""The Python snippet of docs/how-to/lint-argo-workflows.md runs."""

import pytest
import yaml

from edl_workflows.pipelines.argo.lint import check
from tests.argo.lint.cases import SHOW, steps, templates


def test_the_library_says_what_the_command_says(capsys: pytest.CaptureFixture[str]) -> None:
    """The linter reports a missing argument of a template in another manifest."""
    manifest = yaml.safe_load(steps("name: a\ntemplateRef: {name: tools, template: show}"))
    template = yaml.safe_load(templates(SHOW).replace("generateName: train-", "name: tools"))
    template["kind"] = "WorkflowTemplate"

    for finding in check(manifest, others=[template]):
        print(finding.rule.name, finding.is_error, finding)

    assert capsys.readouterr().out.startswith(
        "missing-argument True error[missing-argument] Workflow ml/train- "
    )
