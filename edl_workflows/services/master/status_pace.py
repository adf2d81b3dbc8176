"""When a job's status is written: at once if something happened, and once in a period for mere progress.

Thousands of jobs share one API server, so a job that only trains costs it almost nothing. The period is a
minute, or longer where the controller publishes so, plus up to a fifth, so that many masters don't write at
the same time. A job that has just begun to train writes its progress more often, and so does nobody else: a
pace that depends on the training time alone is the same for every master of the job.
"""

import random
import re
from typing import Any

from edl_workflows.core.jobs.elastic_job.awaited_steps import has_passed
from edl_workflows.services.master.state.settings import JobSettings

REPORT_SECONDS = 2.0
"""Least seconds between two writes; what happens in between is combined."""
YOUNG_SECONDS = 120.0
"""Seconds of training during which progress is written more often: every tenth of the training time."""

_MEASURED = {
    "progress": {"step", "records", "recordsTotal", "speed", "recordsPerSecond", "metrics", "time"},
    "goodput": {"ratio", "usefulSeconds", "redoneSeconds", "elapsedSeconds", "seconds", "time"},
    "autoscaling": {"reasons", "notes", "time"},
}
"""Fields that change all the time while a job trains; the other ones change when something happens."""
_DECIMAL = re.compile(r"\d+\.\d+")


class StatusPace:
    """Decides whether a status is to be written now.

    Args:
        spread: of the period, from 1 to 1.2; by default at random.
    """

    def __init__(self, spread: float | None = None) -> None:
        self.written: dict[str, Any] = {}
        """The fields that the API server has confirmed; empty before the first write."""
        self._at = float("-inf")
        self._spread = random.uniform(1.0, 1.2) if spread is None else spread  # noqa: S311 - no secret

    def is_open(self, step: int, awaited: tuple[int, ...], now: float) -> bool:
        """Whether a status may be written now: not again within `REPORT_SECONDS`, unless a step was made that
        somebody waits for.

        Args:
            step: the newest one.
            awaited: the steps that somebody waits for.
            now: monotonic seconds.
        """
        return now - self._at >= REPORT_SECONDS or self._passes(step, awaited)

    def is_due(self, status: dict[str, Any], settings: JobSettings, now: float, trained: float) -> bool:
        """Whether this status is to be written, if one may be written at all.

        Args:
            status: the present one.
            settings: of the job: the period, and the steps that somebody waits for.
            now: monotonic seconds.
            trained: for how many seconds the job has trained.
        """
        passes = self._passes(status["progress"]["step"], settings.awaited_steps)
        if passes or _events(status) != _events(self.written):
            return True
        period = trained / 10 if trained < YOUNG_SECONDS else settings.progress_period * self._spread
        return now - self._at >= period and self._progresses(status)

    def has_changed(self, status: dict[str, Any]) -> bool:
        """Whether this status shows more than the one that was written."""
        return _events(status) != _events(self.written) or self._progresses(status)

    def _progresses(self, status: dict[str, Any]) -> bool:
        return _progress(status) != _progress(self.written)

    def _passes(self, step: int, awaited: tuple[int, ...]) -> bool:
        return has_passed(self.written.get("progress", {}).get("step", -1), step, awaited)

    def begin_write(self, status: dict[str, Any]) -> dict[str, Any]:
        """The fields to write. Until `note_written` confirms them they count as unknown: the API server may
        have applied a write that it did not answer, and the next write then corrects it.

        Args:
            status: the present one.
        """
        fields = {key: value for key, value in status.items() if self.written.get(key, ...) != value}
        self.written = {key: value for key, value in self.written.items() if key not in fields}
        return fields

    def note_written(self, status: dict[str, Any], now: float) -> None:
        """Record that this status was written."""
        self.written, self._at = status, now


def _progress(status: dict[str, Any]) -> dict[str, Any]:
    """The progress, without the time when it was measured: it stands still in a job that waits."""
    return {key: value for key, value in status.get("progress", {}).items() if key != "time"}


def _events(status: dict[str, Any]) -> dict[str, Any]:
    """A status without what changes all the time while a job trains."""
    events = {key: value for key, value in status.items() if key != "history"}
    for key, measured in _MEASURED.items():
        if isinstance(fields := events.get(key), dict):
            events[key] = {name: value for name, value in fields.items() if name not in measured}
    events["warnings"] = [_DECIMAL.sub("", warning) for warning in status.get("warnings", ())]
    return events
