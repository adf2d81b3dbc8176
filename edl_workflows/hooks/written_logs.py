"""Training logs in the log of an Airflow task, and where they stopped: a trigger that starts again finds the
position in what was written.

Airflow has no store of state for triggers. It writes a trigger's log into files of the triggerer, one for
each triggerer process; a line of training is an event with the pod and the position. Where another triggerer
can't read these files, people can't read them either, and the lines are written again.
"""

import glob
import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import structlog

from edl_workflows.hooks.airflow_versions import conf
from edl_workflows.kube.log_stream import LogPosition
from edl_workflows.stages.training_logs import PodLine

LOGGER = "edl_workflows.training"
_log = structlog.get_logger(LOGGER)
_FOLDING = re.compile(r"::(?=(end)?group::)")
"""Airflow's page folds the lines from ``::group::`` to ``::endgroup::``, wherever they stand in a line."""


def write_line(line: PodLine) -> None:
    """Write a line of training to the task's log; in a triggerer the context names the task. A training
    program can't fold lines of others."""
    position, text = line.position, _FOLDING.sub(": :", line.text)
    _log.info(f"[{line.node}] {text}", pod=line.pod, written=position.time, count=position.count)


def read_positions(ti: Any) -> dict[str, LogPosition]:
    """By name of a pod, the newest line in the log files of the triggers of this attempt; blocks.

    Args:
        ti: a triggerer's task instance.
    """
    from airflow.utils.helpers import log_filename_template_renderer
    from jinja2 import TemplateError

    try:
        path = log_filename_template_renderer()(ti=ti)
    except (AttributeError, TemplateError):
        return {}  # a template of an installation that names more than a trigger knows
    folder = Path(conf.get("logging", "base_log_folder"))
    found: dict[str, LogPosition] = {}
    for file in sorted(folder.glob(f"{glob.escape(path)}.trigger.*.log")):
        with file.open("rb") as lines:
            merge_positions(found, lines)
    return found


def merge_positions(found: dict[str, LogPosition], lines: Iterable[bytes]) -> None:
    """Add the positions of a log file's lines to those that were found before.

    Args:
        found: by name of a pod; the newest position stays.
        lines: lines of JSON; a line that was cut off, or of somebody else, is skipped.
    """
    for raw in lines:
        if b'"written"' not in raw:
            continue
        try:
            event = json.loads(raw)
            pod, position = event["pod"], LogPosition(event["written"], int(event["count"]))
        except (ValueError, KeyError, TypeError):
            continue
        before = found.get(pod, LogPosition())
        if (position.time, position.count) > (before.time, before.count):
            found[pod] = position
