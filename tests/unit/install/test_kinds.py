"""An installation of some kinds only."""

from typing import Any

import pytest
import yaml

from edl_workflows.exceptions import InvalidError
from edl_workflows.install.manifests import installation_manifests
from edl_workflows.install.options import InstallOptions, InstallPart
from edl_workflows.jobs import names
from edl_workflows.jobs.kinds import KINDS

IMAGE = "registry.example/edl:1"


def installed(*kinds: str) -> list[dict[str, Any]]:
    return installation_manifests(InstallOptions(image=IMAGE, kinds=kinds))


def definitions(objects: list[dict[str, Any]]) -> set[str]:
    return {one["spec"]["names"]["kind"] for one in objects if one["kind"] == "CustomResourceDefinition"}


def rules(objects: list[dict[str, Any]]) -> dict[str, list[str]]:
    """Resource → verbs of the controller."""
    (role,) = (o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == names.CONTROLLER)
    return {one["resources"][0]: one["verbs"] for one in role["rules"]}


def command(objects: list[dict[str, Any]]) -> list[str]:
    (deployment,) = (one for one in objects if one["kind"] == "Deployment")
    found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return found


def test_all_kinds_unless_some_are_named() -> None:
    """Without a choice everything is installed, and a later version's kinds, too: the controller is not told
    names.
    """
    objects = installed()

    assert definitions(objects) == {kind.name for kind in KINDS}
    assert "--kinds" not in command(objects)


def test_definitions_rights_and_controller_follow_the_choice() -> None:
    """Where Kubeflow's operator serves TFJobs, nothing of them is touched; the controller is told what is
    left to it.
    """
    objects = installed("ElasticJob", "ScalePlan")

    assert definitions(objects) == {"ElasticJob", "ScalePlan"}
    assert {name for name in rules(objects) if name.startswith("tfjobs")} == set()
    assert rules(objects)["elasticjobs/status"] == ["patch"]
    line = command(objects)
    assert line[line.index("--kinds") + 1] == "ElasticJob,ScalePlan"


def test_only_who_makes_masters_makes_roles() -> None:
    """A controller without ElasticJobs neither reads Secrets nor makes Roles."""
    found = rules(installed("TFJob"))

    assert not {"roles", "rolebindings", "secrets", "elasticjobs"} & set(found)
    assert {"tfjobs", "tfjobs/status", "pods", "services", "podgroups", "events"} <= set(found)


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (("ElasticJob",), "ElasticJob works with ScalePlan only: name both"),
        (("ScalePlan", "TFJob"), "ScalePlan works with ElasticJob only: name both"),
        (("TfJob",), "'TfJob' is no kind of this package; known are ElasticJob, ScalePlan, TFJob"),
    ],
)
def test_a_choice_that_cannot_work_is_refused(kinds: tuple[str, ...], message: str) -> None:
    """An unknown kind, and half of a pair that works together only."""
    with pytest.raises(InvalidError, match=message):
        InstallOptions(image=IMAGE, kinds=kinds)


def test_a_di_server_without_di_jobs_is_refused() -> None:
    """It would have nothing to serve."""
    with pytest.raises(InvalidError, match="add DIJob to the kinds, or leave the DI server out"):
        InstallOptions(image=IMAGE, kinds=("TFJob",), parts=frozenset({InstallPart.DI_SERVER}))


def test_the_option_takes_names_between_commas() -> None:
    """As a user writes them, with blanks."""
    from typer.testing import CliRunner

    from edl_workflows.cli.install import app

    ran = CliRunner().invoke(app, ["--image", IMAGE, "--kinds", "ElasticJob, ScalePlan", "--print"])

    assert definitions(list(yaml.safe_load_all(ran.stdout))) == {"ElasticJob", "ScalePlan"}
