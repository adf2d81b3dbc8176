"""Reads workloads, measured traces, failures and services from CSV files.

Errors name the file, line and field.
"""

import contextlib
import csv
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from math import inf
from pathlib import Path
from typing import TypeVar

from edl_workflows.core.exceptions import InvalidError, NotFoundError
from edl_workflows.simulator.application import Application, ValidationTrace
from edl_workflows.simulator.capacity import FAILURE, CapacityChange
from edl_workflows.simulator.throughput import StepTime, ThroughputTable
from edl_workflows.simulator.workload import ClusterJob, WorkloadJob

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class CsvRow:
    """A row.

    Attributes:
        file: the path as given.
        line: the line number; the header is line 1.
        fields: column → text; None if the line is too short.
    """

    file: str
    line: int
    fields: Mapping[str, str | None]

    def text(self, *names: str) -> str:
        """The text in the first of these columns that exists.

        Raises:
            InvalidError: the header has none of them, or the field is empty.
        """
        return self._field(*names)[1]

    def number(self, *names: str, zero: bool = False) -> float:
        """A finite number above 0, or at least 0.

        Args:
            names: alternative names of the column.
            zero: whether it may be 0.

        Raises:
            InvalidError: the field is something else.
        """
        name, text = self._field(*names)
        try:
            value = float(text)
        except ValueError:
            value = inf
        if not (0 < value < inf or (zero and value == 0)):
            raise self.wrong(name, f"{text!r} is not a number {'of at least' if zero else 'above'} 0")
        return value

    def whole(self, *names: str) -> int:
        """A whole number of at least 1.

        Raises:
            InvalidError: there is none.
        """
        name, text = self._field(*names)
        try:
            value = int(text)
        except ValueError:
            value = 0
        if value < 1:
            raise self.wrong(name, f"{text!r} is not a whole number of at least 1")
        return value

    def moment(self, *names: str) -> float:
        """A time in seconds: a number of at least 0, or an ISO 8601 date and time, by default in UTC.

        Raises:
            InvalidError: there is none.
        """
        name, text = self._field(*names)
        # A text that is not a date may be a number.
        with contextlib.suppress(ValueError):
            return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
        try:
            return self.number(name, zero=True)
        except InvalidError:
            time = "a date and time such as 2017-10-09 07:01:55"
            problem = f"{text!r} is neither {time} nor a number of seconds of at least 0"
            raise self.wrong(name, problem) from None

    def wrong(self, name: str, problem: str) -> InvalidError:
        return InvalidError(f"{self.file}:{self.line}: {name}: {problem}; correct the line")

    def _field(self, *names: str) -> tuple[str, str]:
        """The name of the column that exists, and its text."""
        name = next((column for column in names if column in self.fields), None)
        if name is None:
            columns = ", ".join(self.fields)
            raise InvalidError(
                f"{self.file}:1: there is no column {' or '.join(names)}, only {columns}; "
                "add it to the header"
            )
        text = (self.fields[name] or "").strip()
        if not text:
            raise self.wrong(name, "the field is empty")
        return name, text


def read_rows(path: Path) -> Iterator[CsvRow]:
    """The rows of a file.

    Raises:
        NotFoundError: the file is missing.
        InvalidError: the file can't be read, is not CSV in UTF-8, or a line has more fields than the header.
    """
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = csv.DictReader(file)
            if not lines.fieldnames:
                raise InvalidError(f"{path}:1: the file is empty; its first line must name the columns")
            for fields in lines:
                if None in fields:
                    raise InvalidError(
                        f"{path}:{lines.line_num}: there are more fields than columns; correct the line"
                    )
                yield CsvRow(str(path), lines.line_num, fields)
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such file") from error
    except OSError as error:
        raise InvalidError(f"{path}: the file can't be read: {error.strerror}") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidError(f"{path}: the file is not CSV in UTF-8: {error}") from error


def is_pollux_workload(path: Path) -> bool:
    """Whether a file is a workload of the Pollux artifact, whose jobs name applications. Otherwise it is a
    cluster's trace.

    Raises:
        NotFoundError: the file is missing.
        InvalidError: the file can't be read, or has no jobs.
    """
    first = next(read_rows(path), None)
    if first is None:
        raise InvalidError(f"{path}: there is no job in it; give at least one line below the header")
    return "application" in first.fields


def read_workload(path: Path) -> list[WorkloadJob]:
    """Read a workload: ``name,time,application,num_replicas,batch_size``, with the time in seconds.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: a field that can't be read, with its file and line.
    """
    return [
        WorkloadJob(
            name=row.text("name"),
            submitted=row.number("time", zero=True),
            application=row.text("application"),
            replicas=row.whole("num_replicas"),
            batch_size=row.whole("batch_size"),
        )
        for row in read_rows(path)
    ]


def read_cluster_jobs(path: Path, statuses: Collection[str] = ()) -> list[ClusterJob]:
    """Read a cluster's trace, such as Microsoft's Philly trace.

    ========================================= ================================================================
    column, or one of its other names         meaning
    ========================================= ================================================================
    submit_time, submitted_time, timestamp    when: ISO 8601 date and time, or seconds; the first job is at 0
    num_gpus, gpus                            GPUs that it had: a whole number of at least 1
    duration                                  seconds that it ran with them: above 0
    job_id, jobid, name                       unique; job-2, job-3, … by its line if there is no such column
    status                                    how it ended, as ``Pass``; needed only where `statuses` is given
    ========================================= ================================================================

    Other columns are ignored.

    Args:
        path: the file.
        statuses: only jobs with one of these statuses; all if empty. Failed and killed jobs used the cluster
            too.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: a field that can't be read, with its file and line, or no job is left.
    """
    rows = [row for row in read_rows(path) if not statuses or row.text("status") in statuses]
    if not rows:
        condition = f" with a status of {', '.join(statuses)}" if statuses else ""
        raise InvalidError(f"{path}: there is no job{condition} in it; give at least one")
    times = [row.moment("submit_time", "submitted_time", "timestamp") for row in rows]
    return [
        ClusterJob(_name(row), time - min(times), row.whole("num_gpus", "gpus"), row.number("duration"))
        for row, time in zip(rows, times, strict=True)
    ]


def _name(row: CsvRow) -> str:
    names = ("job_id", "jobid", "name")
    return row.text(*names) if any(name in row.fields for name in names) else f"job-{row.line}"


def read_failures(path: Path, nodes: Mapping[str, int]) -> list[CapacityChange]:
    """Read failures of nodes: ``time,node,seconds``: when, the node's number from 0, seconds until back.

    Args:
        path: the file.
        nodes: node → its GPUs, in the order of their numbers.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: a field can't be read, a node is unknown, or it fails while it is down; with file and
            line.
    """
    keys = list(nodes)
    changes: list[CapacityChange] = []
    back = dict.fromkeys(keys, 0.0)
    for row in sorted(read_rows(path), key=lambda row: row.number("time", zero=True)):
        number = row.number("node", zero=True)
        if number not in range(len(keys)):
            raise row.wrong("node", f"{row.text('node')!r} is not a number from 0 to {len(keys) - 1}")
        node, time = keys[int(number)], row.number("time", zero=True)
        if time < back[node]:
            raise row.wrong("time", f"the node is away until {back[node]:g} s from a failure before")
        back[node] = time + row.number("seconds")
        changes.append(CapacityChange(time, node, FAILURE, nodes[node]))
        changes.append(CapacityChange(back[node], node, FAILURE, 0))
    return sorted(changes, key=lambda change: (change.time, change.node))


def read_services(path: Path) -> dict[str, list[tuple[float, int]]]:
    """Read the demand of services over time: ``time,gpus`` or ``time,service,gpus``, valid from that time on.

    Returns:
        Service → (seconds, GPUs from then on), ascending.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: a field that can't be read, with its file and line.
    """
    demands: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for row in read_rows(path):
        gpus = row.number("gpus", zero=True)
        if gpus != int(gpus):
            raise row.wrong("gpus", f"{row.text('gpus')!r} is not a whole number of at least 0")
        name = row.text("service") if "service" in row.fields else "service"
        demands[name].append((row.number("time", zero=True), int(gpus)))
    return {name: sorted(demand) for name, demand in demands.items()}


def read_application(folder: Path, max_local_bsz: int | None = None) -> Application:
    """Read an application: ``placements.csv``, ``scalability.csv`` and ``validation-<batch size>.csv``.

    Args:
        folder: named like the application.
        max_local_bsz: the largest mini-batch of a replica, if it is smaller than the largest measured one.

    Raises:
        NotFoundError: a file is missing.
        InvalidError: a field that can't be read, with its file and line.
    """
    validation = {_batch_size(path): _read_validation(path) for path in folder.glob("validation-*.csv")}
    if not validation:
        raise NotFoundError(f"{folder}: no validation-*.csv; give the folder of an application's traces")
    placements = _read_steps(folder / "placements.csv", _placement)
    scalability = _read_steps(
        folder / "scalability.csv", lambda row: (row.whole("num_nodes"), row.whole("num_replicas"))
    )
    if not placements:
        raise InvalidError(f"{folder / 'placements.csv'}: there is no measurement; give at least one")
    sizes = [size for points in placements.values() for size in points]
    return Application(
        folder.name,
        validation,
        ThroughputTable.of(placements, scalability),
        min_local_bsz=min(sizes),
        max_local_bsz=max_local_bsz or max(sizes),
    )


def _batch_size(path: Path) -> int:
    text = path.stem.removeprefix("validation-")
    if not text.isdecimal() or int(text) < 1:
        raise InvalidError(
            f"{path}: {text!r} is not a batch size; rename the file to validation-<batch size>.csv"
        )
    return int(text)


def _read_validation(path: Path) -> ValidationTrace:
    columns = ("progress", "iteration", "grad_sqr", "grad_var")
    epochs = [tuple(row.number(name, zero=True) for name in columns) for row in read_rows(path)]
    return ValidationTrace(*([epoch[number] for epoch in epochs] for number in range(len(columns))))


def _read_steps(path: Path, key: Callable[[CsvRow], _Value]) -> dict[_Value, dict[int, StepTime]]:
    """Key → local batch size → step time."""
    step_times: dict[_Value, dict[int, StepTime]] = defaultdict(dict)
    for row in read_rows(path):
        total, sync = row.number("step_time"), row.number("sync_time", zero=True)
        if sync > total:
            raise row.wrong("sync_time", f"the exchange takes {sync} s, longer than the step of {total} s")
        step_times[key(row)][row.whole("local_bsz")] = StepTime(total, sync)
    return step_times


def _placement(row: CsvRow) -> tuple[int, ...]:
    """A placement has a digit for each node: ``42`` is four replicas on one node and two on another."""
    digits = str(row.whole("placement"))
    if "0" in digits:
        raise row.wrong("placement", f"{digits!r} has a node without replicas")
    return tuple(int(digit) for digit in digits)
