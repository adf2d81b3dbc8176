"""What every store of a master's state does, and the head of its snapshots.

A *snapshot* is a whole document with a head that has its checksum, so that a document that is torn or damaged
is noticed. `edl_workflows.services.master.master` decides when to write.
"""

import hashlib
from typing import Protocol, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from edl_workflows.core.exceptions import InvalidError

Head = TypeVar("Head", bound="SnapshotHead")
HEAD_FORMAT = 1
"""The format of snapshots. A master reads its own format only."""


class StateStore(Protocol):
    """Keeps one document. Calls block; the loop makes one at a time, in a thread."""

    interval: float
    """Least seconds between two writes that are not urgent."""
    capacity: int
    """Greatest size of a document in bytes."""

    @property
    def place(self) -> str:
        """Where a person finds the document."""

    def load(self) -> bytes | None:
        """The newest whole document; None for a new job. From now on only this store may write.

        Raises:
            InvalidError: what is stored is damaged, or a newer version wrote it in another format.
        """

    def save(self, document: bytes) -> None:
        """Replace the document. Once this returns, the document survives a crash of the master.

        Raises:
            ConflictError: another master has loaded it; this one must end.
            InvalidError: it is too large.
            UnavailableError: not possible now; call again.
        """


class SnapshotHead(BaseModel):
    """What a snapshot says of its document. Unknown fields are ignored.

    Attributes:
        format: of the snapshot.
        checksum: SHA-256 of the document.
        writer: the store that wrote it.
        parts: names of the objects that contain the document, in order; empty if it is beside the head.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    format: int = HEAD_FORMAT
    checksum: str
    writer: str = ""
    parts: tuple[str, ...] = ()

    def matches(self, document: bytes) -> bool:
        return self.checksum == checksum_of(document)


def checksum_of(document: bytes) -> str:
    return hashlib.sha256(document).hexdigest()


def parse_head(head_type: type[Head], text: str | bytes, place: str) -> Head | None:
    """The head; None if the text is none.

    Args:
        head_type: the model.
        text: JSON.
        place: for errors.

    Raises:
        InvalidError: it is a head of a format that this version can't read.
    """
    try:
        head_format = _Format.model_validate_json(text).format
        if head_format == HEAD_FORMAT:
            return head_type.model_validate_json(text)
    except ValidationError:
        return None
    raise InvalidError(
        f"{place}: the snapshot has format {head_format}, and this version of the master reads "
        f"{HEAD_FORMAT}: run the version that wrote it"
    )


class _Format(BaseModel):
    format: int
