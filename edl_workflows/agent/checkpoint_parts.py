"""A checkpoint in parts: several processes save one together, each its own part.

Each part is a file in safetensors format (`edl_workflows.agent.tensors`). The names and the metadata of the
parts are as PyTorch's ``HuggingFaceStorageReader`` reads them.
"""

import hashlib
import re
from dataclasses import dataclass

from pydantic import ValidationError

from edl_workflows.agent.manifest import FileEntry, Manifest
from edl_workflows.exceptions import CheckpointError
from edl_workflows.protocol.message import describe_problems

STATE_FILE = "state.safetensors"
"""The only file of a checkpoint that one process saved in two stages."""
_STATE_FILES = re.compile(r"^state(-[0-9]{5,}-of-[0-9]{5,})?\.safetensors$")


@dataclass(frozen=True)
class Part:
    """Which part of a checkpoint a process saves, if several save one together.

    Attributes:
        index: of the part, from 0. The process that saves part 0 is the chief.
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


def state_files(manifest: Manifest) -> list[str]:
    """The files of a checkpoint's state, by part."""
    return sorted(name for name in manifest.files if _STATE_FILES.match(name))


def entry_file(part: Part) -> str:
    """Name of the file that says a part is whole; it holds the part's entry for the manifest."""
    return f"{part.file}.json"


def read_entry(content: bytes, part: Part) -> FileEntry:
    """A part's entry for the manifest.

    Raises:
        CheckpointError: it is damaged.
    """
    try:
        return FileEntry.model_validate_json(content)
    except ValidationError as error:
        raise CheckpointError(f"{entry_file(part)}: is damaged: {describe_problems(error)[0]}") from error


def shared_checkpoint_name(step: int, job: str, version: int) -> str:
    """The name that all members of a cluster version give to their checkpoint of a step, without asking each
    other. In one version a step has one data position, so the name is not reused for another.

    Args:
        step: global step.
        job: identifies the job.
        version: cluster version.
    """
    return f"checkpoint-{step:012d}-{hashlib.sha256(f'{job} {version}'.encode()).hexdigest()[:8]}"
