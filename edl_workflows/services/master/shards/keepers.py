"""The workers of a data set that keep acknowledgements until these are stored, and report to a new master."""

from collections.abc import Iterable

REPORT_SECONDS = 15.0
"""Seconds for which a new master waits for the reports of nodes that worked for the one before; they report
within `edl_workflows.training.data.shards.REPORT_SECONDS`, and the time of an attempt to connect."""


class Keepers:
    """The nodes that keep acknowledgements.

    Args:
        stored: those of the previous master.
    """

    __slots__ = ("_nodes", "_unreported")

    def __init__(self, stored: Iterable[str]) -> None:
        self._nodes = set(stored)
        self._unreported = set(self._nodes)

    def __len__(self) -> int:
        return len(self._nodes)

    @property
    def nodes(self) -> list[str]:
        return sorted(self._nodes)

    @property
    def all_reported(self) -> bool:
        """Whether no node holds shards of which only the previous master knew."""
        return not self._unreported

    def note_report(self, node: str, *, keeps: bool) -> None:
        """Record that a node holds nothing that is not known here, and whether it keeps acknowledgements."""
        self._unreported.discard(node)
        if keeps:
            self._nodes.add(node)

    def remove(self, node: str) -> None:
        """Forget a node whose process has ended."""
        self._nodes.discard(node)
        self._unreported.discard(node)

    def expire(self, listening: float) -> None:
        """Wait for no more reports if this master has listened for long enough.

        Args:
            listening: for how many seconds.
        """
        if listening >= REPORT_SECONDS:
            self._unreported.clear()
