"""Writes training logs into the log of an Airflow task, and finds the position where they stopped: a trigger
that starts again reads it from the lines already written.

Airflow stores no state for triggers. It writes a trigger's log into files of the triggerer, one for each
triggerer process. There, each training line is a log event with the pod and the position. If another
triggerer can't read these files, neither can users, so it writes the lines again.
"""

import glob
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from edl_workflows.airflow.hooks.airflow_versions import conf
from edl_workflows.pipelines.waiting.training_logs import PodLine
from edl_workflows.runtime.kube.log_stream import LogPosition

LOGGER = "edl_workflows.pod_output"
_log = structlog.get_logger(LOGGER)
_FOLDING = re.compile(r"::(?=(end)?group::)")
"""Airflow's log page folds the lines from ``::group::`` to ``::endgroup::``, wherever these markers are in a
line."""


def write_line(line: PodLine) -> None:
    """Write a training line to the task's log; in a triggerer the context names the task. Folding markers in
    the line are disabled, so that a training program can't fold other lines."""
    position, text = line.position, _FOLDING.sub(": :", line.text)
    _log.info(f"[{line.node}] {text}", pod=line.pod, written=position.time, count=position.count)


def read_positions(ti: Any) -> dict[str, LogPosition]:
    """By pod name, the position of the newest line in the log files of this attempt's triggers. Blocks.

    Args:
        ti: a triggerer's task instance.
    """
    from airflow.utils.helpers import log_filename_template_renderer
    from jinja2 import TemplateError

    try:
        path = log_filename_template_renderer()(ti=ti)
    except (AttributeError, TemplateError):
        return {}  # this installation's template uses values that a trigger does not have
    folder = Path(conf.get("logging", "base_log_folder"))
    positions: dict[str, LogPosition] = {}
    for file in sorted(folder.glob(f"{glob.escape(path)}.trigger.*.log")):
        with file.open("rb") as lines:
            merge_positions(positions, lines)
    return positions


def merge_positions(positions: dict[str, LogPosition], lines: Iterable[bytes]) -> None:
    """Add the positions in a log file's lines to the positions found before.

    Args:
        positions: newest position by pod name.
        lines: lines of JSON. Truncated lines, and lines that are not training logs, are skipped.
    """
    for raw in lines:
        if b'"written"' not in raw:
            continue
        try:
            event = json.loads(raw)
            pod, position = event["pod"], LogPosition(event["written"], int(event["count"]))
        except (ValueError, KeyError, TypeError):
            continue
        before = positions.get(pod, LogPosition())
        if (position.time, position.count) > (before.time, before.count):
            positions[pod] = position
