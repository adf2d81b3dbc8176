"""`edl crds` prints the definitions in the package."""

import pytest
import yaml

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.pipelines.cli import main


def test_print_gives_every_definition(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is a YAML stream for `kubectl apply`."""
    assert main(["crds", "print"]) == 0
    printed = list(yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader))

    kinds = sorted((row.source.api for row in KINDS), key=lambda api: api.plural)
    assert [p["metadata"]["name"] for p in printed] == [f"{api.plural}.{api.group}" for api in kinds]


def test_print_of_an_unknown_definition_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt name is invalid input, and the message names the definitions."""
    assert main(["crds", "print", "elasticjob"]) == 2
    known = ", ".join(sorted(row.source.api.plural for row in KINDS))
    assert f"there is no definition 'elasticjob'; the definitions are {known}" in capsys.readouterr().err
