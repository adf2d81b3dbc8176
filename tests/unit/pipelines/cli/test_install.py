"""``edl install``: options reach the manifests, and the commands in them are valid."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from edl_workflows.core.jobs.elastic_job import pods
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.cli import root
from edl_workflows.pipelines.cli.services.controller import JobFlags
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import CrdMode, InstallOptions, InstallPart, PullPolicy
from tests.cases.kinds import KIND_CASES

_BUDGET = "--progress-writes-per-second"


def printed(*arguments: str) -> list[dict[str, Any]]:
    result = CliRunner().invoke(root.app, ["install", *arguments])
    assert result.exit_code == 0, result.output
    return list(yaml.load_all(result.stdout, yaml.CSafeLoader))


def test_every_option_reaches_the_manifests(tmp_path: Path) -> None:
    """The printed manifests reflect the options."""
    template = tmp_path / "template.yaml"
    template.write_text("spec: {nodeSelector: {pool: system}}")
    arguments = (
        "--image a:1 --print -n edl --jobs-namespace training --jobs-namespace vision --replicas 3 "
        "--image-pull-policy Always "
        "--image-pull-secret one --image-pull-secret two --with argo-agent --with brain "
        "--brain-database-secret db --crds without --other-operator kubeflow:training-operator "
        f"--kinds all --pod-template {template} --master-template {template} --training-template {template} "
        "--ttl-seconds-after-finished 3600"
    )
    pool: dict[str, Any] = {"spec": {"nodeSelector": {"pool": "system"}}}
    options = InstallOptions(
        "a:1",
        "edl",
        NamespaceSelection(("training", "vision")),
        replicas=3,
        pull_policy=PullPolicy.ALWAYS,
        pull_secrets=("one", "two"),
        parts=frozenset({InstallPart.ARGO_AGENT, InstallPart.BRAIN}),
        brain_database_secret="db",
        crds=CrdMode.WITHOUT,
        other_operators=("kubeflow:training-operator",),
        kinds=("all",),
        pod_template=pool,
        master_template=pool,
        training_template=pool,
        ttl_seconds_after_finished=3600,
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


@pytest.mark.parametrize(
    "jobs",
    [
        [],
        ["--jobs-namespace", "training"],
        ["--jobs-namespace", "training", "--jobs-namespace", "vision"],
        ["--jobs-namespace-selector", "team in (vision,speech),!frozen"],
    ],
)
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


def test_a_cpu_limit_of_masters_reaches_their_pods() -> None:
    """A ResourceQuota that counts limits.cpu admits only pods with such a limit. Masters get the one of the
    installation, beside the other amounts, unless a template names resources."""
    (controller,) = [
        one
        for one in printed("--image", "a:1", "--print", "--master-cpu-limit", "2", "--crds", "without")
        if one["kind"] == "Deployment"
    ]
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    arguments = container["command"]
    assert arguments[arguments.index("--master-cpu-limit") + 1] == "2"

    settings = JobFlags(master_cpu_limit="2").settings()
    job = ElasticJob.parse(KIND_CASES["ElasticJob"].example)
    (main,) = pods.master_pod(job, 0, 0, settings)["spec"]["containers"]
    assert main["resources"]["limits"] == {"cpu": "2", "memory": "2Gi"}
    (main,) = pods.master_pod(job, 0, 0, JobFlags().settings())["spec"]["containers"]
    assert main["resources"]["limits"] == {"memory": "2Gi"}


@pytest.mark.parametrize(("options", "budget"), [([], 10.0), ([_BUDGET, "2.5"], 2.5)])
def test_a_budget_of_progress_reaches_the_controller(options: list[str], budget: float) -> None:
    """The installation's budget of progress writes is the controller's, which otherwise has its own
    default."""
    (controller,) = [
        manifest
        for manifest in printed("--image", "a:1", "--print", "--crds", "without", *options)
        if manifest["kind"] == "Deployment"
    ]
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    arguments = container["command"]
    given = arguments[arguments.index(_BUDGET) :][:2] if _BUDGET in arguments else []
    assert given == options
    flags = JobFlags(progress_writes_per_second=float(given[1])) if given else JobFlags()
    assert flags.settings().progress_writes_per_second == budget


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        (["--jobs-namespace", "a,b"], "jobs namespace 'a,b' is not a valid namespace"),
        (["--jobs-namespace", "a", "--jobs-namespace", "a"], "jobs namespace 'a' is given twice"),
        (["--jobs-namespace", "a", "--jobs-namespace-selector", "b"], "choose one of the two"),
        (["--jobs-namespace-selector", "a=b c"], "jobs namespace selector 'a=b c'"),
    ],
)
def test_wrong_namespaces_of_jobs_are_refused(
    capsys: pytest.CaptureFixture[str], options: list[str], complaint: str
) -> None:
    """The error says which value is wrong, and nothing is printed."""
    assert root.run(["install", "--image", "a:1", "--print", *options]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert complaint in printed.err


def test_a_budget_of_nothing_is_refused() -> None:
    """Without a budget, masters could never write."""
    assert root.run(["install", "--image", "a:1", "--print", _BUDGET, "0"]) == 2


@pytest.mark.parametrize(("options", "forced"), [([], False), (["--force-delete-lost-pods"], True)])
def test_lost_pods_are_deleted_by_force_only_on_request(options: list[str], forced: bool) -> None:
    """The controller deletes pods of lost machines by force only if the installation asks for it: the program
    of such a pod may still run."""
    (controller,) = [
        one
        for one in printed("--image", "a:1", "--print", "--crds", "without", *options)
        if one["kind"] == "Deployment"
    ]
    (container,) = controller["spec"]["template"]["spec"]["containers"]
    assert ("--force-delete-lost-pods" in container["command"]) is forced
    assert JobFlags(force_delete_lost_pods=forced).settings().force_delete_lost_pods is forced
    assert JobFlags(unreachable_timeout=5).settings().unreachable_seconds == 5


def test_a_malformed_cpu_limit_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is no quantity is refused at once, not by the API server for each master."""
    assert root.run(["install", "--image", "a:1", "--print", "--master-cpu-limit", "two"]) == 2
    assert "two" in capsys.readouterr().err
