"""`edl crds` prints the definitions in the package."""

from pathlib import Path

import pytest
import yaml

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli import main
from edl_workflows.pipelines.cli.services.crds import read_definitions
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import CRDS
from edl_workflows.testing import api_server


def test_print_gives_every_definition(capsys: pytest.CaptureFixture[str]) -> None:
    """The output is a YAML stream for `kubectl apply`."""
    assert main(["crds", "print", "all"]) == 0
    printed = list(yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader))

    kinds = sorted((row.source.api for row in KINDS), key=lambda api: api.plural)
    assert [p["metadata"]["name"] for p in printed] == [f"{api.plural}.{api.group}" for api in kinds]


def test_print_of_an_unknown_definition_names_the_known(capsys: pytest.CaptureFixture[str]) -> None:
    """A misspelt name is invalid input, and the message names the definitions."""
    assert main(["crds", "print", "elasticjob"]) == 2
    known = ", ".join(sorted(row.source.api.plural for row in KINDS))
    assert f"there is no definition 'elasticjob'; the definitions are {known}" in capsys.readouterr().err


def test_the_definitions_of_others_are_printed_on_request(capsys: pytest.CaptureFixture[str]) -> None:
    """Without names there are those of this package's own kinds."""
    assert main(["crds", "print"]) == 0
    printed = yaml.load_all(capsys.readouterr().out, yaml.CSafeLoader)

    assert [crd["spec"]["names"]["kind"] for crd in printed] == ["ElasticJob", "ScalePlan"]


def test_a_definition_of_another_operator_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is changed if one of the definitions belongs to another operator; `--replace` replaces it. A
    definition of an earlier installation of ours is updated."""
    with api_server(tmp_path) as server:
        cluster, target = server.cluster(), ["--kubeconfig", str(server.kubeconfig)]
        theirs = yaml.load(dict(read_definitions())["tfjobs"], yaml.CSafeLoader)
        del theirs["metadata"]["labels"]
        client.create(cluster, theirs)
        kept = main(["crds", "install", "elasticjobs", "tfjobs", *target])
        message = capsys.readouterr().err
        untouched = client.find(cluster, CRDS, "elasticjobs.elastic.iml.github.io") is None
        codes = [main(["crds", "install", "tfjobs", *options, *target]) for options in (["--replace"], [])]
        labels = client.get(cluster, CRDS, "tfjobs.kubeflow.org")["metadata"].get("labels")

    assert kept != 0
    assert untouched
    assert "tfjobs.kubeflow.org belongs to another operator and is kept" in message
    assert codes == [0, 0]
    assert labels == names.PART_OF
