"""Pictures of runs."""

from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.simulator import paddle, pictures
from edl_workflows.simulator.cluster import SimulationRun, SimulationSettings, simulate
from edl_workflows.simulator.paddle import PaddleCase
from tests.unit.simulator.builders import always, application, job

N0 = "node-000"


def run() -> SimulationRun:
    """Two jobs, one of which waits forever."""
    settings = SimulationSettings(nodes=1, horizon=600)
    return simulate([job("a"), job("b")], {"digits": application()}, always(a=[N0, N0]), settings)


def test_pictures_of_a_run(tmp_path: Path) -> None:
    """Each file has the format that its suffix says."""
    pictures.draw_utilisation({"fit": run(), "pollux": run()}, "w", tmp_path / "use.svg")
    pictures.draw_completion({"fit": [run()], "pollux": [run(), run()]}, "w", tmp_path / "completion.svg")
    pictures.draw_jobs(run(), "w", tmp_path / "jobs.png")

    assert "<svg" in (tmp_path / "use.svg").read_text()
    assert "<svg" in (tmp_path / "completion.svg").read_text()
    assert (tmp_path / "jobs.png").read_bytes().startswith(b"\x89PNG")


def test_picture_of_paddles_experiment(tmp_path: Path) -> None:
    """The outcomes of both cases are drawn to an SVG file."""
    outcomes = {
        "autoscaled": paddle.run_case(PaddleCase(1, None, seconds=5)),
        "fixed": paddle.run_case(PaddleCase(1, 2, seconds=5)),
    }
    pictures.draw_paddle(outcomes, "paddle", tmp_path / "paddle.svg")
    assert "<svg" in (tmp_path / "paddle.svg").read_text()


def test_a_run_without_jobs(tmp_path: Path) -> None:
    """There are no completion times to draw; the other pictures have empty axes."""
    empty = SimulationRun([], [], [])
    pictures.draw_jobs(empty, "w", tmp_path / "jobs.svg")
    pictures.draw_utilisation({"fit": empty}, "w", tmp_path / "use.svg")
    with pytest.raises(InvalidError, match="nothing to draw"):
        pictures.draw_completion({"fit": [empty]}, "w", tmp_path / "completion.svg")


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    """A folder that does not exist gives a message, not a traceback."""
    with pytest.raises(InvalidError, match="can't write"):
        pictures.draw_jobs(run(), "w", tmp_path / "missing" / "jobs.png")
