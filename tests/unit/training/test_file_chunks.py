"""The checksums of the chunks of a large file: checked in several threads, and as strict as that of the whole
file."""

import json
import os
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.checkpoints import manifest
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import MANIFEST, Manifest, verify_checkpoint

CHUNK = 2**20
CONTENT = os.urandom(3 * CHUNK + 5)


@pytest.fixture
def checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkpoint with a file of four chunks, a file of one, and an empty one."""
    monkeypatch.setattr(manifest, "CHUNK_BYTES", CHUNK)

    def write(folder: Path) -> None:
        (folder / "large").write_bytes(CONTENT)
        (folder / "small").write_bytes(b"small")
        (folder / "empty").touch()

    return Path(CheckpointStore(tmp_path).publish(1, write).uri)


def test_only_a_large_file_has_chunks(checkpoint: Path) -> None:
    """The sums of the chunks are beside the entries of the files, which have the fields that older versions
    know. The checkpoint is complete also without them, as a version before this one writes it."""
    content = json.loads((checkpoint / MANIFEST).read_text())
    assert {name: len(chunks["sha256"]) for name, chunks in content["chunks"].items()} == {"large": 4}
    assert all(entry.keys() == {"size", "sha256"} for entry in content["files"].values())
    assert verify_checkpoint(checkpoint).step == 1

    del content["chunks"]
    (checkpoint / MANIFEST).write_text(json.dumps(content))
    assert verify_checkpoint(checkpoint).step == 1
    _flip(checkpoint / "large", 2 * CHUNK)
    with pytest.raises(CheckpointError, match="large: changed"):
        verify_checkpoint(checkpoint)


def _flip(file: Path, index: int) -> None:
    content = bytearray(file.read_bytes())
    content[index] ^= 1
    file.write_bytes(content)


@pytest.mark.parametrize("index", [0, CHUNK - 1, CHUNK, 3 * CHUNK, len(CONTENT) - 1])
def test_a_changed_bit_is_seen_in_each_chunk(checkpoint: Path, index: int) -> None:
    """At the begin and at the end of chunks, also of the last one, which is shorter."""
    _flip(checkpoint / "large", index)

    with pytest.raises(CheckpointError, match="large: changed: its SHA-256 is not the manifest's"):
        verify_checkpoint(checkpoint)


@pytest.mark.parametrize("size", [0, CHUNK, 3 * CHUNK, len(CONTENT) + 1])
def test_a_file_of_another_size_is_torn(checkpoint: Path, size: int) -> None:
    """Also if it ends where a chunk does."""
    (checkpoint / "large").write_bytes((CONTENT + b"x")[:size])

    with pytest.raises(CheckpointError, match=f"large: torn: {size} bytes"):
        verify_checkpoint(checkpoint)


def test_chunks_that_do_not_cover_the_file(checkpoint: Path) -> None:
    """A manifest that lacks the sum of a chunk is damaged: the chunk would not be checked."""
    content = json.loads((checkpoint / MANIFEST).read_text())
    content["chunks"]["large"]["sha256"].pop()
    (checkpoint / MANIFEST).write_text(json.dumps(content))

    with pytest.raises(CheckpointError, match="the manifest is damaged: it has 3 sums of 4 chunks"):
        verify_checkpoint(checkpoint)


def test_the_sums_are_those_of_the_chunks_only(checkpoint: Path) -> None:
    """A file with chunks is read once: the sum of the whole file is not computed again."""
    content = Manifest.model_validate_json((checkpoint / MANIFEST).read_text())
    files = {name: entry.model_copy(update={"sha256": "0" * 64}) for name, entry in content.files.items()}
    large = content.model_copy(update={"files": content.files | {"large": files["large"]}})
    (checkpoint / MANIFEST).write_text(large.model_dump_json())

    assert verify_checkpoint(checkpoint).step == 1
