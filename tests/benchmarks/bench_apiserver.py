"""The embedded API server alone: objects created a second, and the time from sending a write to its watch
event.

    python tests/benchmarks/bench_apiserver.py [--json]

The server is a process of its own; 4 client threads write, one watches. Pods are the heaviest built-in kind;
an ElasticJob is checked against its schema and its CEL rules.
"""

import argparse
import json
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml

from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.runtime.kube.watch import EventType
from edl_workflows.testing import api_server

THREADS = 4
SENT = "bench/sent"
CRDS = Path(__file__).parents[2] / "edl_workflows" / "core" / "jobs" / "crds"
TEMPLATE = {"spec": {"containers": [{"name": "main", "image": "x", "command": ["true"]}]}}


def config_map(name: str) -> dict[str, Any]:
    """A small object."""
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "value"}}


def pod(name: str) -> dict[str, Any]:
    """A pod; nobody runs it."""
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, **TEMPLATE}


def elastic_job(name: str) -> dict[str, Any]:
    """A job; nobody reconciles it."""
    roles = {role: {"replicas": 2, "template": TEMPLATE} for role in ("ps", "worker")}
    return {
        "apiVersion": names.API_VERSION, "kind": "ElasticJob", "metadata": {"name": name},
        "spec": {"replicaSpecs": roles},
    }  # fmt: skip


CASES: tuple[tuple[str, ApiResource, Callable[[str], dict[str, Any]], int], ...] = (
    ("ConfigMaps", resources.CONFIG_MAPS, config_map, 2000),
    ("pods", resources.PODS, pod, 1000),
    ("ElasticJobs", resources.ELASTIC_JOBS, elastic_job, 400),
)


def measure(
    cluster: Cluster, resource: ApiResource, make: Callable[[str], dict[str, Any]], count: int
) -> dict[str, float]:
    """Creates `count` objects while a watch looks on."""
    latencies: list[float] = []
    seen = threading.Event()

    def take(change: Any) -> None:
        sent = (change.object["metadata"].get("annotations") or {}).get(SENT)
        if sent and change.type is EventType.ADDED:
            latencies.append(time.time() - float(sent))
            if len(latencies) == count:
                seen.set()

    def create(index: int) -> None:
        manifest = make(f"bench-{index}")
        manifest["metadata"]["annotations"] = {SENT: str(time.time())}
        client.create(cluster, manifest)

    informer = Informer(ClusterSource.of(cluster), Scope(resource, cluster.namespace))
    informer.on_change(take)
    informer.start()
    informer.wait_synced(30)
    began = time.perf_counter()
    with ThreadPoolExecutor(THREADS) as threads:
        list(threads.map(create, range(count)))
    seconds = time.perf_counter() - began
    if not seen.wait(30):
        raise SystemExit(f"{count - len(latencies)} of {count} watch events did not come")
    informer.stop()
    cuts = statistics.quantiles(latencies, n=100)
    return {
        "creates_per_second": count / seconds,
        "watch_p50_ms": cuts[49] * 1e3,
        "watch_p99_ms": cuts[98] * 1e3,
    }


def main() -> None:
    """Prints a table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edl-bench-") as folder, api_server(Path(folder)) as server:
        cluster = server.cluster()
        for file in sorted(CRDS.glob("*.yaml")):
            client.create(cluster, yaml.safe_load(file.read_text()))
        rows = {name: measure(cluster, resource, make, count) for name, resource, make, count in CASES}
    if options.json:
        print(json.dumps(rows))
        return
    print(f"{'':12} {'creates/s':>10} {'write → event p50':>20} {'p99':>10}")
    for name, row in rows.items():
        print(
            f"{name:12} {row['creates_per_second']:>10.0f} {row['watch_p50_ms']:>17.1f} ms "
            f"{row['watch_p99_ms']:>7.1f} ms"
        )


if __name__ == "__main__":
    main()
