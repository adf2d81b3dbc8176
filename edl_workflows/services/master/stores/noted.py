"""What the stores outside the cluster's API server have in common: a note in the ConfigMap.

The note takes the place of the state there. So a master that does not know of the other store exits with an
error instead of beginning the job anew.
"""

import contextlib
import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.services.master.stores.port import StateStore

_BEGIN = "that of "
"""Begins the format of a note, so that the master's error says where the state is."""


@dataclass(frozen=True)
class StateNote:
    """Says where a state is.

    Attributes:
        kind: of the store, one word.
        address: where the store has it.
    """

    kind: str
    address: str

    def __str__(self) -> str:
        return f"{self.kind} {self.address}"

    def dump(self) -> bytes:
        return json.dumps({"format": f"{_BEGIN}{self}"}).encode()

    @classmethod
    def parse(cls, document: bytes) -> Self | None:
        """None if the document is a state."""
        with contextlib.suppress(ValueError):
            noted = json.loads(document)
            if isinstance(noted, dict) and str(noted.get("format")).startswith(_BEGIN):
                kind, _, address = str(noted["format"]).removeprefix(_BEGIN).partition(" ")
                return cls(kind, address)
        return None


class NotedStore(ABC):
    """A store that leaves a note in the default one.

    Args:
        default: the store that the job would use otherwise. A state in it is moved here.
    """

    kind: ClassVar[str]
    """Of the place, one word."""
    remedy: ClassVar[str]
    """What to do if the place has no state, although the note says so."""

    def __init__(self, default: StateStore) -> None:
        self._default = default

    @property
    @abstractmethod
    def place(self) -> str:
        """See `StateStore`."""

    @property
    @abstractmethod
    def _address(self) -> str:
        """Of the state, for the note."""

    @abstractmethod
    def save(self, document: bytes) -> None:
        """See `StateStore`."""

    @abstractmethod
    def _claim(self) -> None:
        """Let nobody else write from now on."""

    @abstractmethod
    def _read_newest(self) -> bytes | None:
        """The newest whole document; None if there is none."""

    def load(self) -> bytes | None:
        """See `StateStore`."""
        # A master that starts after this and moves the state first makes this one fail before it writes.
        self._claim()
        elsewhere = self._default.load()
        note = StateNote.parse(elsewhere) if elsewhere is not None else None
        if note is not None and note.kind != self.kind:
            raise InvalidError(
                f"{self._default.place}: the state is in {note}, and the masters' template names "
                f"{self.place}: let it name the former"
            )
        # A state in the default store is newer than one here: a master that did not use this store wrote it.
        is_state = elsewhere is not None and note is None
        document = elsewhere if is_state else self._read_newest()
        if document is None and note is not None:
            raise InvalidError(
                f"{self._default.place}: the state is in {note}, and none is in {self.place}: "
                f"{self.remedy}, or empty the ConfigMap's state to begin the job anew"
            )
        if document is not None and is_state:
            self.save(document)
        own_note = StateNote(self.kind, self._address).dump()
        if elsewhere != own_note:
            self._default.save(own_note)
        return document
