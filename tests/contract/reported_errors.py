"""The error that a command line prints or an operator raises."""

import json
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowException

from edl_workflows.operators.base import StageOperator


def one_line(stderr: str) -> str:
    """The error of a command; fails if there is more than one line of it, or a traceback."""
    lines = stderr.strip().splitlines()
    assert len(lines) == 1, stderr
    assert lines[0].startswith("edl: ")
    return lines[0]


@dataclass
class Context:
    """What an operator needs of Airflow's: its task instance and the task state store."""

    stored: dict[str, Any] = field(default_factory=dict)

    def for_execute(self) -> Any:
        """The context of a first and last attempt."""
        store = SimpleNamespace(get=self.stored.get, set=self.stored.__setitem__)
        ti = SimpleNamespace(
            xcom_push=lambda _key, _value: None,
            dag_id="dag",
            run_id="run",
            task_id="task",
            map_index=-1,
            try_number=1,
            max_tries=0,
            start_date=None,
        )
        return {"ti": ti, "task_state_store": store, "outlet_events": {}}


def connection(monkeypatch: pytest.MonkeyPatch, **extra: Any) -> None:
    """Airflow's default connection."""
    text = json.dumps({"conn_type": "kubernetes", "extra": extra})
    monkeypatch.setenv("AIRFLOW_CONN_KUBERNETES_DEFAULT", text)


def executed(operator: StageOperator) -> AirflowException:
    """What an operator raises."""
    with pytest.raises(AirflowException) as raised:
        operator.execute(Context().for_execute())
    return raised.value
