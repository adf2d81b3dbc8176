"""The Pollux paper's evaluation in the simulator: ``python -m tests.benchmarks.bench_simulator --data FOLDER [--json]``.

FOLDER is ``simulator/`` of petuum/adaptdl's branch osdi21-artifact, or a copy of its ``traces`` and ``workloads*``. For each
policy and relative load it prints the mean job completion time over the eight workloads beside the published one. The limits:
Tiresias and Optimus within 2 % of it, which shows that the simulator is faithful; Pollux never above it.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from edl_workflows.simulator.application import Application
from edl_workflows.simulator.cluster import simulate
from edl_workflows.simulator.evaluation import (
    LOAD_FOLDERS,
    PUBLISHED,
    SCHEDULERS,
    WORKLOADS,
    read_applications,
)
from edl_workflows.simulator.metrics import Metrics, measure
from edl_workflows.simulator.readers import read_workload

FAITHFUL = 0.02
"""How far a baseline may be from its published figure."""


@dataclass(frozen=True)
class Row:
    """One policy at one load: means over workloads, times in seconds.

    Attributes:
        spread: standard deviation of the mean job completion time over workloads.
        wall: seconds that the runs took.
        met: whether the limit is kept; None where only some of the workloads were run.
    """

    policy: str
    load: float
    published: float
    jct_mean: float
    spread: float
    jct_p99: float
    makespan: float
    utilisation: float
    pending: float
    restarts: float
    wall: float
    met: bool | None


def evaluate(
    policy: str, load: float, workloads: Sequence[int], data: Path, applications: Mapping[str, Application]
) -> Row:
    """Run one policy on some workloads of a load."""
    began = time.perf_counter()
    runs = [
        run(policy, data / LOAD_FOLDERS[load] / f"workload-{number}.csv", applications)
        for number in workloads
    ]
    wall = time.perf_counter() - began
    jct, published = fmean(one.jct_mean for one in runs), PUBLISHED[policy][load]
    met = jct <= published if policy == "pollux" else abs(jct / published - 1) <= FAITHFUL
    return Row(
        policy=policy,
        load=load,
        published=published,
        jct_mean=jct,
        spread=stdev(one.jct_mean for one in runs) if len(runs) > 1 else 0.0,
        jct_p99=fmean(one.jct_p99 for one in runs),
        makespan=fmean(one.makespan for one in runs),
        utilisation=fmean(one.utilisation for one in runs),
        pending=fmean(one.pending for one in runs),
        restarts=fmean(one.restarts for one in runs),
        wall=wall,
        met=met if set(workloads) == set(WORKLOADS) else None,
    )


def run(policy: str, workload: Path, applications: Mapping[str, Application]) -> Metrics:
    """Run one workload."""
    return measure(simulate(read_workload(workload), applications, SCHEDULERS[policy]()))


def show(row: Row) -> None:
    """One line of the table."""
    verdict = {True: "met", False: "NOT met", None: "-"}[row.met]
    ratio = "-" if row.met is None else f"{row.jct_mean / row.published - 1:+.1%}"
    print(
        f"{row.policy:9} {row.load:4} {row.published:9.0f} {row.jct_mean:7.0f} {ratio:>7} "
        f"{row.jct_p99:7.0f} {row.makespan:8.0f} {row.utilisation:6.1%} {row.pending:7.0f} {row.restarts:8.1f} "
        f"{row.wall:6.0f}  {verdict}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with traces/ and workloads*/")
    parser.add_argument("--policies", nargs="+", choices=list(SCHEDULERS), default=list(SCHEDULERS))
    parser.add_argument(
        "--loads", nargs="+", type=float, choices=list(LOAD_FOLDERS), default=list(LOAD_FOLDERS)
    )
    parser.add_argument("--workloads", nargs="+", type=int, choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--json", action="store_true", help="rows as JSON, a line each")
    chosen = parser.parse_args(arguments)
    applications = read_applications(chosen.data / "traces")
    if not chosen.json:
        print(
            "policy    load published    ours   ratio     p99 makespan   used pending restarts   wall  limit"
        )
    met = True
    for policy in chosen.policies:
        for load in chosen.loads:
            row = evaluate(policy, load, chosen.workloads, chosen.data, applications)
            met = met and row.met is not False
            if chosen.json:
                print(json.dumps(asdict(row)), flush=True)
            else:
                show(row)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
