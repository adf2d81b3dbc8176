"""The Pollux paper's evaluation in the simulator: ``python -m tests.benchmarks.bench_simulator --data FOLDER
[--json] [--results FILE]``.

FOLDER is ``simulator/`` of petuum/adaptdl's branch osdi21-artifact, or a copy of its ``traces`` and
``workloads*``. For each policy and relative load it prints the mean job completion time over the eight
workloads beside the published one. The limits: Tiresias and Optimus within 2 % of it, which shows that the
simulator is faithful; `pollux` never above it, and `shortest-history` 11 % below Pollux's. With ``--results``
each run's result is written down when it has ended, and not made again: the evaluation takes two hours. `edl
simulate pollux` does the same for any policy.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean, stdev

from edl_workflows.core.scaling.pollux.goodput_fit import FitCache
from edl_workflows.simulator.cluster import SimulationSettings
from edl_workflows.simulator.evaluation import COMPARED, LOAD_FOLDERS, WORKLOADS, read_evaluation
from edl_workflows.simulator.metrics import RunMetrics
from edl_workflows.simulator.store import ResultFile
from edl_workflows.simulator.study import Study, StudyResult, Workload

FAITHFUL = 0.02
"""How far a baseline may be from its published figure."""
AT_MOST = {"pollux": 1.0, "shortest-history": 0.89}
"""Policy → the most that its mean may be of Pollux's published one."""
POLICIES = ["shortest-history", "pollux", "tiresias", "optimus"]


@dataclass(frozen=True)
class Row:
    """One policy at one load: means over workloads, times in seconds.

    Attributes:
        spread: standard deviation of the mean job completion time over workloads.
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
    met: bool | None


def evaluate(
    policy: str, load: float, workloads: Sequence[Workload], fits: FitCache, file: ResultFile | None
) -> Row:
    """Run one policy on some workloads of a load."""
    runs = [run(Study(workload, policy, 0, SimulationSettings()), fits, file) for workload in workloads]
    jct, published = fmean(one.jct_mean for one in runs), COMPARED[policy][load]
    ratio = jct / published
    met = ratio <= AT_MOST[policy] if policy in AT_MOST else abs(ratio - 1) <= FAITHFUL
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
        met=met if len(workloads) == len(WORKLOADS) else None,
    )


def run(study: Study, fits: FitCache, file: ResultFile | None) -> RunMetrics:
    """Run one workload, or take its result from the file."""
    if file is not None and (known := file.find(study.key)) is not None:
        return known.metrics
    result = StudyResult.of(study, study.run(fits))
    if file is not None:
        file.add(result)
    return result.metrics


def show(row: Row) -> None:
    """One line of the table."""
    verdict = {True: "met", False: "NOT met", None: "-"}[row.met]
    ratio = "-" if row.met is None else f"{row.jct_mean / row.published - 1:+.1%}"
    print(
        f"{row.policy:16} {row.load:4} {row.published:9.0f} {row.jct_mean:7.0f} {ratio:>7} "
        f"{row.jct_p99:7.0f} {row.makespan:8.0f} {row.utilisation:6.1%} {row.pending:7.0f} "
        f"{row.restarts:8.1f}  {verdict}",
        flush=True,
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print; 1 if a limit is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder with traces/ and workloads*/")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=POLICIES)
    parser.add_argument(
        "--loads", nargs="+", type=float, choices=list(LOAD_FOLDERS), default=list(LOAD_FOLDERS)
    )
    parser.add_argument("--workloads", nargs="+", type=int, choices=WORKLOADS, default=list(WORKLOADS))
    parser.add_argument("--results", type=Path, help="file of results: what stands there is not run again")
    parser.add_argument("--json", action="store_true", help="rows as JSON, a line each")
    chosen = parser.parse_args(arguments)
    fits, file = FitCache(), None if chosen.results is None else ResultFile(chosen.results)
    if not chosen.json:
        print(
            "policy           load published    ours   ratio     p99 makespan    use pending restarts  limit"
        )
    met = True
    for policy in chosen.policies:
        for load in chosen.loads:
            workloads = read_evaluation(chosen.data, [load], chosen.workloads)
            row = evaluate(policy, load, workloads, fits, file)
            met = met and row.met is not False
            if chosen.json:
                print(json.dumps(asdict(row)), flush=True)
            else:
                show(row)
    return 0 if met else 1


if __name__ == "__main__":
    sys.exit(main())
