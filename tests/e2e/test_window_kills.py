"""Masters are killed while acknowledgements are not stored yet; ``make window-kills`` kills as many as are
wanted."""

from pathlib import Path

import pytest

from tests.e2e.window_kills import TOGETHER, WindowJob, draw
from tests.e2e.window_master import Point

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(3600)]

SEED = 1
POINTS = len(Point) - 1
"""All but `Point.NEVER`: of so many kills in a row that no worker shares, each is at another point."""


def test_masters_die_alone_at_every_point(tmp_path: Path) -> None:
    """However often masters die, before or after an answer or in a snapshot's write, the workers bring the
    next one what was not stored: each record is trained exactly once."""
    kills = [draw(SEED, number, together=0) for number in range(1, POINTS + 1)]
    outcome = WindowJob(tmp_path, kills).run()
    print(outcome)
    assert len({kill.point for kill in kills}) == POINTS
    assert (outcome.lost, outcome.repeated) == (0, 0)


def test_masters_and_workers_die_together(tmp_path: Path) -> None:
    """If a worker dies with its master, no record is lost, and at most those are trained again that the
    worker had trained and the last snapshot does not have."""
    outcome = WindowJob(tmp_path, [draw(SEED, number, together=1) for number in range(1, 9)]).run()
    print(outcome)
    assert outcome.lost == 0
    assert 0 < outcome.repeated <= outcome.unstored


@pytest.mark.long
def test_many_masters_die(tmp_path: Path) -> None:
    """The same for 200 masters, of which every third dies together with a worker."""
    outcome = WindowJob(tmp_path, [draw(SEED, number, TOGETHER) for number in range(1, 201)]).run()
    print(outcome)
    assert outcome.lost == 0
    assert outcome.repeated <= outcome.unstored
