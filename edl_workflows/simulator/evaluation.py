"""The evaluation of the Pollux paper (OSDI'21, §5.3) as a ready scenario.

Eight workloads a load, 16 nodes of four GPUs, a decision each minute, 30 s a restart. The published figures are the mean of
the eight mean job completion times, from the summaries in the paper's artifact (petuum/adaptdl, branch osdi21-artifact,
``simulator/results-jobload``).
"""

from collections.abc import Callable, Mapping
from pathlib import Path

from edl_workflows.simulator.application import Application
from edl_workflows.simulator.optimus import OptimusScheduler
from edl_workflows.simulator.pollux import PolluxScheduler
from edl_workflows.simulator.readers import read_application
from edl_workflows.simulator.scheduler import Scheduler
from edl_workflows.simulator.tiresias import TiresiasScheduler
from edl_workflows.simulator.workload import Category

WORKLOADS = range(1, 9)

LOAD_FOLDERS: Mapping[float, str] = {
    0.5: "workloads-0.5",
    1.0: "workloads",
    1.5: "workloads-1.5",
    2.0: "workloads-2.0",
}
"""Relative load → the folder of its workloads, each ``workload-<number>.csv``."""

PUBLISHED: Mapping[str, Mapping[float, float]] = {
    "pollux": {0.5: 1534.0, 1.0: 2751.0, 1.5: 3685.0, 2.0: 5289.0},
    "tiresias": {0.5: 2091.0, 1.0: 4038.0, 1.5: 6182.0, 2.0: 10040.0},
    "optimus": {0.5: 2395.0, 1.0: 5682.0, 1.5: 7235.0, 2.0: 9721.0},
}
"""Policy → relative load → mean job completion time in seconds; Tiresias with jobs tuned by hand, Optimus with these and an
oracle."""

SINGLE_REPLICA = {"ncf": 1}
"""Neural collaborative filtering trains on one GPU in the evaluation."""

SCHEDULERS: Mapping[str, Callable[[], Scheduler]] = {
    "tiresias": TiresiasScheduler,
    "optimus": lambda: OptimusScheduler(SINGLE_REPLICA),
    "pollux": lambda: PolluxScheduler(most_replicas=SINGLE_REPLICA),
}
"""Policy → a new scheduler for one run."""

CATEGORIES = (
    Category(1 * 3600.0, ("cifar10", "ncf")),
    Category(10 * 3600.0, ("deepspeech2", "bert")),
    Category(100 * 3600.0, ("yolov3",)),
    Category(1000 * 3600.0, ("imagenet",)),
)
"""What stands for the jobs of the Philly trace, by their GPU time."""

_MAX_LOCAL_BSZ = {"yolov3": 8}
"""Mini-batches above this were measured on a few GPUs only."""


def read_applications(traces: Path) -> dict[str, Application]:
    """All applications in the artifact's folder ``traces``, by name."""
    return {
        folder.name: read_application(folder, _MAX_LOCAL_BSZ.get(folder.name))
        for folder in sorted(traces.iterdir())
        if folder.is_dir()
    }
