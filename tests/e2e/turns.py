"""What the members of a job of `tests.e2e.torch_survivor` have noted of their turns."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

from tests.clients.environments import python_environment

SECONDS = 600.0
RECORDS, BATCH_SIZE, MOST = 1024, 16, 4
STEPS_PER_EPOCH = RECORDS // (BATCH_SIZE * MOST)
Turn = tuple[float, int, int, bool, int, float, float]
"""Unix seconds, version, members, whether the step was made, step, loss, seconds of rest that follow."""


class Turns:
    """What the members have noted.

    Args:
        folder: of the job.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def processes(self, node: str = "worker-*") -> list[int]:
        """Ids of the training processes of nodes."""
        return [int(file.name.rpartition("-")[2]) for file in self._folder.glob(f"turns-{node}-*")]

    def of(self, process: int) -> list[Turn]:
        """A process's turns."""
        (file,) = self._folder.glob(f"turns-*-{process}")
        lines = [line for line in file.read_text().splitlines() if line.endswith("]")]
        return [tuple(json.loads(line)) for line in lines]

    def began(self, process: int) -> float:
        """When a process began to note its turns."""
        turns = self.of(process)
        return turns[0][0] if turns else 0.0

    def reached_end(self, process: int) -> bool:
        """Whether a process trained to the end."""
        (file,) = self._folder.glob(f"turns-*-{process}")
        return '"seen"' in file.read_text()

    def losses(self) -> dict[int, float]:
        """Loss of each step; of one that several processes made, any."""
        turns = [turn for process in self.processes() for turn in self.of(process)]
        return {step: loss for _, _, _, made, step, loss, _ in turns if made}

    def seen(self) -> list[list[float]]:
        """How often each record was trained, as each member says that reached the end."""
        texts = [file.read_text() for file in self._folder.glob("turns-*")]
        return [json.loads(text.splitlines()[-1])["seen"] for text in texts if '"seen"' in text]


def torch_python() -> Path:
    """An interpreter that has PyTorch: this one, or that of an environment."""
    return Path(sys.executable) if find_spec("torch") else python_environment("torch")


def command(folder: Path, epochs: int, *options: str) -> list[str]:
    """The training program."""
    program = [str(torch_python()), "-m", "tests.e2e.torch_survivor", str(folder)]
    return [*program, "--epochs", str(epochs), *options]


def undisturbed(folder: Path, epochs: int) -> dict[int, float]:
    """The loss of each step of a training that nobody disturbs."""
    subprocess.run(command(folder, epochs, "--alone"), check=True, timeout=SECONDS)
    return {int(step): loss for step, loss in json.loads((folder / "alone").read_text()).items()}
