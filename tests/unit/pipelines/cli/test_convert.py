"""``edl convert``: the possible conversions."""

from pathlib import Path

import pytest
import yaml

from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.pipelines.cli.root import run

EXAMPLES = Path(__file__).parents[3] / "golden" / "training_jobs"
TF_JOB = """
apiVersion: kubeflow.org/v1alpha2
kind: TFJob
metadata: {name: mnist}
spec: {tfReplicaSpecs: {Worker: {template: {spec: {containers: [{name: tensorflow, image: "train:1"}]}}}}}
"""


def test_a_training_job_becomes_an_elastic_job(capsys: pytest.CaptureFixture[str]) -> None:
    """The new manifest is printed to stdout, and the fields that it can't express to stderr."""
    assert run(["convert", str(EXAMPLES / "design-document.yaml")]) == 0
    printed = capsys.readouterr()
    manifest = yaml.safe_load(printed.out)
    assert (manifest["kind"], manifest["metadata"]["name"]) == ("ElasticJob", "paddlejob")
    assert "spec.passes: " in printed.err
    assert "spec.master: " in printed.err


@pytest.mark.parametrize("to", ["ElasticJob", "kubeflow.org/v1", "kubeflow.org/v1alpha2"])
def test_a_tf_job_becomes(to: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A TFJob can become another version of a TFJob, or an ElasticJob."""
    file = tmp_path / "job.yaml"
    file.write_text(TF_JOB)
    assert run(["convert", str(file), "--to", to]) == 0
    manifest = yaml.safe_load(capsys.readouterr().out)
    assert to in (manifest["kind"], manifest["apiVersion"])


def test_what_can_not_be_converted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A kind that can't be converted, or an unknown target, is an error that names the possible ones."""
    file = tmp_path / "job.yaml"
    file.write_text("{apiVersion: v1, kind: Pod, metadata: {name: a}}")
    assert run(["convert", str(file)]) == 2
    possible = ", ".join(kind.name for kind in KINDS if kind.conversions)
    assert f"kind: Pod can't be converted; {possible} can" in capsys.readouterr().err
    assert run(["convert", str(EXAMPLES / "design-document.yaml"), "--to", "kubeflow.org/v1"]) == 2
    refused = "--to: TrainingJob can be converted to ElasticJob, not to kubeflow.org/v1"
    assert refused in capsys.readouterr().err
