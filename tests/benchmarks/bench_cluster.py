"""On a real Kubernetes and a real Argo: what waiting costs, how long starts take, and the controller under
1,000 jobs.

Four parts, each with what it is compared with in the same run: waiting Argo steps (a hand-written resource
template, ours, the agent); steps of one workflow that wait for a training step; a job in real pods to its
first step; many jobs on KWOK's nodes by our controller, by several replicas of it, by Kubeflow's
training-operator, and by a client that makes the same writes and nothing else::

    python -m tests.benchmarks.bench_cluster [--parts waiting steps starts load] [--jobs 100 1000] [--no-peer]
        [--accounts shared own] [--partitions 1 2 4]

The first three start a cluster for themselves, or take the running test bed that KUBECONFIG names if
EDL_TEST_CLUSTER=existing is set; the fourth starts a control plane of its own for each measurement. Root and
Go are needed.
"""

import argparse
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from edl_workflows.runtime.kube.connect import Cluster
from tests.benchmarks.cluster import awaited_steps, limit, load, programs, starts, waiting
from tests.benchmarks.cluster.plane import Binaries
from tests.cluster.bed import build, lifecycle
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.components import Site
from tests.cluster.bed.node import Network

WAYS = {"stock": 5, "resource": 5, "plugin": 100}
"""Way to wait → workflows at a time. A resource step has a pod with an executor, and the machine is small."""
ACCOUNTS = {"shared": "default", "own": ""}
GOAL = (
    "goal for 1,000 jobs: 12 requests with a shared account, 15 with own ones; 1.25 times the limit's time; "
    "memory no more than the peer's"
)


@contextmanager
def test_bed() -> Iterator[Bed]:
    """The cluster that KUBECONFIG names, if it is a test bed; else one for this run."""
    given = Path(os.environ.get("KUBECONFIG", ""))
    if os.environ.get("EDL_TEST_CLUSTER") == "existing" and (given.parent / "bed.json").exists():
        yield Bed.load(given)
        return
    site = Site(build.CACHE / "bench", build.BIN, Network(223))  # beside the one of `make cluster-up`
    try:
        yield lifecycle.up(site)
    finally:
        lifecycle.down(site)


def wait_part(bed: Bed, ways: list[str]) -> list[dict[str, Any]]:
    """Steps that wait, each way."""
    found = []
    for way in ways:
        jobs = WAYS[way]
        with tempfile.TemporaryDirectory() as folder:
            result = waiting.measure(bed, way, jobs, Path(folder))
        median, longest = result.next_step
        print(
            f"waiting, {way}: {jobs} workflows; a job: {result.pods} pods, {result.requests} requests a "
            f"minute; end to next step {median} s, at most {longest} s\n    {result.kinds}",
            flush=True,
        )
        found.append(asdict(result))
    return found


def step_part(bed: Bed) -> list[dict[str, Any]]:
    """Steps that wait for a training step: of the same job, and of a job each."""
    found = []
    for jobs in (1, awaited_steps.STEPS):
        delays = awaited_steps.measure(bed, jobs)
        median, most = statistics.median(delays), statistics.quantiles(delays, n=100)[98]
        print(
            f"steps, {jobs} jobs: {awaited_steps.STEPS} steps of a workflow have their results "
            f"{median:.3f} s after the status, p99 {most:.3f} s, at most {delays[-1]:.3f} s",
            flush=True,
        )
        found.append({"jobs": jobs, "median": round(median, 3), "p99": round(most, 3)})
    return found


def start_part(bed: Bed) -> dict[str, Any]:
    """A job in real pods."""
    result = asdict(starts.measure(bed))
    for name, seconds in result.items():
        print(f"starts, {name}: {seconds} s", flush=True)
    return result


def load_part(
    counts: list[int], accounts: list[str], partitions: list[int], with_peer: bool
) -> list[dict[str, Any]]:
    """Many jobs: the limit, ours with each kind of account and each number of replicas, the peer's."""
    binaries = Binaries(
        plane=build.BIN / "kubelab",
        kwok=build.BIN / "kwok",
        stages=sorted(build.KWOK_STAGES.glob("*.yaml")),
        peer=programs.build_peer(),
        peer_crds=programs.peer_definitions(),
        limit=programs.build_limit_client(),
    )
    found: list[load.Result] = []
    for account in accounts:
        writes = limit.record(load.ours(ACCOUNTS[account]), binaries)
        for jobs in counts:
            found += compare(ACCOUNTS[account], writes, jobs, partitions, binaries)
    for jobs in counts if with_peer else ():
        found.append(measure(load.peer(binaries), jobs, binaries))
    print(GOAL)
    return [asdict(result) for result in found]


def compare(
    account: str, writes: list[limit.Write], jobs: int, partitions: list[int], binaries: Binaries
) -> list[load.Result]:
    """The limit, and beside it ours."""
    stored: dict[str, dict[str, str]] = {}

    def measured(contender: load.Contender) -> load.Result:
        def store(cluster: Cluster) -> None:
            stored[contender.name] = limit.stored_objects(cluster, writes, "job-0")

        return measure(contender, jobs, binaries, store)

    least = measured(limit.limit_of(load.ours(account), writes, binaries))
    results = [least]
    for count in partitions:
        result = measured(load.ours(account, count))
        results.append(result)
        more = limit.count_more(result.writes, least.writes)
        objects = limit.differing_objects(stored[result.who], stored[least.who])
        print(
            f"    over the limit: {result.seconds / least.seconds:.2f} times the time, "
            f"{result.all_cpu / least.all_cpu:.2f} times all CPU; writes beyond its "
            f"{sum(least.writes.values())}: {more or 'none'}; objects of a job that differ: "
            f"{objects or 'none'}",
            flush=True,
        )
    return results


def measure(
    contender: load.Contender,
    jobs: int,
    binaries: Binaries,
    at_end: Callable[[Cluster], None] = lambda _: None,
) -> load.Result:
    """Measure and print."""
    result = load.measure(contender, jobs, binaries, at_end)
    print(
        f"load, {result.who}: {jobs} jobs of 4 pods all Running after {result.seconds} s, "
        f"{result.requests} requests a job (and {result.masters_requests} of the masters' stand-in), "
        f"{result.memory_mib} MiB, {result.cpu_seconds} s CPU, {result.all_cpu} s with everything else\n"
        f"    {result.kinds}\n    CPU: {result.cpu}",
        flush=True,
    )
    return result


def main() -> int:
    """Measure, print sentences and JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parts = ("waiting", "steps", "starts", "load")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--jobs", nargs="+", type=int, default=[100, 1000], help="of the load, one run each")
    parser.add_argument("--accounts", nargs="+", choices=list(ACCOUNTS), default=list(ACCOUNTS))
    parser.add_argument(
        "--partitions", nargs="+", type=int, default=[1, 2, 4], help="of our controller, one run each"
    )
    parser.add_argument("--ways", nargs="+", choices=list(WAYS), default=list(WAYS), help="to wait")
    parser.add_argument("--no-peer", action="store_true", help="leave training-operator out")
    options = parser.parse_args()
    # Everything that was started is ended also on SIGTERM.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    build.build()
    results: dict[str, Any] = {}
    with ExitStack() as stack:
        bed = stack.enter_context(test_bed()) if {"waiting", "steps", "starts"} & set(options.parts) else None
        if bed is not None and "waiting" in options.parts:
            results["waiting"] = wait_part(bed, options.ways)
        if bed is not None and "steps" in options.parts:
            results["steps"] = step_part(bed)
        if bed is not None and "starts" in options.parts:
            results["starts"] = start_part(bed)
    if "load" in options.parts:
        results["load"] = load_part(options.jobs, options.accounts, options.partitions, not options.no_peer)
    print(json.dumps(results))
    return 0


if __name__ == "__main__":
    sys.exit(main())
