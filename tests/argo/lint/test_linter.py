"""The linter as a library: references between documents, what surrounds workflows, and manifests that make no
sense."""

import copy
import json
import random
from collections.abc import Iterator
from importlib import resources
from typing import Any

import pytest
import yaml

from edl_workflows.pipelines.argo.lint import cel, check, check_texts, schema
from edl_workflows.pipelines.argo.lint.findings import Finding
from release import argo_schemas
from tests.argo.lint.cases import PRINT, PRINTER, SHOW, steps, template, templates, workflow
from tests.argo.lint.rule_cases import CASES

DEFINITIONS = resources.files("edl_workflows.pipelines.argo.lint") / argo_schemas.FILE
LIBRARY = (
    templates(SHOW)
    .replace("kind: Workflow", "kind: WorkflowTemplate")
    .replace("generateName: train-", "name: tools")
)


def rules(*texts: str) -> list[str]:
    """Names of the rules found broken in some files."""
    return [one.rule.name for one in check_texts([(f"{n}.yaml", text) for n, text in enumerate(texts)])]


def calling(reference: str, arguments: str = "") -> str:
    """A workflow whose step calls another document's template."""
    return steps(f"name: a\ntemplateRef: {reference}\n{arguments}")


def test_a_template_of_another_file_is_followed() -> None:
    """A call of a template in another file is checked for the template and its inputs."""
    given = "arguments: {parameters: [{name: text, value: x}]}"

    assert rules(calling("{name: tools, template: show}", given), LIBRARY) == []
    assert rules(calling("{name: tools, template: shw}", given), LIBRARY) == ["undefined-template"]
    assert rules(calling("{name: tools, template: show}"), LIBRARY) == ["missing-argument"]


@pytest.mark.parametrize(
    "reference",
    [
        "{name: unknown, template: show}",
        "{name: tools, template: show, clusterScope: true}",
        "{name: tools, template: '{{workflow.name}}'}",
    ],
)
def test_what_was_not_given_is_not_judged(reference: str) -> None:
    """A template that is in none of the given files may be in the cluster, so it is not reported."""
    assert rules(calling(reference), LIBRARY) == []


def test_a_template_of_another_namespace_is_another() -> None:
    """A reference to a template of another namespace is not resolved, since references stay within a
    namespace."""
    assert (
        rules(calling("{name: tools, template: gone}"), LIBRARY.replace("namespace: ml", "namespace: web"))
        == []
    )


def test_a_referenced_workflow_lends_entrypoint_and_exit_handler() -> None:
    """The entrypoint and exit handler of the template that workflowTemplateRef names count as the workflow's
    own."""
    runner = workflow("workflowTemplateRef: {name: tools}")
    whole = LIBRARY.replace("entrypoint: show", "entrypoint: show\n  onExit: gone")

    assert rules(runner, LIBRARY) == []
    assert rules(runner, LIBRARY.replace("entrypoint: show", "priority: 1")) == ["no-entrypoint"]
    assert rules(workflow("entrypoint: gone\nworkflowTemplateRef: {name: tools}"), LIBRARY) == [
        "undefined-template"
    ]
    assert rules(whole) == ["undefined-template"]


def test_workflow_templates_may_use_parameters_of_whoever_runs_them() -> None:
    """A WorkflowTemplate may use parameters of the workflow that runs it, which the linter can't know."""
    body = "container: {image: a, args: ['{{workflow.parameters.size}}']}"

    assert rules(template(body)) == ["unresolved-placeholder"]
    assert (
        rules(
            template(body)
            .replace("kind: Workflow", "kind: ClusterWorkflowTemplate")
            .replace(", namespace: ml", "")
        )
        == []
    )


def test_templates_in_steps_are_checked_like_others() -> None:
    """An ``inline`` template of a step is checked like any other template, although the definitions leave it
    open."""
    assert rules(steps(f"name: a\ninline: {{{PRINT}}}")) == []
    assert rules(steps(f"name: a\ninline: {{{PRINT}, timeOut: 5s}}")) == ["unknown-field"]
    assert rules(steps("name: a\ninline: {timeout: 5s}")) == ["no-template-type"]


def test_workflows_in_a_sensor_are_checked() -> None:
    """Workflows in a Sensor are checked, since Argo Events does not check them and a failing trigger is
    noticed late."""
    sensor = {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Sensor",
        "metadata": {"name": "retrain"},
        "spec": {
            "triggers": [
                {
                    "template": {
                        "name": "run",
                        "argoWorkflow": {
                            "operation": "submit",
                            "source": {"resource": yaml.safe_load(template(f"{PRINT}\ntimeOut: 5s"))},
                        },
                    }
                }
            ]
        },
    }
    (found,) = check(sensor)

    assert found.rule.name == "unknown-field"
    assert found.to_dict()["path"].startswith(
        "spec.triggers[0].template.argoWorkflow.source.resource.spec.templates[0]"
    )
    assert found.subject == "Sensor retrain"


@pytest.mark.parametrize("kind", ["ConfigMap", "Application", "EventSource", "Rollout"])
def test_other_kinds_are_left_alone(kind: str) -> None:
    """Objects of other kinds are not checked, even those of Argo's other projects in the same API group."""
    assert check({"apiVersion": "argoproj.io/v1alpha1", "kind": kind, "spec": {"anything": 1}}) == []


def test_a_manifest_text_that_is_a_parameter_is_not_judged() -> None:
    """A manifest that is a parameter as a whole is not checked, since it is known only when the workflow
    runs."""
    body = (
        "inputs: {parameters: [{name: m, value: a}]}\nresource: {action: create, manifest: "
        "'{{inputs.parameters.m}}'}"
    )

    assert rules(template(body)) == []


def test_the_finding_says_what_where_and_what_to_do() -> None:
    """A finding is one line of text with the rule, the place and what to do, and has the same content as
    data."""
    (found,) = check(yaml.safe_load(steps("name: a\ntemplate: prnt", PRINTER)))

    assert str(found) == (
        "error[undefined-template] Workflow ml/train- spec.templates[0].steps[0][0].template: there is no "
        "template 'prnt'; Did you mean print?"
    )
    assert found.to_dict() == {
        "rule": "undefined-template",
        "severity": "error",
        "source": "",
        "line": None,
        "subject": "Workflow ml/train-",
        "path": "spec.templates[0].steps[0][0].template",
        "message": "there is no template 'prnt'",
        "remedy": "Did you mean print?",
    }


def test_a_rule_of_the_definitions_without_a_name_is_told_by_its_expression() -> None:
    """A rule without a name, which a later version of Argo may have, is reported by its expression."""
    schemas = schema.Schemas("", {})
    ruled = {"type": "object", "properties": {"a": {"type": "integer"}}, "rules": ["self.a > 1"]}
    (found,) = schemas.check_value({"a": 1}, ruled, ("spec",))

    assert (found.rule.name, found.message) == ("crd-rule", "this must be true: self.a > 1")
    assert found.path == ("spec",)
    assert list(schemas.check_value({"a": 2}, ruled, ("spec",))) == []


@pytest.mark.parametrize("number", [2**63, -(2**63) - 1, 10**400], ids=["large", "small", "endless"])
def test_an_integer_beyond_64_bits_is_a_floating_point_number_to_rules(number: int) -> None:
    """An integer beyond 64 bits is a floating-point number to CEL rules, as in Kubernetes."""
    assert cel.rule_holds("has(self.a)", {"a": number})


def test_every_rule_of_the_shipped_definitions_has_a_name() -> None:
    """Each rule of the definitions has a name, which findings show instead of its expression."""
    _, *nodes = map(json.loads, DEFINITIONS.read_text(encoding="utf-8").splitlines())
    expressions = {rule for node in nodes for rule in node.get("rules", ())}

    assert len(expressions) == 10
    assert [rule for rule in expressions if cel.rule_of(rule) is cel.CRD_RULE] == []


def test_the_shipped_definitions_are_small() -> None:
    """The definitions are part of every wheel, so their size is limited."""
    assert schema.load_schemas().version == "v4.1.4"
    assert len(DEFINITIONS.read_bytes()) < 100_000


_ODD: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    1.5,
    "",
    "x",
    "{{",
    "{{=",
    "{{inputs.",
    "a.b",
    [],
    {},
    [None],
    [[]],
    {"name": None},
    [{"name": []}],
)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every value in a manifest."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in list(pairs):
        yield value, key
        yield from _places(child)


@pytest.mark.parametrize("seed", range(4))
def test_no_manifest_makes_the_linter_fail(seed: int) -> None:
    """Whatever values a manifest has anywhere, the linter reports findings and raises no exception."""
    chance = random.Random(seed)
    for case in CASES:
        parsed = list(yaml.safe_load_all(case.good))
        for _ in range(5):
            manifest = copy.deepcopy(parsed[0])
            container, key = chance.choice(list(_places(manifest)))
            container[key] = chance.choice(_ODD)

            assert all(isinstance(one, Finding) for one in check(manifest))
