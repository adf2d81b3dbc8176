"""Writes training logs into the log of an Airflow task, and finds the position where they stopped: a trigger
that starts again reads it from the lines already written.

Airflow stores no state for triggers. It writes a trigger's log into files of the triggerer, one for each
triggerer process. There, each training line is a log event with the pod and the position. If another
triggerer can't read these files, neither can users, so it writes the lines again.

With remote logging, users of a finished task see only what a triggerer has uploaded, and it uploads a file
when the trigger ends. The file of a triggerer that was stopped before stays on its disk. So the next trigger
there copies the training lines that the remote log lacks, and hides the file.

The lines of a trigger reach its file through the triggerer's supervisor, which reads 4 KiB of them in each
loop. When it learns that the trigger has ended, it closes the file in that loop, and the lines that it has
not read yet go into its own log. So a trigger ends only when its last line is in the file.
"""

import asyncio
import glob
import json
import re
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import structlog

from edl_workflows.airflow.hooks.airflow_versions import conf
from edl_workflows.pipelines.waiting.training_logs import PodLine
from edl_workflows.runtime.kube.log_stream import LogPosition

LOGGER = "edl_workflows.pod_output"
_log = structlog.get_logger(LOGGER)
LOCATION = "loc"
"""Key of a log event: the pod, and the position of the line in its log. Airflow's log page (from 3.1) shows
values of this key only with its setting *Show source*."""
_FOLDING = re.compile(r"::(?=(end)?group::)")
"""Airflow's log page folds the lines from ``::group::`` to ``::endgroup::``, wherever these markers are in a
line."""
_IMPORTED = time.time() - 0.1
"""Log files of this process are newer, since Airflow imports a trigger before it opens the trigger's log. The
margin is for the times of files, whose clock ticks less often."""
WRITTEN_SECONDS = 20.0
"""How long a trigger waits for its last line to be in its file."""
_LOOK_SECONDS = 0.1
_END_BYTES = 64 * 1024
"""The part of a file in which the last line is looked for."""


class WrittenLine(NamedTuple):
    """A training line in a log file.

    Attributes:
        pod: name of its pod.
        position: the line's position in the pod's log.
        text: the line, as it was written.
    """

    pod: str
    position: LogPosition
    text: str


def write_line(line: PodLine) -> None:
    """Write a training line to the task's log; in a triggerer the context names the task. Folding markers in
    the line are disabled, so that a training program can't fold other lines."""
    text = _FOLDING.sub(": :", line.text)
    _write(WrittenLine(line.pod, line.position, f"[{line.node}] {text}"))


def _write(line: WrittenLine) -> None:
    location = f"{line.pod} {line.position.time} {line.position.count}"
    _log.info(line.text, **{LOCATION: location})


def take_over_lines(ti: Any) -> dict[str, LogPosition]:
    """By pod name, the position of the newest line in the log of this attempt's triggers. With remote
    logging, lines that no earlier triggerer has uploaded are copied to the log of this one. Blocks.

    Args:
        ti: a triggerer's task instance.
    """
    from airflow.sdk.log import load_remote_log_handler

    path = _log_path(ti)
    if path is None:
        return {}
    files = _trigger_files(path)
    positions: dict[str, LogPosition] = {}
    remote = load_remote_log_handler()
    if remote is None or remote.processors:  # with processors, each line is uploaded when it is written
        for file in files:
            _new_lines(positions, file)
        return positions
    for text in _uploaded_logs(remote, path, ti):
        merge_positions(positions, text.encode().splitlines())
    for file in files:
        for line in _new_lines(positions, file):
            _write(line)
        if file.stat().st_mtime < _IMPORTED and not file.name.startswith("."):
            # Otherwise a log page of the running task would have its lines twice.
            file.rename(file.with_name(f".{file.name}"))
    return positions


async def await_line(ti: Any, text: str) -> None:
    """Wait until the file of this trigger has a line that it has logged, and thereby all lines before it.
    This ends after `WRITTEN_SECONDS` at the latest, and at once if the trigger has no file on this machine.

    Args:
        ti: a triggerer's task instance.
        text: beginning of the line, in ASCII without quotes.
    """
    with suppress(TimeoutError):
        async with asyncio.timeout(WRITTEN_SECONDS):
            while not await asyncio.to_thread(_has_line, ti, text.encode()):  # noqa: ASYNC110
                await asyncio.sleep(_LOOK_SECONDS)


def _has_line(ti: Any, text: bytes) -> bool:
    path = _log_path(ti)
    files = [] if path is None else _trigger_files(path)
    own = [file for file in files if file.stat().st_mtime >= _IMPORTED]
    return not own or any(text in _read_end(file) for file in own)


def _read_end(file: Path) -> bytes:
    with file.open("rb") as log:
        log.seek(max(0, file.stat().st_size - _END_BYTES))
        return log.read()


def _log_path(ti: Any) -> str | None:
    """The path of an attempt's log below Airflow's log folder. None if this installation's template uses
    values that a trigger does not have."""
    from airflow.utils.helpers import log_filename_template_renderer
    from jinja2 import TemplateError

    try:
        return str(log_filename_template_renderer()(ti=ti))
    except (AttributeError, TemplateError):
        return None


def _trigger_files(path: str) -> list[Path]:
    """Files of this attempt's triggers on this machine, oldest first; hidden ones, too."""
    log = Path(conf.get("logging", "base_log_folder")) / path
    pattern = f"{glob.escape(log.name)}.trigger.*.log"
    files = [*log.parent.glob(pattern), *log.parent.glob(f".{pattern}")]
    return sorted(files, key=lambda file: file.stat().st_mtime)


def _uploaded_logs(remote: Any, path: str, ti: Any) -> list[str]:
    """Texts of the attempt's logs in the remote store; none if it can't be read: lines twice are better than
    lines lost."""
    try:
        _sources, logs = remote.read(path, ti)
    except Exception as error:  # noqa: BLE001 - the drivers of the stores have no common class of errors
        _log.warning(
            "The remote log could not be read: %s. Training lines in it may be written again.", error
        )
        return []
    return [text for text in logs or () if isinstance(text, str)]


def _new_lines(positions: dict[str, LogPosition], file: Path) -> list[WrittenLine]:
    with file.open("rb") as lines:
        return merge_positions(positions, lines)


def merge_positions(positions: dict[str, LogPosition], lines: Iterable[bytes]) -> list[WrittenLine]:
    """Add the positions in a log file's lines to the positions found before, and return the lines after
    these.

    Args:
        positions: newest position by pod name.
        lines: lines of JSON. Truncated lines, and lines that are not training logs, are skipped.
    """
    new = []
    for raw in lines:
        if b'"loc"' not in raw:
            continue
        try:
            event = json.loads(raw)
            pod, written, count = event[LOCATION].split(" ")
            line = WrittenLine(pod, LogPosition(written, int(count)), event["event"])
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
        before = positions.get(pod, LogPosition())
        if (line.position.time, line.position.count) > (before.time, before.count):
            positions[pod] = line.position
            new.append(line)
    return new
