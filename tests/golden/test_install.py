"""What `edl install` prints, compared with files as data. Rewrite them with --update-golden."""

from pathlib import Path

import pytest
import yaml

from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.pipelines.install.crds import render_yaml
from edl_workflows.pipelines.install.manifests import installation_manifests
from edl_workflows.pipelines.install.options import InstallOptions, InstallPart, PullPolicy

FILES = Path(__file__).parent / "install"

CASES = {
    "all-namespaces": InstallOptions(image="registry.example/edl-workflows:1"),
    "one-namespace": InstallOptions(
        image="registry.example/edl-workflows:1",
        namespace="edl",
        jobs_namespaces=NamespaceSelection.of("training"),
        kinds=("all",),
        replicas=3,
        pull_policy=PullPolicy.ALWAYS,
        pull_secrets=("registry",),
        parts=frozenset(InstallPart),
    ),
    "two-namespaces": InstallOptions(
        image="registry.example/edl-workflows:1",
        jobs_namespaces=NamespaceSelection(("training", "vision")),
    ),
    "selected-namespaces": InstallOptions(
        image="registry.example/edl-workflows:1",
        jobs_namespaces=NamespaceSelection(selector="team=vision,env in (test,prod)"),
        kinds=("all",),
        parts=frozenset(InstallPart),
    ),
    "brain": InstallOptions(
        image="registry.example/edl-workflows:1",
        parts=frozenset({InstallPart.BRAIN}),
        brain_database_secret="brain-database",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_manifests_are_as_recorded(case: str, update_golden: bool) -> None:
    """The manifests of an installation equal the recorded ones. The definitions have golden files of their
    own."""
    objects = installation_manifests(CASES[case])
    recorded = [one for one in objects if one["kind"] != "CustomResourceDefinition"]
    path = FILES / f"{case}.yaml"
    if update_golden:
        path.parent.mkdir(exist_ok=True)
        path.write_text(render_yaml(recorded), encoding="utf-8")

    assert recorded == list(yaml.load_all(path.read_text(encoding="utf-8"), yaml.CSafeLoader))
