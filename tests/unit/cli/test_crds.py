"""`edl crds`: what is printed is what the package ships."""

import pytest
import yaml

from edl_workflows.cli import main


def test_print_gives_every_definition(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is a YAML stream that `kubectl apply` takes."""
    assert main(["crds", "print"]) == 0
    printed = list(yaml.safe_load_all(capsys.readouterr().out))

    assert [p["metadata"]["name"] for p in printed] == [
        "elasticjobs.elastic.iml.github.io",
        "scaleplans.elastic.iml.github.io",
        "tfjobs.kubeflow.org",
    ]


def test_print_of_an_unknown_definition_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt name is wrong input, and the answer says what there is."""
    assert main(["crds", "print", "elasticjob"]) == 2
    assert (
        "there is no definition 'elasticjob'; there are elasticjobs, scaleplans, tfjobs"
        in capsys.readouterr().err
    )
