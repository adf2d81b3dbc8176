"""A disk, and a shared memory, without room: said in words, never half a checkpoint. The limit is the
kernel's own."""

import subprocess
import sys
from pathlib import Path

import pytest

from edl_workflows.training.checkpoints.checkpoints import CheckpointStore

LIMITED = """
import resource, sys
from pathlib import Path
resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))

import numpy as np
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder
from edl_workflows.training.checkpoints.tensors import State, TensorSpec, save
from edl_workflows.training.checkpoints.two_stages import FirstStage, TwoStages
from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.training import CheckpointTicket

folder, size = Path(sys.argv[2]), 2**22
store = CheckpointStore(folder)
state = lambda: State.of(7, {"w": np.zeros(size, np.uint8)})

def direct():
    store.publish(7, lambda path: save(path, state()))

def staged():
    first = FirstStage(TwoStages(state, store), SnapshotFolder(Path(sys.argv[3])), 1)
    first.save(CheckpointTicket(id="t"), persist=True, wait=True)

def remote():
    open_store(f"local://{folder}").publish(7, lambda path: save(path, state()))

def header():
    # The copy fits into shared memory, but not its header.
    limits = iter([16, 2**20])

    def fill(_):
        resource.setrlimit(resource.RLIMIT_FSIZE, (next(limits), 2**20))

    state = State(7, {"w": TensorSpec(np.dtype("u1"), (9,))}, fill)
    first = FirstStage(TwoStages(lambda: state, store), SnapshotFolder(Path(sys.argv[3])), 1)
    first.save(CheckpointTicket(id="t"), persist=True, wait=True)

def small():
    global size
    size = 2**10
    direct()

try:
    {"direct": direct, "staged": staged, "remote": remote, "header": header, "small": small}[sys.argv[1]]()
    print("saved")
except CheckpointError as error:
    print("refused:", error)
"""


def limited(way: str, folder: Path) -> str:
    """What saving says where no file may have more than 1 MiB."""
    memory = folder.parent / "memory"
    memory.mkdir()
    command = [sys.executable, "-c", LIMITED, way, str(folder), str(memory)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert run.returncode == 0, run.stderr
    return run.stdout


@pytest.mark.parametrize("way", ["direct", "staged", "remote"])
def test_full_disk_is_an_error_and_leaves_nothing(way: str, tmp_path: Path) -> None:
    """A full disk gives an error with the step and what to do, no signal ends the process, and no partial
    file stays. If shared memory is full, too, the state is written to storage directly."""
    said = limited(way, tmp_path / "checkpoints")
    assert said.startswith("refused:"), said
    assert "the checkpoint of step 7 can't be written: [Errno 27]" in said
    assert "make room" in said
    assert not list((tmp_path / "checkpoints").glob("*"))


def test_what_fits_is_saved(tmp_path: Path) -> None:
    """A checkpoint below the limit of file sizes is saved, so it is the limit that fails the other saves."""
    assert limited("small", tmp_path / "checkpoints") == "saved\n"


def test_without_room_for_a_header_the_process_saves_itself(tmp_path: Path) -> None:
    """If shared memory has room for a copy but not for its header, the training process saves to storage
    itself."""
    assert limited("header", tmp_path / "checkpoints") == "saved\n"
    assert CheckpointStore(tmp_path / "checkpoints").newest() is not None
    assert not [path.name for path in (tmp_path / "memory").iterdir() if path.suffix]
