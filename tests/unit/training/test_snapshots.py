"""Copies in shared memory: whole or not there, and the newest is never written over."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints.checkpoints import checkpoint_name
from edl_workflows.training.checkpoints.slot_memory import NoMemoryError
from edl_workflows.training.checkpoints.snapshots import (
    ABANDONED_SECONDS,
    ModelSnapshot,
    SnapshotFolder,
    SnapshotStage,
    claim_folder,
    node_folder,
)


def copied(folder: SnapshotFolder, content: bytes, step: int = 1, **fields: object) -> ModelSnapshot | None:
    """A copy with this content; None if its slot is being read."""
    with folder.writing(len(content)) as draft:
        if draft is None:
            return None
        draft.bytes[:] = content
        snapshot = ModelSnapshot.model_validate(
            {
                "number": draft.number,
                "ticket": f"ticket-{draft.number}",
                "version": 1,
                "step": step,
                "size": len(content),
                "place": str(folder.folder / "store"),
                "name": checkpoint_name(step),
                "keep": 3,
                **fields,
            }
        )
        draft.commit(snapshot)
    return snapshot


def content(folder: SnapshotFolder, number: int) -> bytes | None:
    """What a copy holds."""
    with folder.reading(number) as block:
        return None if block is None else bytes(block)


@pytest.fixture
def folder(tmp_path: Path) -> SnapshotFolder:
    """A node's folder."""
    return claim_folder(tmp_path / "edl-node")


def test_two_copies_stay_and_the_third_replaces_the_first(folder: SnapshotFolder) -> None:
    """Each copy has the next number. Readers find the two newest ones, whatever their sizes."""
    assert folder.newest is None
    for number, text in enumerate((b"one", b"two-longer", b"3"), 1):
        made = copied(folder, text, persist=False)
        assert made is not None
        assert made.number == number

    assert [snapshot.number for snapshot in folder.whole()] == [2, 3]
    assert content(folder, 1) is None
    assert content(folder, 2) == b"two-longer"
    assert content(folder, 3) == b"3"


DIES = """
import os, sys
from pathlib import Path
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder
folder = SnapshotFolder(Path(sys.argv[1]))
with folder.writing(8) as draft:
    draft.bytes[:4] = b"torn"
    os.kill(os.getpid(), 9)
"""


def test_process_killed_while_it_copies_leaves_the_copy_before(folder: SnapshotFolder) -> None:
    """If a process is killed while it copies, its partial copy does not count, the previous copy stays, and
    the slot can be written again at once."""
    copied(folder, b"older", persist=False)
    copied(folder, b"newest", persist=False)
    assert subprocess.run([sys.executable, "-c", DIES, str(folder.folder)]).returncode == -9

    assert [snapshot.number for snapshot in folder.whole()] == [2]
    assert content(folder, 2) == b"newest"
    assert copied(folder, b"next") is not None
    assert content(folder, 2) == b"newest"


def is_busy(folder: SnapshotFolder) -> bool:
    return folder.busy


def test_slot_that_is_read_is_not_written(folder: SnapshotFolder) -> None:
    """While a copy is read, its slot is not written, and the writer is told to wait."""
    copied(folder, b"older", persist=False)
    copied(folder, b"newest", persist=False)
    with folder.reading(1) as block, folder.reading(1) as again:
        assert block is not None
        assert again is not None
        assert is_busy(folder)
        assert copied(folder, b"next") is None
        assert bytes(block) == b"older"
    assert not is_busy(folder)
    assert copied(folder, b"next") is not None


def test_outcome_is_noted_in_the_header(folder: SnapshotFolder) -> None:
    """The header of a copy says what became of it, and the training process reads that."""
    copied(folder, b"x")
    with folder.reading(1):
        folder.settle(1, SnapshotStage.FAILED, "disk full")
    newest = folder.newest
    assert newest is not None
    assert (newest.stage, newest.error) == (SnapshotStage.FAILED, "disk full")


def _cut(header: Path) -> None:
    header.write_bytes(header.read_bytes()[:-5])


def _lie(header: Path) -> None:
    header.write_text(header.read_text().replace('"version":1', '"version":-1'))


def _climb(header: Path) -> None:
    header.write_text(header.read_text().replace('"checkpoint-', '"../checkpoint-'))


def _halve(header: Path) -> None:
    os.truncate(header.with_suffix(""), 0)


@pytest.mark.parametrize("damage", [_cut, _lie, _climb, _halve, Path.unlink])
def test_damaged_header_is_no_copy(folder: SnapshotFolder, damage: Callable[[Path], object]) -> None:
    """A copy counts only with an intact header and with as many bytes as the header says."""
    copied(folder, b"x")
    damage(folder.folder / "slot-0.json")
    assert folder.whole() == []


def test_too_little_memory_is_said_before_a_byte_is_written(folder: SnapshotFolder) -> None:
    """Too little shared memory raises NoMemoryError before anything is written, instead of a signal in the
    middle of the copy."""
    with pytest.raises(NoMemoryError, match=r"shared memory has no .* MiB left"), folder.writing(2**60):
        pytest.fail("there was room")
    with pytest.raises(NoMemoryError):
        folder.reserve(2**60)


def test_node_has_one_agent(tmp_path: Path, folder: SnapshotFolder) -> None:
    """A second agent of a node is rejected, since both would persist everything. An agent that was restarted
    takes over the copies."""
    with pytest.raises(CheckpointError, match="another agent uses it"):
        claim_folder(folder.folder)
    other = node_folder(tmp_path, "uid", "worker", 3)
    script = (
        "import sys; from pathlib import Path; "
        "from edl_workflows.training.checkpoints.snapshots import claim_folder as t; "
        "t(Path(sys.argv[1]))"
    )
    assert subprocess.run([sys.executable, "-c", script, str(other)]).returncode == 0
    (other / "slot-0").write_text("left behind")
    claim_folder(other)
    assert (other / "slot-0").read_text() == "left behind"


def test_folder_of_somebody_else_is_not_used(tmp_path: Path) -> None:
    """A link, or a folder that other users may write to, is rejected: they could read the model or forge a
    header."""
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open")
    for name in ("open", "link"):
        with pytest.raises(CheckpointError, match="belongs to another user"):
            claim_folder(tmp_path / name)


def test_abandoned_folders_are_removed(tmp_path: Path, folder: SnapshotFolder) -> None:
    """Folders of killed agents are removed after a while; young folders, folders in use, and those of other
    programs stay."""
    old = time.time() - ABANDONED_SECONDS - 1
    for name in ("edl-old", "edl-young", "edl-volume"):
        (tmp_path / name).mkdir()
        if name != "edl-volume":  # of somebody who names his likewise, as the embedded cluster its volumes
            (tmp_path / name / "agent.lock").touch()
        os.utime(tmp_path / name, (old, old))
    os.utime(tmp_path / "edl-young")
    os.utime(folder.folder, (old, old))

    claim_folder(tmp_path / "edl-another")
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"edl-young", "edl-node", "edl-another", "edl-volume"}
    shutil.rmtree(tmp_path / "edl-young")


def test_copy_that_is_to_be_persisted_is_not_written_over(folder: SnapshotFolder) -> None:
    """A copy that is to be persisted is not overwritten until the agent has written it to storage."""
    copied(folder, b"asked for")
    copied(folder, b"newest", persist=False)
    assert is_busy(folder)
    assert copied(folder, b"next", persist=False) is None
    with folder.reading(1):
        folder.settle(1, SnapshotStage.SAVED)
    assert not is_busy(folder)
    assert copied(folder, b"next", persist=False) is not None


FORKS = """
import os, sys
from pathlib import Path
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder
folder = SnapshotFolder(Path(sys.argv[1]))
answer, question = os.pipe()
with folder.writing(8):
    child = os.fork()
    if not child:
        os.read(answer, 1)
        os._exit(0)
print(folder.busy)
os.write(question, b"x")
os.waitpid(child, 0)
"""


def test_process_that_is_forked_meanwhile_does_not_keep_the_slot(folder: SnapshotFolder) -> None:
    """A process that was forked during a copy, such as a reader of data, does not keep the slot locked."""
    command = [sys.executable, "-c", FORKS, str(folder.folder)]
    assert subprocess.run(command, capture_output=True, timeout=240).stdout == b"False\n"


FULL = """
import resource, sys
from pathlib import Path
from edl_workflows.training.checkpoints.snapshots import SnapshotFolder, SnapshotStage
folder = SnapshotFolder(Path(sys.argv[1]))
resource.setrlimit(resource.RLIMIT_FSIZE, (16, 2**20))
with folder.reading(1):
    folder.settle(1, SnapshotStage.SAVED)
print(folder.whole())
"""


def test_outcome_that_can_not_be_noted_gives_the_copy_up(folder: SnapshotFolder) -> None:
    """If shared memory is completely full, the header can't be updated. The copy is then given up, so that
    the header does not keep saying that it is to be persisted."""
    copied(folder, b"x")
    run = subprocess.run([sys.executable, "-c", FULL, str(folder.folder)], capture_output=True, timeout=240)
    assert run.stdout == b"[]\n", run.stderr
    assert not list(folder.folder.glob("*.new"))
