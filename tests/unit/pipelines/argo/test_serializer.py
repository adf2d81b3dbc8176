"""From Hera's objects to a manifest: what Hera loses, and what can't work, never leaves the process."""

import pytest
from hera.workflows import Container, Steps, Workflow
from hera.workflows.models import Plugin, Template

from edl_workflows.core.exceptions import ManifestError
from edl_workflows.pipelines.argo.lint import documents
from edl_workflows.pipelines.argo.templates.serializer import to_manifest, to_yaml


def workflow(*templates: Template) -> Workflow:
    """A workflow of raw templates, the first of which is the entrypoint."""
    return Workflow(name="train", entrypoint=templates[0].name, templates=list(templates))


def test_a_good_workflow_is_what_hera_built() -> None:
    """The manifest equals what Hera built."""
    with Workflow(generate_name="hello-", entrypoint="main") as made:
        hello = Container(name="hello", image="busybox", command=["echo"])
        with Steps(name="main"):
            hello(name="say")

    manifest = to_manifest(made)

    assert manifest["spec"]["templates"] == [
        {"name": "hello", "container": {"image": "busybox", "command": ["echo"]}},
        {"name": "main", "steps": [[{"name": "say", "template": "hello"}]]},
    ]


def test_a_plugin_whose_body_hera_lost_is_refused() -> None:
    """Hera's Plugin has no fields and drops what it is given without an error, so an empty plugin is
    rejected."""
    lost = Template(name="main", plugin=Plugin(edl={"stage": "wait"}))

    with pytest.raises(
        ManifestError, match=r"spec\.templates\[0\]\.plugin: .* one key is needed \(plugin-keys\)"
    ):
        to_manifest(workflow(lost))


def test_a_name_that_leads_nowhere_is_refused() -> None:
    """Each problem is reported with its place, its rule and what to do."""
    with Workflow(generate_name="hello-", entrypoint="mian") as made, Steps(name="main"):
        pass

    with pytest.raises(
        ManifestError, match=r"spec\.entrypoint: .*'mian' \(undefined-template\): Did you mean main"
    ):
        to_manifest(made)


def test_yaml_gives_back_what_was_written() -> None:
    """YAML returns the values that were written, including texts that a server would read as numbers or
    booleans where PyYAML does not, and texts of several lines."""
    values = [
        "y",
        "1e3",
        "12e5",
        "0o17",
        "12:30",
        "2020-01-01",
        "010",
        "null",
        "=",
        "",
        "a\n  b\n",
        1000.0,
        15,
        True,
        None,
    ]
    manifests = [{"kind": "A", "metadata": {"name": "a"}, "values": values}]
    text = to_yaml(manifests)

    assert "|\n  a\n" in text
    assert all(f"- '{value}'\n" in text for value in ("y", "1e3", "12e5", "0o17"))
    (read,) = documents.read_documents(text, "a.yaml")
    assert isinstance(read, documents.Document)
    assert read.manifest == manifests[0]
