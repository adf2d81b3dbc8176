"""Steps whose outputs Argo uses again: what the key depends on."""

from typing import Any

import pytest
from hera.workflows import DAG, WorkflowTemplate

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.argo.templates import builders, steps
from edl_workflows.pipelines.argo.templates.serializer import to_manifest
from edl_workflows.pipelines.argo.templates.step import WaitMode


def _workflow(waiting: WaitMode) -> dict[str, Any]:
    with WorkflowTemplate(name="train", entrypoint="main") as workflow:
        submit = builders.submit(waiting, memoize="edl-memo")
        with DAG(name="main"):
            submit(
                arguments={
                    "name": "digits",
                    "spec": "{}",
                    "data": "mnist",
                    "data-version": "3",
                    "code": "c0ffee",
                }
            )
    return to_manifest(workflow)


@pytest.mark.parametrize("waiting", ["plugin", "resource"])
def test_the_key_is_of_data_code_and_spec(waiting: WaitMode) -> None:
    """The key depends on data, code and spec, but not on the job's name or the time-out."""
    [template] = [one for one in _workflow(waiting)["spec"]["templates"] if one["name"] == "submit"]

    assert template["memoize"]["cache"] == {"configMap": {"name": "edl-memo"}}
    assert template["memoize"]["key"] == (
        "{{=sprig.sha256sum(toJson([inputs.parameters['data'], inputs.parameters['data-version'], "
        "inputs.parameters['code'], inputs.parameters['spec']]))}}"
    )


def test_only_results_are_remembered() -> None:
    """A step that does not wait has no result yet, so it is not memoized."""
    with pytest.raises(InvalidError, match="memoize and queue need wait=True"):
        steps.submit(memoize="edl-memo", wait=False)
