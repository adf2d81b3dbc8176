"""What the serializer lets through, and what it refuses."""

import pytest
import yaml
from hera.workflows import DAG, Container, WorkflowTemplate, models

from edl_workflows.core.exceptions import InvalidError, ManifestError
from edl_workflows.pipelines.argo.templates import builders
from edl_workflows.pipelines.argo.templates.serializer import to_manifest, to_yaml


def test_the_plugin_body_is_not_lost() -> None:
    """The plugin's body is in the manifest. Hera's own output has an empty one."""
    with WorkflowTemplate(name="train", entrypoint="main") as workflow:
        submit = builders.submit("plugin")
        with DAG(name="main"):
            submit(arguments={"name": "digits", "spec": "{}"})

    ours = {one["name"]: one for one in to_manifest(workflow)["spec"]["templates"]}
    heras = {one["name"]: one for one in workflow.to_dict()["spec"]["templates"]}
    assert ours["submit"]["plugin"]["edl"]["stage"] == "submit"
    assert "plugin" not in heras["submit"]


def test_templates_that_a_template_calls_come_with_it() -> None:
    """A template is written together with the templates it calls, once each, such as the two halves of
    resume."""
    with WorkflowTemplate(name="train", entrypoint="main") as workflow:
        resume = builders.resume("resource")
        with DAG(name="main"):
            resume(name="a", arguments={"name": "a"}) >> resume(name="b", arguments={"name": "b"})  # type: ignore[operator]

    names = [one["name"] for one in to_manifest(workflow)["spec"]["templates"]]
    assert sorted(names) == ["main", "resume", "resume-patch", "resume-wait"]


def test_a_body_that_hera_lost_is_refused() -> None:
    """A template whose body Hera has dropped is rejected; otherwise the workflow would run a template that
    does nothing."""
    with WorkflowTemplate(name="mine", entrypoint="main") as workflow:
        workflow._add_sub(
            models.Template(name="main", plugin=models.Plugin.model_validate({"edl": {"stage": "wait"}}))
        )
        workflow._add_sub(models.Template(name="nothing"))

    with pytest.raises(ManifestError) as refused:
        to_manifest(workflow)
    paths = {problem.path for problem in refused.value.problems}
    assert {"spec.templates[0].plugin", "spec.templates[1]"} <= paths


def test_two_templates_of_one_name_are_refused() -> None:
    """Two templates of one name are rejected, since Argo would use either of them."""
    with WorkflowTemplate(name="mine", entrypoint="main") as workflow:
        Container(name="main", image="a")
        Container(name="main", image="b")

    with pytest.raises(ManifestError, match=r"spec\.templates\.main: there is another template of this name"):
        to_manifest(workflow)


def test_a_way_to_wait_that_does_not_exist() -> None:
    """An unknown way to wait raises InvalidError, which names the existing ones."""
    with pytest.raises(InvalidError, match="resource"):
        builders.submit("poll")  # type: ignore[arg-type]


def test_yaml_is_stable_and_means_what_was_written() -> None:
    """Text of several lines is a block, and text that looks like a number stays text."""
    manifest = {
        "kind": "A",
        "text": "a: 1\nb: 2\n",
        "number": "3",
        "flag": "yes",
        "again": {"x": [1]},
        "more": {"x": [1]},
    }

    text = to_yaml([manifest, manifest])
    assert text == to_yaml(yaml.safe_load_all(text))
    assert "text: |\n  a: 1\n" in text
    assert list(yaml.safe_load_all(text)) == [manifest, manifest]


def test_what_yaml_does_not_give_back_is_refused() -> None:
    """A value that YAML would read as another one, such as NaN or a key of an unusual type, is rejected."""
    with pytest.raises(ManifestError, match="would be read as another"):
        to_yaml([{"kind": "A", "metadata": {"name": "a"}, "value": float("nan")}])
