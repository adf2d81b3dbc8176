"""What `edl argo build` makes of names, values and scopes."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.templates import catalog, schedules, workflows
from edl_workflows.pipelines.argo.templates.workflows import TemplateOptions
from edl_workflows.pipelines.cli import main
from tests.argo.templates import VALUES


def test_an_event_sets_only_the_parameters_it_is_allowed_to_set() -> None:
    """A Sensor takes a value from an event's body only for the parameters named by --from-event, each at its
    own position in the list."""
    template = workflows.elastic_retrain(TemplateOptions())
    allowed = ("spec", "minimum")
    trigger = k8s_trigger(schedules.sensor(template, VALUES | {"minimum": "0.5"}, allowed))
    placed = trigger["source"]["resource"]["spec"]["arguments"]["parameters"]

    assert [one["name"] for one in placed] == [
        one["name"] for one in template["spec"]["arguments"]["parameters"]
    ]
    written = {one["dest"]: one["src"] for one in trigger["parameters"]}
    assert written == {
        f"spec.arguments.parameters.{index}.value": {
            "dependencyName": "new-data",
            "dataKey": f"body.{one['name']}",
            "value": one["value"],
        }
        for index, one in enumerate(placed)
        if one["name"] in allowed
    }


def test_an_event_sets_nothing_by_default() -> None:
    """Without --from-event an event only starts a run: whoever can send one chooses neither the job, the
    image nor a command."""
    template = workflows.elastic_retrain(TemplateOptions())
    trigger = k8s_trigger(schedules.sensor(template, VALUES))

    assert "parameters" not in trigger
    given = trigger["source"]["resource"]["spec"]["arguments"]["parameters"]
    assert VALUES.items() <= {one["name"]: one["value"] for one in given}.items()


def test_a_value_that_only_the_event_has_is_required_of_the_event() -> None:
    """A parameter without default and value is refused, unless events may set it; then an event without it
    starts nothing."""
    template = workflows.elastic_retrain(TemplateOptions())
    rest = {name: value for name, value in VALUES.items() if name != "spec"}

    with pytest.raises(InvalidError, match="a Sensor of elastic-retrain needs values for spec"):
        schedules.sensor(template, rest)
    (parameter,) = k8s_trigger(schedules.sensor(template, rest, ["spec"]))["parameters"]
    assert parameter["src"] == {"dependencyName": "new-data", "dataKey": "body.spec"}


def test_events_name_parameters_that_exist() -> None:
    """--from-event with an unknown parameter, or without the template that it is for, is an error."""
    events = ["elastic-retrain-events"]
    with pytest.raises(InvalidError, match="no parameter 'epochs' that an event could set"):
        catalog.build_manifests(events, TemplateOptions(parameters=VALUES, from_event=("epochs",)), "train")
    with pytest.raises(InvalidError, match="--from-event applies to elastic-retrain-events only"):
        catalog.build_manifests(["elastic-train"], TemplateOptions(from_event=("name",)), "train")


def test_the_webhook_asks_for_a_token() -> None:
    """The EventSource takes an event only from a client with the bearer token in the Secret."""
    made = schedules.webhook(workflows.elastic_retrain(TemplateOptions()))

    assert made["spec"]["webhook"]["new-data"]["authSecret"] == {"name": "elastic-retrain", "key": "token"}


def k8s_trigger(sensor: dict[str, Any]) -> dict[str, Any]:
    """What the Sensor creates, and what it takes from the event."""
    trigger: dict[str, Any] = sensor["spec"]["triggers"][0]["template"]["k8s"]
    return trigger


def test_a_schedule_has_all_values() -> None:
    """A CronWorkflow gives all parameters, since nobody enters them when it starts."""
    template = workflows.elastic_retrain(TemplateOptions())
    given = schedules.cron(template, "0 3 * * *", VALUES)["spec"]["workflowSpec"]["arguments"]["parameters"]

    assert {one["name"]: one["value"] for one in given} == VALUES
    with pytest.raises(InvalidError, match="evaluate, image, promote, spec"):
        schedules.cron(template, "0 3 * * *", {})


def test_values_become_defaults() -> None:
    """A given value becomes the default of that parameter in each template that has it; a parameter that no
    template has is an error."""
    (made,) = catalog.build_manifests(
        ["elastic-train"], TemplateOptions(parameters={"timeout": "2h"}), "train"
    )
    values = {one["name"]: one.get("value") for one in made["spec"]["arguments"]["parameters"]}

    assert values == {"name": "", "spec": None, "timeout": "2h", "clean-up": "delete"}
    with pytest.raises(
        InvalidError,
        match="no template has a parameter 'epochs'; parameters are clean-up, name, spec, timeout",
    ):
        catalog.build_manifests(["elastic-train"], TemplateOptions(parameters={"epochs": "2"}), "train")


def test_cluster_scope_has_no_namespace_and_refers_to_the_cluster() -> None:
    """With cluster scope, templates are ClusterWorkflowTemplates without a namespace, and references to them
    say so."""
    options = TemplateOptions(cluster_scope=True, parameters=VALUES)
    retrain, cron = catalog.build_manifests(["elastic-retrain", "elastic-retrain-cron"], options, "train")

    assert (retrain["kind"], "namespace" in retrain["metadata"]) == ("ClusterWorkflowTemplate", False)
    assert cron["metadata"]["namespace"] == "train"
    assert cron["spec"]["workflowSpec"]["workflowTemplateRef"] == {
        "name": "elastic-retrain",
        "clusterScope": True,
    }


def test_build_by_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command writes all products that need no values; one product to a file, with a value from a file;
    and rejects unknown names."""
    assert main(["argo", "build", "--waiting", "plugin", "-n", "train"]) == 0
    kinds = [one["kind"] for one in yaml.safe_load_all(capsys.readouterr().out)]
    templates = [one for one in catalog.PRODUCTS if one.usual and one.name != "access"]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding", *["WorkflowTemplate"] * len(templates)]

    spec, out = tmp_path / "spec.yaml", tmp_path / "out.yaml"
    spec.write_text("replicaSpecs: {}\n")
    assert main(["argo", "build", "elastic-train", "-p", f"spec=@{spec}", "-o", str(out)]) == 0
    assert {"name": "spec", "value": "replicaSpecs: {}\n"}.items() <= _parameter(out, "spec").items()

    assert main(["argo", "build", "elastic"]) == 2
    assert "there is no template 'elastic'; there are access, edl-stages" in capsys.readouterr().err
    assert main(["argo", "build", "-p", "spec"]) == 2
    assert "write a parameter as name=value" in capsys.readouterr().err
    assert main(["argo", "build", "-p", f"spec=@{tmp_path / 'absent'}"]) == 2
    assert main(["argo", "build", "-o", str(tmp_path / "no" / "where")]) == 2
    capsys.readouterr()
    assert main(["argo", "build", "--list"]) == 0
    assert capsys.readouterr().out.split() == [product.name for product in catalog.PRODUCTS]


def _parameter(file: Path, name: str) -> dict[str, str]:
    parameters = yaml.safe_load(file.read_text())["spec"]["arguments"]["parameters"]
    found: dict[str, str] = next(one for one in parameters if one["name"] == name)
    return found
