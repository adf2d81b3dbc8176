"""``edl install``: options reach the manifests, and the commands in them are valid."""

from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from edl_workflows.pipelines.cli import root
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart, PullPolicy


def printed(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(root.app, ["install", *arguments])
    assert result.exit_code == 0, result.output
    return list(yaml.load_all(result.stdout, yaml.CSafeLoader))


def test_every_option_reaches_the_manifests() -> None:
    """The printed manifests reflect the options."""
    arguments = (
        "--image a:1 --print -n edl --jobs-namespace training --replicas 3 --image-pull-policy Always "
        "--image-pull-secret one --image-pull-secret two --with argo-agent --with brain "
        "--brain-database-secret db"
    )
    options = InstallOptions(
        "a:1",
        "edl",
        "training",
        replicas=3,
        pull_policy=PullPolicy.ALWAYS,
        pull_secrets=("one", "two"),
        parts=frozenset({InstallPart.ARGO_AGENT, InstallPart.BRAIN}),
        brain_database_secret="db",
    )

    assert printed(*arguments.split()) == installation_manifests(options)


def test_without_print_it_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ``--print`` the command changes nothing, and says what to do."""
    code = root.run(["install", "--image", "a:1"])

    assert code == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "--print" in said.err
    assert "kubectl apply -f -" in said.err


@pytest.mark.parametrize("jobs", [[], ["--jobs-namespace", "training"]])
def test_the_pods_commands_are_ours(jobs: list[str]) -> None:
    """The arguments of each container are valid for the command that it runs."""
    deployments = [
        o
        for o in printed("--image", "a:1", "--print", "--with", "argo-agent", "--with", "brain", *jobs)
        if o["kind"] == "Deployment"
    ]
    commands = [one["spec"]["template"]["spec"]["containers"][0]["command"] for one in deployments]

    assert len(commands) == 3
    for command in commands:
        assert command[0] == "edl"
        # The arguments are parsed as a whole before --help is answered.
        result = CliRunner().invoke(root.app, [*command[1:], "--help"])
        assert result.exit_code == 0, result.output
