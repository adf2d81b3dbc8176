"""Where the link *Elastic job* leads."""

from types import SimpleNamespace
from typing import Any

import pytest

from edl_workflows.airflow.links import ElasticJobLink

KEY: Any = SimpleNamespace(
    dag_id="a.dag", run_id="manual__2026-01-01T00:00:00+00:00", task_id="group.train", map_index=-1
)
TAB = "https://air.example/x/dags/a.dag/runs/manual__2026-01-01T00%3A00%3A00%2B00%3A00/tasks/group.train"


@pytest.mark.parametrize(
    ("base_url", "map_index", "dashboard", "expected"),
    [
        ("https://air.example/x/", -1, "", f"{TAB}/plugin/elastic-job"),
        ("https://air.example/x", 3, "", f"{TAB}/mapped/3/plugin/elastic-job"),
        ("https://air.example/x", -1, "https://dash.example/job", "https://dash.example/job"),
        ("", -1, "", ""),
        ("air.example", -1, "", ""),
    ],
    ids=["task", "mapped task", "dashboard", "no base URL", "no URL"],
)
def test_the_link_is_a_url_or_there_is_none(
    monkeypatch: pytest.MonkeyPatch, base_url: str, map_index: int, dashboard: str, expected: str
) -> None:
    """The link is the connection's dashboard, or else the task's tab. A value that is not a URL gives no
    link."""
    monkeypatch.setenv("AIRFLOW__API__BASE_URL", base_url)
    key: Any = SimpleNamespace(**{**vars(KEY), "map_index": map_index})

    assert ElasticJobLink().get_link(SimpleNamespace(link=dashboard), ti_key=key) == expected


def test_airflow_before_3_1_has_no_tabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before Airflow 3.1 there are no tabs, so there is no link to one."""
    from airflow.plugins_manager import AirflowPlugin

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://air.example")
    for owner in AirflowPlugin.__mro__:
        if "react_apps" in vars(owner):
            monkeypatch.delattr(owner, "react_apps")

    assert ElasticJobLink().get_link(SimpleNamespace(link=""), ti_key=KEY) == ""
