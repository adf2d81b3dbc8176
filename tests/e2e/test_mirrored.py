"""The TensorFlow adapter of collective jobs as real groups of processes: what a change of members does to
training."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.pods import free_ports

pytestmark = [
    pytest.mark.tensorflow,
    pytest.mark.e2e,
    pytest.mark.slow,
    pytest.mark.long,
    pytest.mark.timeout(600),
]

MEMBER = Path(__file__).parent / "mirrored_member.py"
STEPS = 60
"""Of 90: two epochs, whose last steps are shorter."""
TOLERANCE = 1e-5
"""Of losses in single precision, relative, after so many steps; sums of the same numbers in other orders."""


class Groups:
    """Starts groups, and ends what is left of them.

    Args:
        folder: for their output.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self, size: int, steps: int, state: Path) -> list[subprocess.Popen[bytes]]:
        """A group of so many members, by rank."""
        state.mkdir(exist_ok=True)
        addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
        group = []
        for rank in range(size):
            with self._output(len(self._processes)).open("wb") as output:
                command = [sys.executable, str(MEMBER), str(rank), str(steps), str(state), *addresses]
                group.append(subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT))
                self._processes.append(group[-1])
        return group

    def losses(self, size: int, steps: int, state: Path) -> list[float]:
        """What a group says of its steps, all of its members the same."""
        said = []
        for process in self.start(size, steps, state):
            process.wait(240)
            output = self._output(self._processes.index(process)).read_text()
            assert process.returncode == 0, output[-4000:]
            said.append(json.loads(output.splitlines()[-1]))
        assert all(losses == said[0] for losses in said)
        return list(said[0])

    def output(self, process: subprocess.Popen[bytes]) -> str:
        """What a member has printed."""
        return self._output(self._processes.index(process)).read_text()

    def close(self) -> None:
        """End all."""
        for process in self._processes:
            process.kill()
            process.wait(10)

    def _output(self, number: int) -> Path:
        return self._folder / f"member-{number}.log"


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[Groups]:
    """Groups of this test."""
    made = Groups(tmp_path)
    yield made
    made.close()


def test_loss_curve_of_one_two_and_three_members(groups: Groups, tmp_path: Path) -> None:
    """With one, two or three members, or with one that becomes three and then two, each step has the same
    loss."""
    alone = groups.losses(1, STEPS, tmp_path / "alone")
    for size in (2, 3):
        assert groups.losses(size, STEPS, tmp_path / f"of {size}") == pytest.approx(alone, rel=TOLERANCE)

    parts = [groups.losses(size, STEPS // 3, tmp_path / "changing") for size in (1, 3, 2)]
    assert [loss for part in parts for loss in part] == pytest.approx(alone, rel=TOLERANCE)


@pytest.mark.parametrize("lost", [0, 2], ids=["rank 0", "another"])
def test_lost_member_ends_the_step_of_the_others(lost: int, groups: Groups, tmp_path: Path) -> None:
    """If one member is killed during training, the step of the others soon raises an error that says what
    happened."""
    members = groups.start(3, 1_000_000, tmp_path / "state")
    deadline = time.monotonic() + 240
    while not all("training" in groups.output(member) for member in members):
        assert time.monotonic() < deadline, groups.output(members[0])
        time.sleep(0.1)
    members[lost].kill()
    for rank, member in enumerate(members):
        if rank != lost:
            member.wait(60)
            assert "UnavailableError" in groups.output(member)
