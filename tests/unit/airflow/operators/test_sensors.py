"""The time limits of a sensor, and one that is killed."""

from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, PokeReturnValue

from edl_workflows.airflow.hooks.airflow_versions import AirflowSensorTimeout, AirflowTaskTimeout
from edl_workflows.sensors.elastic_job import ElasticJobSensor

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

BEGUN = timedelta(minutes=2)
"""How long ago a rescheduled sensor poked for the first time."""


def sensor(**options: Any) -> Any:
    """A sensor that may wait for an hour; Airflow limits an execution to a minute."""
    with DAG("sensors", schedule=None):
        return ElasticJobSensor(
            task_id="wait", name="j", timeout=3600, execution_timeout=timedelta(minutes=1), **options
        )


def context() -> Any:
    """Of a later poke."""
    first = datetime.now(UTC) - BEGUN
    ti = SimpleNamespace(
        get_first_reschedule_date=lambda _context: first, start_date=first, try_number=1, max_tries=2
    )
    return {"ti": ti}


def test_a_rescheduled_sensor_waits_for_its_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow limits each poke of a rescheduled sensor by `execution_timeout`, not the whole wait."""
    wait = sensor(mode="reschedule", deferrable=False)
    monkeypatch.setattr(wait, "poke", lambda _context: PokeReturnValue(False))

    with pytest.raises(Exception, match=r"^$") as raised:
        wait.execute(context())

    assert type(raised.value).__name__ == "AirflowRescheduleException"
    assert wait.timeout == 3600


@pytest.mark.parametrize(
    ("mode", "expected"), [("poke", AirflowSensorTimeout), ("reschedule", AirflowTaskTimeout)]
)
def test_a_poke_that_hangs(mode: str, expected: type[BaseException], monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's alarm ends a wait for good, but only one poke of a rescheduled sensor, which is retried."""
    wait = sensor(mode=mode, deferrable=False)

    def hang(_context: Any) -> Any:
        raise AirflowTaskTimeout

    monkeypatch.setattr(wait, "poke", hang)

    with pytest.raises(expected):
        wait.execute(context())


def test_a_sensor_killed_before_its_stage_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends what its run leaves behind as soon as it knows the cluster's namespace."""
    wait, done = sensor(), []

    def begin(_context: Any) -> Any:
        wait.on_kill()
        wait._handle = SimpleNamespace()
        return wait._handle

    monkeypatch.setattr(wait, "begin", begin)
    monkeypatch.setattr(wait, "_cancel_if_killed", lambda: done.append(wait._handle))
    monkeypatch.setattr("edl_workflows.pipelines.stages.driver.GoalWait", SimpleNamespace)

    with pytest.raises(TypeError):
        wait._begin_wait(context())

    assert done == [wait._handle]
