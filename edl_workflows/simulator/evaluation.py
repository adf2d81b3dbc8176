"""The scenario of the evaluation in the Pollux paper (OSDI'21, §5.3).

It has eight workloads for each load, 16 nodes with four GPUs, a decision each minute, and restarts of 30 s.
The published figures are means of the eight mean job completion times, from the summaries in the paper's
artifact (petuum/adaptdl, branch osdi21-artifact, ``simulator/results-jobload``).
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from edl_workflows.core.exceptions import InvalidError, NotFoundError
from edl_workflows.simulator.application import Application
from edl_workflows.simulator.readers import read_application, read_workload
from edl_workflows.simulator.study import Workload

WORKLOADS = range(1, 9)

LOAD_FOLDERS: Mapping[float, str] = {
    0.5: "workloads-0.5",
    1.0: "workloads",
    1.5: "workloads-1.5",
    2.0: "workloads-2.0",
}
"""Relative load → the folder of its workloads, each ``workload-<number>.csv``."""

PUBLISHED: dict[str, Mapping[float, float]] = {
    "pollux": {0.5: 1534.0, 1.0: 2751.0, 1.5: 3685.0, 2.0: 5289.0},
    "tiresias": {0.5: 2091.0, 1.0: 4038.0, 1.5: 6182.0, 2.0: 10040.0},
    "optimus": {0.5: 2395.0, 1.0: 5682.0, 1.5: 7235.0, 2.0: 9721.0},
}
"""Policy → relative load → mean job completion time in seconds.

Tiresias and Optimus run jobs that were tuned by hand; Optimus also has an oracle.
"""

SINGLE_REPLICA = {"ncf": 1}
"""Application → replicas: neural collaborative filtering trains on one GPU in the evaluation."""

PUBLISHED_EACH: Mapping[float, tuple[float, ...]] = {
    0.5: (1059.5, 1826.3, 1310.5, 1497.8, 976.8, 1287.8, 2881.1, 1432.0),
    1.0: (2088.8, 3322.9, 2188.5, 2721.0, 2673.7, 2446.1, 3616.1, 2951.9),
    1.5: (3855.8, 3380.6, 3299.9, 3902.7, 4007.3, 3474.3, 3217.6, 4345.1),
    2.0: (6186.3, 4190.8, 5131.8, 5262.4, 6590.8, 5105.3, 3836.3, 6009.8),
}
"""Relative load → the mean job completion time of each workload with Pollux, from the same summaries."""

_MAX_LOCAL_BSZ = {"yolov3": 8}
"""Larger mini-batches were measured on a few GPUs only."""


KIN = ("pollux-history", "shortest", "shortest-history")
"""Variants of Pollux, compared with its published figures."""

COMPARED = PUBLISHED | dict.fromkeys(KIN, PUBLISHED["pollux"])
"""Policy → relative load → the published mean that it is compared with."""

PUBLISHED_MEANS = {
    (f"load {load:g}", policy): (len(WORKLOADS), mean)
    for policy, means in COMPARED.items()
    for load, mean in means.items()
}
"""(Group, policy) → (number of workloads, mean), for `study.summarize_results`."""

PUBLISHED_RUNS = {
    (f"{LOAD_FOLDERS[load]}/workload-{number}", policy): mean
    for policy in ("pollux", *KIN)
    for load, means in PUBLISHED_EACH.items()
    for number, mean in enumerate(means, 1)
}
"""(Name of the workload, policy) → mean job completion time."""


def read_evaluation(data: Path, loads: Sequence[float], numbers: Sequence[int]) -> list[Workload]:
    """Workloads of the evaluation.

    Args:
        data: the artifact's folder ``simulator``, or a copy of its ``traces`` and ``workloads*``.
        loads: keys of `LOAD_FOLDERS`.
        numbers: numbers of workloads, of `WORKLOADS`.

    Raises:
        NotFoundError: a file is missing.
        InvalidError: a field can't be read, or there is no such load or number.
    """
    if wrong := [load for load in loads if load not in LOAD_FOLDERS]:
        raise InvalidError(f"there is no load {wrong[0]:g}; give one of {', '.join(map(str, LOAD_FOLDERS))}")
    if wrong := [number for number in numbers if number not in WORKLOADS]:
        raise InvalidError(f"there is no workload {wrong[0]}; give a number from 1 to {max(WORKLOADS)}")
    applications = read_applications(data / "traces")
    return [
        Workload(
            name=f"{LOAD_FOLDERS[load]}/workload-{number}",
            group=f"load {load:g}",
            jobs=read_workload(data / LOAD_FOLDERS[load] / f"workload-{number}.csv"),
            applications=applications,
            most_replicas=SINGLE_REPLICA,
        )
        for load in loads
        for number in numbers
    ]


def read_applications(traces: Path) -> dict[str, Application]:
    """All applications in the artifact's folder ``traces``, by name.

    Raises:
        NotFoundError: the folder or a file is missing.
        InvalidError: a field can't be read.
    """
    if not traces.is_dir():
        raise NotFoundError(
            f"{traces}: there is no such folder; give the one that has the artifact's traces and workloads"
        )
    return {
        folder.name: read_application(folder, _MAX_LOCAL_BSZ.get(folder.name))
        for folder in sorted(traces.iterdir())
        if folder.is_dir()
    }
