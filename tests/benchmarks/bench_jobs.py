"""Thousands of small ElasticJobs on one embedded cluster: every job ends, or waits and says why.

The cluster and its controller run as processes of their own. All jobs are submitted at once. The given
minutes after the last one was accepted, the bench looks at what each unfinished job and pod says::

    python tests/benchmarks/bench_jobs.py [--jobs 10000] [--minutes 10]
"""

import argparse
import json
import statistics
import tempfile
import time
from collections import Counter
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil

from edl_workflows.local import daemon
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, NAMESPACES, PODS, Object, Scope
from tests.local_cluster import LocalCluster, Settings, cluster

SUBMITTERS = 8
POLL_SECONDS = 1.0
SECOND_LOOK_SECONDS = 10.0


@dataclass
class Figures:
    """What was measured.

    Attributes:
        jobs: submitted.
        submit_seconds: until the last was accepted.
        watched_seconds: from the first submission to the last look.
        phases: of the jobs at the end.
        pod_phases: of the pods at the end.
        waiting: why pods wait, with their number.
        silent_once: unfinished jobs and pods that gave no reason at the first look.
        silent: those of them that still gave none at a second look, ten seconds later. A pod that was created
            a moment before a look has no reason yet.
        silent_names: kind and name of some of them.
        answer_milliseconds: median and longest time of a small request, asked once a second throughout.
        memory_mib: of the cluster's process at its largest.
        cpu_seconds: of the cluster's process.
    """

    jobs: int
    submit_seconds: float = 0.0
    watched_seconds: float = 0.0
    phases: dict[str, int] | None = None
    pod_phases: dict[str, int] | None = None
    waiting: dict[str, int] | None = None
    silent_once: int = 0
    silent: int = 0
    silent_names: list[str] | None = None
    answer_milliseconds: tuple[float, float] = (0.0, 0.0)
    memory_mib: float = 0.0
    cpu_seconds: float = 0.0


def make_job(number: int) -> Object:
    """A job of one worker that ends at once."""
    main = {"name": "main", "image": "none", "command": ["true"]}
    worker = {"replicas": 1, "template": {"spec": {"containers": [main]}}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": f"small-{number}"},
        "spec": {"distributionStrategy": "ParameterServerStrategy", "replicaSpecs": {"worker": worker}},
    }


def submit(found: LocalCluster, count: int, figures: Figures) -> None:
    """Create all jobs."""

    def some(first: int) -> None:
        target = found.client()
        for number in range(first, count, SUBMITTERS):
            client.create(target, make_job(number))

    began = time.monotonic()
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(some, range(SUBMITTERS)))
    figures.submit_seconds = round(time.monotonic() - began, 1)


def waits_for(pod: Object) -> str:
    """Why a pod waits; empty if it does not say."""
    status = pod["status"]
    scheduled = [one for one in status.get("conditions") or [] if one["type"] == "PodScheduled"]
    refused = [one.get("message") or "" for one in scheduled if one["status"] == "False"]
    states = [one.get("state", {}).get("waiting") for one in status.get("containerStatuses") or []]
    return next(filter(None, [*refused, *(one.get("reason") for one in states if one)]), "")


def look(target: Cluster, figures: Figures) -> dict[str, str]:
    """Count phases and reasons.

    Returns:
        The unfinished jobs and pods that give no reason: kind and name by uid.
    """
    jobs, pods = (client.list_objects(target, Scope(one)).items for one in (ELASTIC_JOBS, PODS))
    figures.phases = dict(Counter((one.get("status") or {}).get("phase", "(none yet)") for one in jobs))
    figures.pod_phases = dict(Counter(one["status"]["phase"] for one in pods))
    pending = [one for one in pods if one["status"]["phase"] == "Pending"]
    figures.waiting = dict(Counter(map(waits_for, pending)))
    silent = [one for one in jobs if not (one.get("status") or {}).get("phase")]
    silent += [one for one in pending if not waits_for(one)]
    return {one["metadata"]["uid"]: f"{one['kind']} {one['metadata']['name']}" for one in silent}


def look_twice(target: Cluster, figures: Figures) -> None:
    """Count who gives no reason at two looks that are some seconds apart."""
    first = look(target, figures)
    time.sleep(SECOND_LOOK_SECONDS)
    figures.silent_once = len(first)
    both = sorted(first[uid] for uid in first.keys() & look(target, figures).keys())
    figures.silent, figures.silent_names = len(both), both[:10]


def watch(found: LocalCluster, figures: Figures, seconds: float, submitted: Future[None]) -> None:
    """Ask for one small object every second until the time after the submission is over.

    Raises:
        EdlError: of the submission, as soon as it has failed.
    """
    target, process = found.client(), _process(found)
    answers: list[float] = []
    ended = time.monotonic() + seconds
    while time.monotonic() < ended:
        asked = time.monotonic()
        client.get(target, NAMESPACES, "default")
        answers.append((time.monotonic() - asked) * 1000)
        figures.memory_mib = max(figures.memory_mib, process.memory_info().rss / 2**20)
        time.sleep(POLL_SECONDS)
        if submitted.done():
            submitted.result()
        else:  # on a busy machine the last jobs would have no time left
            ended = time.monotonic() + seconds
    figures.answer_milliseconds = (round(statistics.median(answers), 1), round(max(answers), 1))
    times = process.cpu_times()
    figures.cpu_seconds = round(times.user + times.system, 1)
    figures.memory_mib = round(figures.memory_mib, 1)


def _process(found: LocalCluster) -> psutil.Process:
    running = daemon.find(found.folder)
    if running is None:
        raise SystemExit(f"the cluster ended; see {daemon.log_file(found.folder)}")
    return psutil.Process(running.pid)


def measure(folder: Path, count: int, minutes: float) -> Figures:
    """Run it all."""
    figures = Figures(count)
    with cluster(folder, Settings(controller=True, pods_per_core=10)) as found, ThreadPoolExecutor(1) as pool:
        began = time.monotonic()
        submitted = pool.submit(submit, found, count, figures)
        watch(found, figures, minutes * 60, submitted)
        submitted.result()
        look_twice(found.client(), figures)
        figures.watched_seconds = round(time.monotonic() - began, 1)
        _process(found)
    return figures


def main() -> None:
    """Parse arguments, measure, print JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--folder", type=Path, help="of the cluster's state; kept")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place: Any = options.folder or Path(folder)
        print(json.dumps(asdict(measure(place, options.jobs, options.minutes)), indent=1))


if __name__ == "__main__":
    main()
