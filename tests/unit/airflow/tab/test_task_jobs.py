"""Who may see a job: the XCom that names it proves nothing."""

from typing import Any

import pytest

from edl_workflows.airflow.hooks.task_object import TaskObject
from edl_workflows.airflow.tab.document import TaskReference
from edl_workflows.airflow.tab.task_jobs import TaskWork, dag_of_job
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION, StageIdentity

TARGET = TaskObject(kind="ElasticJob", namespace="team", name="mnist")
DERIVED = StageIdentity(owner="airflow/dag/run/train/-1").name("job")


def work(**arguments: Any) -> TaskWork:
    """What the task ``train`` of a run says that it works on."""
    return TaskWork("dag", "run", TaskReference(task_id="train"), TARGET, arguments)


def job(name: str, owner: str) -> dict[str, Any]:
    """A job with an owner."""
    return {"metadata": {"name": name, "annotations": {OWNER_ANNOTATION: owner} if owner else {}}}


@pytest.mark.parametrize(
    ("found", "name", "arguments", "expected"),
    [
        (job("mnist", "airflow/dag/run/train/-1"), "mnist", {}, "dag"),
        (job("mnist", "airflow/other/run/train/-1"), "mnist", {"name": "mnist"}, "other"),
        (job("mnist", "airflow@other/dag/run/train/-1"), "mnist", {}, None),
        (job("mnist", "cli/ann@host/1"), "mnist", {}, None),
        (job("mnist", ""), "mnist", {}, None),
        (job("mnist", ""), "mnist", {"name": "mnist"}, "dag"),
        (job("mnist", ""), "mnist", {"name": "mnist-2"}, None),
        (None, "mnist", {"manifest": {"metadata": {"name": "mnist"}}}, "dag"),
        (None, "mnist", {"manifest": {"metadata": {"name": "mnist-2"}, "mnist": "mnist"}}, None),
        (None, "mnist", {"manifest": "metadata:\n  name: mnist\n", "name": "mnist"}, None),
        (None, "mnist", {"name": "mnist"}, None),
        (None, "mnist", {}, None),
        (None, DERIVED, {}, "dag"),
    ],
    ids=[
        "own", "another DAG's", "another Airflow's", "a person's", "nobody's", "named by the task",
        "another is named", "deleted, its manifest", "deleted, another manifest", "deleted, text",
        "deleted, only named", "deleted, unknown", "deleted, name of this task",
    ],
)  # fmt: skip
def test_the_rights_of_which_dag_hold(
    found: dict[str, Any] | None, name: str, arguments: dict[str, Any], expected: str | None
) -> None:
    """The rights on the DAG that created the job apply. A job that no DAG created must be named by the task;
    one that was deleted must be that of the task's manifest, because another DAG may have created it."""
    assert dag_of_job(found, name, work(**arguments), "airflow", "team") == expected


@pytest.mark.parametrize("found", [job("mnist", ""), None], ids=["there", "deleted"])
@pytest.mark.parametrize(
    ("arguments", "expected"),
    [({}, None), ({"namespace": "other"}, None), ({"namespace": "team"}, "dag")],
    ids=["the connection's namespace", "another one is named", "it is named"],
)
def test_an_xcom_cannot_choose_the_namespace(
    found: dict[str, Any] | None, arguments: dict[str, Any], expected: str | None
) -> None:
    """A job in a namespace in which the task does not work is not shown, even if the connection could read
    it."""
    given = work(name="mnist", manifest={"metadata": {"name": "mnist"}}, **arguments)

    assert dag_of_job(found, "mnist", given, "airflow", "connections") == expected


@pytest.mark.parametrize(
    "value",
    [
        None,
        3,
        [],
        {},
        {"kind": [], "namespace": "n", "name": "x"},
        {"kind": "k" * 999, "namespace": "", "name": ""},
    ],
)
def test_an_xcom_that_somebody_else_wrote_is_no_object(value: object) -> None:
    """An XCom that another program wrote is not taken for an object, whatever its value is."""
    assert TaskObject.read(value) is None
