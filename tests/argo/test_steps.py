"""The step model and its two renderings."""

import json
import re
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.pipelines.argo.plugin_task import PluginTask
from edl_workflows.pipelines.argo.templates import steps
from edl_workflows.pipelines.argo.templates.manifest_text import Tag, manifest_text
from edl_workflows.pipelines.argo.templates.outputs import PARAMETERS
from edl_workflows.pipelines.argo.templates.plugin_template import plugin_templates
from edl_workflows.pipelines.argo.templates.resource_template import FINAL_MESSAGES, resource_templates
from edl_workflows.pipelines.argo.templates.step import StepInput, WorkflowStep
from edl_workflows.pipelines.stages.catalog import STAGES
from tests.cases.kinds import KIND_CASES
from tests.cases.stages import STAGE_CASES

KIND_NAMES = [kind.name for kind in KINDS if kind.view is not None and kind.name != "ElasticJob"]
OF_STAGES = [steps.step_of(stage.name) for stage in STAGES]
ALL = (
    *(step for step in OF_STAGES if step.action is not None),  # the agent alone runs the others
    *(
        step(kind=kind)
        for kind in KIND_NAMES
        for step in (
            steps.submit,
            steps.wait_for_job,
            steps.collect,
            steps.cancel,
            steps.suspend,
            steps.resume,
            steps.delete,
        )
    ),
    steps.autoscale(kind="DIJob"),
)
"""Each step that can be rendered in both ways."""
EACH = pytest.mark.parametrize("step", ALL, ids=lambda step: step.name)


@EACH
def test_both_ways_have_the_same_inputs_and_outputs(step: WorkflowStep) -> None:
    """Both ways to wait have the same inputs and outputs, so that one can replace the other without other
    changes."""
    resource, plugin = resource_templates(step)[0], plugin_templates(step)[0]

    assert resource["name"] == plugin["name"]
    assert resource["inputs"] == plugin["inputs"]
    for template in (resource, plugin):
        assert tuple(one["name"] for one in template["outputs"]["parameters"]) == PARAMETERS


@pytest.mark.parametrize(
    "step", {step.name: step for step in (*ALL, *OF_STAGES)}.values(), ids=lambda step: step.name
)
def test_the_plugin_body_is_a_request_of_its_stage(step: WorkflowStep) -> None:
    """With the inputs that Argo fills in, the plugin's body is a valid request of its stage, and texts have
    the right types."""
    values = {given.name: given.default for given in step.inputs if given.default is not None}
    values |= {"name": "digits", "job": "digits", "timeout": "1h", **STAGE_CASES[step.stage].inputs}
    (template,) = plugin_templates(step)

    task = PluginTask.parse(_filled(template["plugin"]["edl"], values))
    stage, request = task.stage_and_request()

    assert stage.name == step.stage
    assert isinstance(request, stage.request)


def _filled(body: Any, values: dict[str, str]) -> Any:
    """What Argo makes of a body whose tags are simple ones; a manifest's expressions are the cluster tests'
    matter."""
    text = json.dumps(body)
    text = re.sub(
        r"\{\{inputs\.parameters\.([a-z-]+)\}\}", lambda tag: json.dumps(values[tag[1]])[1:-1], text
    )
    text = re.sub(r"\{\{=sprig\.nindent[^}]*\}\}", "{}", text)
    return json.loads(re.sub(r"\{\{[^}]*\}\}", "filled-in", text))


@EACH
def test_every_step_has_an_end(step: WorkflowStep) -> None:
    """Each template takes its time-out from an input of the step, which has a default."""
    for template in (*plugin_templates(step), *resource_templates(step)):
        if "steps" not in template:
            assert template["timeout"] == "{{inputs.parameters.timeout}}"
            assert any(
                one["name"] == "timeout" and one["default"] for one in template["inputs"]["parameters"]
            )


@EACH
def test_conditions_of_resource_steps(step: WorkflowStep) -> None:
    """The conditions of a waiting step decide on success and on failure, and an absent field meets none of
    them."""
    for template in resource_templates(step):
        resource = template.get("resource", {})
        assert ("successCondition" in resource) == ("failureCondition" in resource)
        for condition in (resource.get("successCondition", ""), resource.get("failureCondition", "")):
            assert "!=" not in condition
            assert "notin" not in condition


def test_what_stays_wrong_is_not_repeated() -> None:
    """A step whose pod was lost is retried. A failed job or a rejection is not. The messages are those of
    Argo 4.1 and the API server."""
    final = re.compile("|".join(FINAL_MESSAGES))
    lost = (
        "pod deleted",
        "The node was low on resource: memory.",
        "Pod was terminated in response to node shutdown",
    )
    stays = (
        "main: Error (exit code 64): failure condition '{status.phase == [Failed]}' evaluated true",
        "The resource has been deleted while its status was still being checked.",
        "Pod was active on the node longer than the specified deadline",
        'error: Apply failed with 1 conflict: conflict with "kubectl": .spec',
        'Error from server (Forbidden): elasticjobs "a" is forbidden',
        'The ElasticJob "a" is invalid: spec.replicaSpecs: Required value',
    )

    assert not any(final.search(message) for message in lost)
    assert all(final.search(message) for message in stays)


def _resource(step: WorkflowStep) -> dict[str, Any]:
    """Of the template that changes or looks at the object."""
    found: dict[str, Any] = next(one["resource"] for one in resource_templates(step) if "resource" in one)
    return found


@pytest.mark.parametrize("kind", KIND_CASES)
def test_a_kind_is_spelt_as_its_users_know_it(kind: str) -> None:
    """The conditions of a step name phases of the kind, and its manifest has the kind's own API version."""
    cases = KIND_CASES[kind]
    made, conditions = _resource(steps.submit(kind=kind)), [f"status.phase == {end}" for end in cases.ends]

    assert [made["successCondition"], made["failureCondition"]] == conditions
    head = [line.partition(": ")[2].strip('"') for line in made["manifest"].splitlines()[:2]]
    assert head == [cases.example["apiVersion"], kind]


def test_the_switch_stands_where_the_kind_has_it() -> None:
    """A TFJob is suspended in its run policy, and other kinds by a field of their spec."""
    manifests = {kind: _resource(steps.suspend(kind=kind))["manifest"] for kind in ("TFJob", "DIJob")}

    assert yaml.safe_load(manifests["TFJob"].partition("spec:")[2]) == {"runPolicy": {"suspend": True}}
    assert yaml.safe_load(manifests["DIJob"].partition("spec:")[2]) == {"suspend": True}


def test_waiting_reads_phases_in_any_spelling() -> None:
    """A step that waits for a TrainingJob compares phases in lower case and accepts those of all kinds, since
    TrainingJobs write theirs in lower case."""
    condition = _resource(steps.wait_for_job(kind="TrainingJob"))["successCondition"]

    assert "sprig.lower(inputs.parameters['phases'])" in condition
    assert "',succeeded'" in condition


def test_a_condition_needs_the_plugin() -> None:
    """Conditions are a list, which Argo's label selectors can't search, so waiting for one needs the
    plugin."""
    step = steps.wait_for_job(condition="Ready")
    assert plugin_templates(step)[0]["plugin"]["edl"]["request"]["condition"] == "Ready"

    with pytest.raises(InvalidError, match="by the plugin"):
        resource_templates(step)


def test_a_plan_that_changes_something_needs_the_plugin() -> None:
    """A label selector can't express that one of two maps is not empty, so waiting for such a plan needs the
    plugin."""
    step = steps.plan_scale(wait_for_change=True)
    assert plugin_templates(step)[0]["plugin"]["edl"]["request"]["waitForChange"] is True

    with pytest.raises(InvalidError, match="take any plan, or by the plugin"):
        resource_templates(step)


def test_who_asks_for_a_number_switches_autoscaling_off_first() -> None:
    """Steps that change numbers of nodes by a manifest, without the stage's code, first switch autoscaling
    off."""
    for step in (steps.scale(), steps.migrate_ps(), steps.apply_plan()):
        outer, first, then = resource_templates(step)
        assert [one[0]["template"] for one in outer["steps"]] == [first["name"], then["name"]]
        pinned = first["resource"]["manifest"]
        assert first["resource"]["action"] == "patch"
        assert 'elastic.iml.github.io/autoscale: "false"' in pinned
        assert "kind: ScalePlan" in then["resource"]["manifest"].replace('"', "")
    assert len(resource_templates(steps.checkpoint())) == 1


def test_values_keep_their_types_in_a_manifest() -> None:
    """Each input keeps its type in the manifest, and the text is valid YAML even before Argo fills it in."""
    text = manifest_text(
        {
            "name": Tag("a-{{workflow.uid}}"),
            "words": StepInput("words", ""),
            "count": StepInput("count", "", "integer"),
            "maybe": StepInput("maybe", "", "integer", ""),
            "body": {"inner": StepInput("body", "", "yaml")},
            "list": [{"flag": True}, {"none": None}],
            "empty": {},
        }
    )

    assert text.splitlines() == [
        "name: a-{{workflow.uid}}",
        "words: {{=toJson(inputs.parameters['words'])}}",
        "count: {{=string(int(inputs.parameters['count']))}}",
        "maybe: {{=inputs.parameters['maybe'] == '' ? 'null' : string(int(inputs.parameters['maybe']))}}",
        "body:",
        "  inner: {{=sprig.nindent(4, inputs.parameters['body'])}}",
        "list:",
        "- flag: true",
        "- none: null",
        "empty: {}",
    ]
    assert yaml.safe_load(re.sub(r"\{\{=.*\}\}", "placeholder", text))["list"] == [
        {"flag": True},
        {"none": None},
    ]


@pytest.mark.parametrize(
    "key", [Tag("{{workflow.uid}}"), StepInput("name", ""), "{{workflow.name}}"], ids=["tag", "input", "text"]
)
def test_a_key_with_a_tag_is_refused(key: Any) -> None:
    """A tag as a key of a map, at any depth, is an error that names it: the text would be no YAML."""
    with pytest.raises(InvalidError, match=r"key .* contains a tag"):
        manifest_text({"metadata": {"labels": [{key: "x"}]}})
