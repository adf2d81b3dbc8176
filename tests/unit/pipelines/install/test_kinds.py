"""An installation for some kinds only."""

import json
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.kinds import KINDS, choose_kinds
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart
from edl_workflows.pipelines.install.rbac import PIPELINE, TRIGGERER, VIEWER
from tests.cases.kinds import KIND_CASES

IMAGE = "registry.example/edl:1"


def installed(*kinds: str) -> list[dict[str, Any]]:
    return installation_manifests(InstallOptions(image=IMAGE, kinds=kinds))


def definitions(objects: list[dict[str, Any]]) -> set[str]:
    return {one["spec"]["names"]["kind"] for one in objects if one["kind"] == "CustomResourceDefinition"}


def rules(objects: list[dict[str, Any]]) -> dict[str, list[str]]:
    """The verbs of the controller for each resource."""
    (role,) = (o for o in objects if o["kind"] == "ClusterRole" and o["metadata"]["name"] == names.CONTROLLER)
    return {one["resources"][0]: one["verbs"] for one in role["rules"]}


def command(objects: list[dict[str, Any]]) -> list[str]:
    (deployment,) = (one for one in objects if one["kind"] == "Deployment")
    found: list[str] = deployment["spec"]["template"]["spec"]["containers"][0]["command"]
    return found


@pytest.mark.parametrize("policies", [True, False])
def test_the_kinds_of_other_operators_are_left_out_by_default(policies: bool) -> None:
    """Beside Kubeflow's or another operator an installation that names no kinds touches nothing of theirs: it
    has no definition of their kinds, no right on them, and no policy about them."""
    options = InstallOptions(image=IMAGE, admission_policies=policies)
    objects = installation_manifests(options)
    of_others = {kind.source.api for kind in KINDS} - {kind.source.api for kind in options.job_kinds}
    mine = [obj for obj in objects if obj["metadata"]["name"] not in (PIPELINE, VIEWER, TRIGGERER)]

    assert definitions(objects) == {"ElasticJob", "ScalePlan"}
    assert "--kinds" not in command(objects)
    assert choose_kinds(()) == options.job_kinds
    assert {api.kind for api in of_others} == KIND_CASES.keys() - {"ElasticJob"}
    assert not [
        api.kind for api in of_others if api.plural in json.dumps(mine) or api.kind in json.dumps(mine)
    ]


def test_all_kinds_on_request() -> None:
    """The controller gets the word, so that it serves kinds of later versions, too."""
    objects = installed("all")

    assert definitions(objects) == {kind.name for kind in KINDS}
    line = command(objects)
    assert line[line.index("--kinds") + 1] == "all"


def test_definitions_rights_and_controller_follow_the_choice() -> None:
    """Where Kubeflow's operator handles TFJobs, the installation does not touch them, and the controller gets
    the list of the other kinds."""
    objects = installed("ElasticJob", "ScalePlan")

    assert definitions(objects) == {"ElasticJob", "ScalePlan"}
    assert {name for name in rules(objects) if name.startswith("tfjobs")} == set()
    assert rules(objects)["elasticjobs/status"] == ["patch"]
    line = command(objects)
    assert line[line.index("--kinds") + 1] == "ElasticJob,ScalePlan"


def test_only_who_makes_masters_makes_roles() -> None:
    """A controller without ElasticJobs neither reads Secrets nor creates Roles."""
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
    """Unknown kinds, and only one of two kinds that need each other, are rejected."""
    with pytest.raises(InvalidError, match=message):
        InstallOptions(image=IMAGE, kinds=kinds)


def test_a_di_server_without_di_jobs_is_refused() -> None:
    """An installation with the DI server but without DIJobs is refused: the server would serve nothing."""
    with pytest.raises(InvalidError, match="add DIJob to the kinds, or leave the DI server out"):
        InstallOptions(image=IMAGE, kinds=("TFJob",), parts=frozenset({InstallPart.DI_SERVER}))


def test_the_option_takes_names_between_commas() -> None:
    """The option takes names separated by commas, with or without spaces."""
    from typer.testing import CliRunner

    from edl_workflows.pipelines.cli.services.install import app

    ran = CliRunner().invoke(app, ["--image", IMAGE, "--kinds", "ElasticJob, ScalePlan", "--print"])

    assert definitions(list(yaml.load_all(ran.stdout, yaml.CSafeLoader))) == {"ElasticJob", "ScalePlan"}
