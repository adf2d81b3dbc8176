"""The log lines of long-running commands."""

import json
import threading
from collections.abc import Iterator

import pytest
import structlog

from edl_workflows.pipelines.cli.options import LogFormat, configure_logs


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
