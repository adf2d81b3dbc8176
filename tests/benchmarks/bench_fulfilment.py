"""The fulfilment algorithm: speed and laws: ``python -m tests.benchmarks.bench_fulfilment [--clusters N]
[--json]``.

(a) Time of one decision on one core for 100 to 10,000 jobs on half as many nodes, in four situations:

- new: no job has a place yet; all minima and nearly all room are dealt (about 8 instances a job)
- settled: the decision is carried out; there is nothing to do
- waiting: as settled, and a tenth as many new jobs wait for their minimum
- services: as settled, and other pods take a third of the cores; more than that is taken from the jobs

Requests are drawn for each job, so that none profits from another's search; every tenth job uses GPUs.
Seconds of CPU, the median and the worst of several clusters: on a machine that does other things as well,
seconds of the clock say little.

(b) ``--clusters 100000``: so many small random clusters, each checked against the laws of ``tests/property``.
"""

import argparse
import gc
import json
import statistics
import sys
import time
from dataclasses import asdict, dataclass, replace
from random import Random

from edl_workflows.core.scaling.paddle.fulfilment import FulfilmentJob
from edl_workflows.core.scaling.paddle.nodes import FulfilmentNode
from tests.property.test_fulfilment import Cluster, check_all, random_cluster

SIZES = (100, 300, 1_000, 3_000, 10_000)
GOAL_SECONDS = 1.0
"""The limit for the largest size."""
TURNS = 5
GI = 2.0**30
GPU = "nvidia.com/gpu"


@dataclass(frozen=True)
class Row:
    """One line of the result."""

    case: str
    jobs: int
    nodes: int
    changes: int
    instances: int
    median_s: float
    worst_s: float
    goal: str
    met: bool


def new_cluster(count: int, seed: int) -> Cluster:
    """Jobs that have been told their minimum, none of which has a place."""
    random = Random(seed)
    nodes = {
        f"node-{number:05}": FulfilmentNode(
            {"cpu": 64.0, "memory": 256 * GI, GPU: 8.0 if number % 10 == 0 else 0.0},
            {"cpu": random.uniform(0.5, 4.0), "memory": random.uniform(1, 16) * GI, "pods": 10.0},
        )
        for number in range(count // 2)
    }
    return Cluster({f"job-{number:05}": new_job(random, number) for number in range(count)}, nodes)


def new_job(random: Random, number: int) -> FulfilmentJob:
    """A job of 1 to 2 instances at least, and up to 60."""
    requests = {
        "cpu": random.randint(1_000, 5_000) / 1_000,
        "memory": random.randint(2_000, 16_000) / 1_000 * GI,
    }
    low = random.randint(1, 2)
    gpu = {GPU: 1.0} if number % 10 == 0 else {}
    return FulfilmentJob(requests | gpu, low, low + random.randint(1, 58), low)


def situations(count: int, seed: int) -> dict[str, Cluster]:
    """The four of the module's text."""
    new = new_cluster(count, seed)
    settled = new.applied(new.decide())
    random = Random(seed)
    waiting = {f"new-{number:05}": new_job(random, number) for number in range(count // 10)}
    busy = {
        key: replace(node, used={**node.used, "cpu": node.total["cpu"] / 3})
        for key, node in new.nodes.items()
    }
    return {
        "new": new,
        "settled": settled,
        "waiting": replace(settled, jobs=settled.jobs | waiting),
        "services": replace(settled, nodes=busy),
    }


def timed(cluster: Cluster) -> tuple[float, int, int]:
    """Seconds of CPU for one decision, how many jobs it changes, and by how many instances."""
    gc.collect()
    before = time.process_time()
    changes = cluster.decide().changes.values()
    return (
        time.process_time() - before,
        len(changes),
        sum(abs(change.after - change.before) for change in changes),
    )


def growth() -> list[Row]:
    """Part (a)."""
    rows = []
    for count in SIZES:
        turns = [situations(count, seed) for seed in range(TURNS)]
        for case in turns[0]:
            results = [timed(turn[case]) for turn in turns]
            seconds = [result[0] for result in results]
            goal = GOAL_SECONDS if count == SIZES[-1] else None
            rows.append(
                Row(
                    case=case,
                    jobs=count,
                    nodes=count // 2,
                    changes=results[0][1],
                    instances=results[0][2],
                    median_s=round(statistics.median(seconds), 4),
                    worst_s=round(max(seconds), 4),
                    goal=f"≤ {goal} s" if goal else "",
                    met=goal is None or statistics.median(seconds) <= goal,
                )
            )
    return rows


def lawful(clusters: int, seed: int) -> dict[str, int]:
    """Part (b).

    Returns:
        How many clusters, how many of them broke a law, and in how many a job that made room on a node grew
        elsewhere in the decision after.
    """
    violated = again = 0
    for number in range(seed, seed + clusters):
        random = Random(number)
        try:
            again += check_all(random_cluster(random), random) > 0
        except AssertionError as error:
            violated += 1
            print(f"cluster {number}: {error}", file=sys.stderr)
    return {"clusters": clusters, "violated": violated, "grew_again": again}


def main() -> int:
    """Prints both parts; the exit status says whether all goals are met."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clusters", type=int, default=0, help="check the laws on so many instead of measuring"
    )
    parser.add_argument("--seed", type=int, default=0, help="the first cluster's seed")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    given = parser.parse_args()
    rows = growth() if not given.clusters else []
    laws = lawful(given.clusters, given.seed) if given.clusters else {}
    if given.json:
        print(json.dumps({"rows": [asdict(row) for row in rows], "laws": laws}))
    else:
        for row in rows:
            print(
                f"{row.case:9} {row.jobs:6} jobs {row.nodes:5} nodes: {row.changes:5} changes, "
                f"{row.instances:6} instances,"
                f" {row.median_s:7.3f} s, worst {row.worst_s:7.3f} s  "
                f"{row.goal}{'' if row.met else '  MISSED'}"
            )
        if laws:
            print(laws)
    return 0 if all(row.met for row in rows) and not laws.get("violated") else 1


if __name__ == "__main__":
    sys.exit(main())
