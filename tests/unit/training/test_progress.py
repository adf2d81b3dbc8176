"""Progress of a training loop that is otherwise left as it is."""

import math
from collections.abc import Iterator

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import ProcessReport
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.training import progress, telemetry
from edl_workflows.training.telemetry import _reporters
from tests.unit.training.fake_master import FakeMaster, eventually


@pytest.fixture
def _in_job(pod_env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The environment of worker 0."""
    for name, value in {**pod_env, names.ENV_CLUSTER_VERSION: "1"}.items():
        monkeypatch.setenv(name, value)
    yield
    for reporter in _reporters.values():
        reporter.close()
    _reporters.clear()


@pytest.mark.usefixtures("_in_job")
def test_one_line_gives_progress_and_metrics(master: FakeMaster) -> None:
    """The newest step, its loss and the newest value of each metric arrive. The process does not connect, so
    that the job does not wait for it between two steps."""
    progress(1, loss=0.9, accuracy=0.5)
    progress(2, loss=0.8)
    progress(3, loss=math.nan, rate=math.inf)
    (report,) = eventually(lambda: master.got(StepReport, step=3))
    assert (report.version, report.loss, report.metrics) == (1, None, {"accuracy": 0.5})
    progress(4)
    _reporters.popitem()[1].close()
    assert master.got(StepReport, step=4)
    assert not master.got(ProcessReport)
    with pytest.raises(InvalidError):
        progress(5, **{"a name": 1.0})


@pytest.mark.usefixtures("_in_job")
def test_a_step_that_somebody_waits_for_is_reported_at_once(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not wait for the interval of step reports, also if it was made before the program knew that
    somebody waits for it."""
    master.awaited = 3
    progress(1)
    monkeypatch.setattr(telemetry, "STEP_SECONDS", 3600.0)
    eventually(lambda: master.got(StepReport, step=1))
    master.awaited = 4
    progress(3)
    progress(4)
    eventually(lambda: master.got(StepReport, step=4))


@pytest.mark.usefixtures("_in_job")
@pytest.mark.parametrize(
    ("name", "value"), [(names.ENV_NODE_TYPE, "ps"), (names.ENV_LOCAL_RANK, "1"), (names.ENV_NODE_TYPE, "")]
)
def test_who_reports_nothing(
    master: FakeMaster, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """Parameter servers, further processes of a pod, and programs outside of a job report nothing."""
    monkeypatch.setenv(name, value)
    progress(1)
    assert not _reporters
    assert not master.got(StepReport)
