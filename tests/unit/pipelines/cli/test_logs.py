"""The log lines of long-running commands."""

import json
import threading
from collections.abc import Iterator

import pytest
import structlog

from edl_workflows.pipelines.cli.jobs import run
from edl_workflows.pipelines.cli.options import ClusterFlags, LogFormat, configure_logs
from edl_workflows.pipelines.client import places
from edl_workflows.runtime.kube.connect import Cluster


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    """Restore the logging of the process."""
    before = structlog.get_config()
    yield
    structlog.configure(**before)


def test_every_line_says_whose_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """Every log line, from whichever thread, names job and pod of the process."""
    configure_logs(LogFormat.JSON, verbose=False, whose={"job": "digits", "pod": "master-0"})
    thread = threading.Thread(target=lambda: structlog.get_logger("x").warning("restart", cause="Killed"))
    thread.start()
    thread.join()
    line = json.loads(capsys.readouterr().err)
    expected = {"event": "restart", "cause": "Killed", "level": "warning", "job": "digits", "pod": "master-0"}
    assert line.items() >= expected.items()


@pytest.mark.parametrize("on", list(run.PlaceName))
def test_log_lines_of_a_command_go_to_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], on: run.PlaceName
) -> None:
    """Lines such as those about repeated API calls don't mix with a command's output on stdout."""
    cluster = Cluster.from_api_client(None)
    monkeypatch.setattr(Cluster, "connect", lambda *_: cluster)
    monkeypatch.setattr(places, "open_place", lambda *_: places.Place(cluster))

    run._open(on, ClusterFlags())
    structlog.get_logger("x").warning("stamina.retry_scheduled")

    captured = capsys.readouterr()
    assert "stamina.retry_scheduled" in captured.err
    assert not captured.out
