"""What many running jobs cost the API server, etcd and the controller.

The masters are those of the product, in one process; what is synthetic is in
`tests.benchmarks.scale.fleet`. The controller runs in a process of its own. The jobs start one after the
other, at most five in two seconds. After the cost was counted, a few dozen waiters wait for steps::

    python -m tests.benchmarks.bench_scale [--jobs 1000] [--minutes 30] [--young]

The exit status is 1 if a count is more than 20 % above its expected one (`tests.benchmarks.scale.expected`),
or so low that something was not measured; goals that depend on the machine are shown beside the figures, and
not judged. Root and Go are needed.
"""

import argparse
import json
import signal
import sys
from dataclasses import asdict

from tests.benchmarks.scale.expected import find_faults, read_expected
from tests.benchmarks.scale.jobs import Load
from tests.benchmarks.scale.measure import Cost, measure
from tests.benchmarks.scale.waste import WASTES


def table(load: Load, cost: Cost) -> list[str]:
    """Lines for people: counts of a job beside the expected ones, figures of all jobs beside their goals."""
    expected = {} if load.young else read_expected(load.jobs)
    lines = [
        f"{load.jobs} jobs, {load.seconds:.0f} s:",
        f"  {'a job and minute':42}{'counted':>10}{'expected':>10}",
    ]
    lines += [
        f"  {name:42}{count:>10.2f}{expected.get(name, '-'):>10}" for name, count in cost.counts.items()
    ]
    goals = [
        ("writes of the master, a second and job", f"{cost.writes:.4f}", "≤ 0.05"),
        ("MB into etcd, a minute", f"{cost.megabytes:.2f}", f"≤ {15 * load.jobs / 1000:.1f}"),
        ("etcd's database at the end, MiB", f"{cost.database:.0f}", "≤ 200"),
        ("decisions, a minute and job", f"{cost.counts['decisions']:.2f}", "≤ 2"),
        ("the controller's CPU, cores", f"{cost.controller_cores:.3f}", f"≤ {0.5 * load.jobs / 1000:.2f}"),
        ("the API server's answers, p99, ms", f"{cost.api_seconds * 1000:.0f}", "≤ 100"),
    ]
    if cost.delays:
        worst, median = cost.delays
        goals.append(("a step to its waiter, p99, s", f"{worst:.2f}", f"≤ 0.5 (median {median:.2f})"))
    lines += [f"  {'all jobs':42}{'measured':>10}  goal"]
    lines += [f"  {name:42}{figure:>10}  {goal}" for name, figure, goal in goals]
    return [*lines, f"  all masters together use {cost.masters_cores:.2f} cores"]


def main() -> int:
    """Measure, print a table and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--minutes", type=float, default=30.0, help="for which the cost is counted")
    parser.add_argument(
        "--young", action="store_true", help="count from the first step on; the counts are not judged"
    )
    parser.add_argument("--waiters", type=int, default=36, help="jobs that are waited for afterwards")
    parser.add_argument("--waste", choices=WASTES, default="", help="the mistake that each master makes")
    parser.add_argument(
        "--masters-alone",
        action="store_true",
        help="count only what masters write, without pods, watches and a controller",
    )
    options = parser.parse_args()
    # Everything that was started is ended also on SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    alone = options.masters_alone
    waiters = 0 if alone else options.waiters
    load = Load(options.jobs, options.minutes * 60, options.young, waiters, waste=options.waste, alone=alone)
    cost = measure(load)
    print("\n".join(table(load, cost)), flush=True)
    print(json.dumps(asdict(load) | asdict(cost)))
    faults = [] if load.young else find_faults(cost.counts, load.jobs)
    print("\n".join(faults))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
