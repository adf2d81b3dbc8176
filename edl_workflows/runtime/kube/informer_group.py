"""Informers that a program starts, waits for and stops together."""

import time
from collections.abc import Callable, Iterable
from functools import partial

from edl_workflows.core.exceptions import EdlError
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import Scope

REPORT_EVERY = 20
"""A failing watch is reported the first time and then every 20th time, which is every five minutes at the
longest delay."""


class InformerGroup:
    """The informers.

    Args:
        informers: not started yet.
        report: called with the errors of failing watches, now and then; see `REPORT_EVERY`.
    """

    def __init__(self, informers: Iterable[Informer], report: Callable[[Scope, EdlError], None]) -> None:
        self._informers = tuple(informers)
        self._report = report
        for informer in self._informers:
            informer.on_error(partial(self._count_failure, informer.scope))

    def start(self) -> None:
        """Begin to watch."""
        for informer in self._informers:
            informer.start()

    def stop(self, seconds: float = 5.0) -> None:
        """Stop all watches, and wait at most this long in total for their threads."""
        deadline = time.monotonic() + seconds
        for informer in self._informers:
            informer.stop(join_seconds=0)
        for informer in self._informers:
            informer.stop(max(0.0, deadline - time.monotonic()))

    @property
    def unlisted(self) -> list[Scope]:
        """What is not listed yet; empty once decisions can be made."""
        return [informer.scope for informer in self._informers if not informer.synced]

    def waits_for(self) -> list[str]:
        """What is not listed yet, in words."""
        return [f"not listed yet: {scope}" for scope in self.unlisted]

    def wait_synced(self, seconds: float) -> bool:
        """Wait until everything is listed. Return False on time-out."""
        deadline = time.monotonic() + seconds
        return all(i.wait_synced(max(0.0, deadline - time.monotonic())) for i in self._informers)

    def _count_failure(self, scope: Scope, error: EdlError, failures: int) -> None:
        if failures % REPORT_EVERY == 1:
            self._report(scope, error)
