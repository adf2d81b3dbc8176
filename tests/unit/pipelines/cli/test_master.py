"""``edl master run``: where the state is kept is checked before anything is connected."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.services.master import app


@pytest.mark.parametrize(
    ("arguments", "environment", "other"),
    [
        pytest.param(["--standalone"], {}, "--standalone", id="no cluster"),
        pytest.param([], {names.ENV_STATE_DIR: "/state"}, "--state-dir", id="a volume, too"),
    ],
)
def test_the_state_has_one_place(
    arguments: list[str],
    environment: dict[str, str],
    other: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Brain for the state excludes a volume, and a standalone master. The message names options and
    variables."""
    monkeypatch.chdir(tmp_path)
    environment |= {names.ENV_STATE_BRAIN: "http://brain:8082"}
    result = CliRunner().invoke(app, ["run", "--job", "mnist", *arguments], env=environment)
    assert isinstance(result.exception, InvalidError)
    assert str(result.exception).startswith(f"--state-brain ($EDL_STATE_BRAIN) and {other}")
    assert not list(tmp_path.iterdir())
