"""A checkpoint in parts: several processes save it together, each its own part.

Each part is a file in safetensors format (`edl_workflows.training.checkpoints.tensors`). PyTorch's
``HuggingFaceStorageReader`` can read the parts: their names and metadata are as it expects.
"""

import hashlib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.message import describe_problems
from edl_workflows.training.checkpoints.manifest import FileEntry, Manifest

STATE_FILE = "state.safetensors"
"""The only file of a checkpoint that was saved in two stages by a single process."""
_STATE_FILES = re.compile(r"^state(-[0-9]{5,}-of-[0-9]{5,})?\.safetensors$")


@dataclass(frozen=True)
class Part:
    """The part of a checkpoint that a process saves, if several processes save the checkpoint together.

    Attributes:
        index: index of the part, from 0. The process that saves part 0 is the chief.
        count: number of parts.
    """

    index: int
    count: int

    @property
    def file(self) -> str:
        """Name of the part's file."""
        if self.count == 1:
            return STATE_FILE
        return f"state-{self.index + 1:05d}-of-{self.count:05d}.safetensors"


WHOLE = Part(0, 1)
"""A checkpoint that one process saves."""


def list_parts(count: int) -> list[Part]:
    """All parts of a checkpoint in `count` parts."""
    return [Part(index, count) for index in range(count)]


def state_files(manifest: Manifest) -> list[str]:
    """The files of a checkpoint's state, by part."""
    return sorted(name for name in manifest.files if _STATE_FILES.match(name))


def entry_file(part: Part) -> str:
    """Name of the file whose presence shows that a part is complete. It holds the part's manifest entry."""
    return f"{part.file}.json"


def find_missing_parts(sizes: Mapping[str, int], count: int) -> tuple[list[int], int]:
    """Find the parts of a checkpoint that are not complete yet.

    Args:
        sizes: size in bytes of each file in the checkpoint's folder, by name.
        count: number of parts.

    Returns:
        The indices of the missing parts, and the total size of all files. If the total grows from call to
        call, a part is being written.
    """
    missing = [part.index for part in list_parts(count) if entry_file(part) not in sizes]
    return missing, sum(sizes.values())


def read_entries(parts: Iterable[Part], read: Callable[[str], bytes]) -> dict[str, FileEntry]:
    """The manifest entries of the parts' files, by name of the file.

    Args:
        parts: all parts of the checkpoint.
        read: returns the content of a file of the checkpoint's folder.

    Raises:
        CheckpointError: an entry is damaged. Exceptions of `read` propagate.
    """
    return {part.file: _parse_entry(read(entry_file(part)), part) for part in parts}


def _parse_entry(content: bytes, part: Part) -> FileEntry:
    try:
        return FileEntry.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointError(f"{entry_file(part)}: is damaged: {describe_problems(error)[0]}") from error


def shared_checkpoint_name(step: int, job: str, version: int) -> str:
    """The name that all members of a cluster version give to their checkpoint of a step, without asking each
    other. Within a version a step has only one data position, so the name always means the same state.

    Args:
        step: global step.
        job: identifies the job.
        version: cluster version.
    """
    return f"checkpoint-{step:012d}-{hashlib.sha256(f'{job} {version}'.encode()).hexdigest()[:8]}"
