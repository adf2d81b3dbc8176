"""Workloads and measured traces from CSV files, in the form of the Pollux artifact."""

import csv
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from edl_workflows.exceptions import InvalidError, NotFoundError
from edl_workflows.simulator.application import Application, Validation
from edl_workflows.simulator.throughput import StepTime, ThroughputTable
from edl_workflows.simulator.workload import TraceJob, WorkloadJob

_Row = TypeVar("_Row")


def read_workload(path: Path) -> list[WorkloadJob]:
    """A workload: ``name,time,application,num_replicas,batch_size``.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: a line that can't be read, with its number.
    """

    def job(row: dict[str, str]) -> WorkloadJob:
        return WorkloadJob(
            name=row["name"],
            submitted=float(row["time"]),
            application=row["application"],
            replicas=int(row["num_replicas"]),
            batch_size=int(row["batch_size"]),
        )

    return list(_rows(path, job))


def read_trace(path: Path) -> list[TraceJob]:
    """A cluster's trace: ``timestamp,duration,num_gpus,gpu_time,…``, as of Microsoft's Philly clusters.

    Raises:
        NotFoundError: there is no such file.
        InvalidError: a line that can't be read, with its number.
    """

    def job(row: dict[str, str]) -> TraceJob:
        submitted = datetime.fromisoformat(row["timestamp"])
        midnight = submitted.replace(hour=0, minute=0, second=0, microsecond=0)
        return TraceJob(
            (submitted - midnight).total_seconds(),
            _positive(row["duration"], zero=True),
            _positive(row["gpu_time"], zero=True),
        )

    return list(_rows(path, job))


def read_application(folder: Path, max_local_bsz: int | None = None) -> Application:
    """An application's traces: ``placements.csv``, ``scalability.csv`` and ``validation-<batch size>.csv``.

    Args:
        folder: its name is the application's.
        max_local_bsz: largest mini-batch of a replica, where it is less than what was measured.

    Raises:
        NotFoundError: a file is missing.
        InvalidError: a line that can't be read, with its number.
    """
    validation = {
        int(path.stem.removeprefix("validation-")): _read_validation(path)
        for path in folder.glob("validation-*.csv")
    }
    if not validation:
        raise NotFoundError(f"{folder}: no validation-*.csv; give the folder of an application's traces")
    placements: dict[tuple[int, ...], dict[int, StepTime]] = defaultdict(dict)
    for shape, size, step in _rows(folder / "placements.csv", _measured_placement):
        placements[shape][size] = step
    scalability: dict[tuple[int, int], dict[int, StepTime]] = defaultdict(dict)
    for scale, size, step in _rows(folder / "scalability.csv", _measured_scale):
        scalability[scale][size] = step
    sizes = [size for points in placements.values() for size in points]
    return Application(
        folder.name,
        validation,
        ThroughputTable.of(placements, scalability),
        min_local_bsz=min(sizes),
        max_local_bsz=max_local_bsz or max(sizes),
    )


def _read_validation(path: Path) -> Validation:
    def epoch(row: dict[str, str]) -> tuple[float, ...]:
        return tuple(
            _positive(row[name], zero=True) for name in ("progress", "iteration", "grad_sqr", "grad_var")
        )

    progress, iterations, grad_sqr, grad_var = zip(*_rows(path, epoch), strict=True)
    return Validation(progress, iterations, grad_sqr, grad_var)


def _measured_placement(row: dict[str, str]) -> tuple[tuple[int, ...], int, StepTime]:
    """A digit a node: ``42`` is four replicas on one and two on another."""
    return tuple(int(digit) for digit in row["placement"]), int(_positive(row["local_bsz"])), _step(row)


def _measured_scale(row: dict[str, str]) -> tuple[tuple[int, int], int, StepTime]:
    scale = (int(_positive(row["num_nodes"])), int(_positive(row["num_replicas"])))
    return scale, int(_positive(row["local_bsz"])), _step(row)


def _step(row: dict[str, str]) -> StepTime:
    total, sync = _positive(row["step_time"]), _positive(row["sync_time"], zero=True)
    if sync > total:
        raise ValueError(f"the exchange takes {sync} s, longer than the step of {total} s")
    return StepTime(total, sync)


def _positive(text: str, *, zero: bool = False) -> float:
    """A number that is finite and above 0, or not below it."""
    value = float(text)
    if not (0 < value < float("inf") or (zero and value == 0)):
        raise ValueError(f"{text} is not a number {'of at least' if zero else 'above'} 0")
    return value


def _rows(path: Path, parse: Callable[[dict[str, str]], _Row]) -> Iterator[_Row]:
    """The lines of a CSV file with a header, read."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.DictReader(file), 2):
                try:
                    yield parse(row)
                except (KeyError, TypeError, ValueError, InvalidError) as error:
                    raise InvalidError(f"{path}, line {number}: {error!r}; correct the line") from error
    except FileNotFoundError as error:
        raise NotFoundError(f"{path}: there is no such file") from error
