"""What runs most often in a cluster with many jobs, as functions that can be called again and again, and what
a call costs.

Costs are counts of the interpreter's own profiler, so they are the same on each machine, however busy. They
differ between versions of Python: since 3.12, comprehensions are no functions.
"""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import cache, partial
from io import BytesIO
from itertools import count
from typing import Any

import urllib3

from edl_workflows.core.jobs.kinds import KINDS, kind_of
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    LeaseReply,
    LeaseRequest,
    ShardKey,
)
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.core.protocol.routes import ACKNOWLEDGE, LEASE, Route
from edl_workflows.pipelines.stages.driver import GoalWait
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.runtime.kube import client, connect, resources
from edl_workflows.runtime.kube.cache import ObjectCache
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.runtime.kube.watch import WatchStream
from edl_workflows.services.controller.observed_cluster import ObservedCluster
from edl_workflows.services.master.app import create_app
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.shards.dataset import ShardedDataset
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import views
from edl_workflows.services.master.state.history import extend_history
from edl_workflows.services.master.state.settings import JobSettings
from tests.call_counts import count_calls
from tests.cases.kinds import KIND_CASES
from tests.jobs_namespace import JobsNamespace
from tests.unit.services.master.served_master import GatedStore
from tests.unit.services.master.simulated_job import SimulatedJob

Path = Callable[[], object]

WARM_UP = 3
"""Calls before the one that counts, so that caches are filled."""
MEASUREMENTS = 3
REQUESTS = 10
"""That are counted together: an event loop alone calls more functions than one of them."""
SECONDS_TRAINED = 1_000


@dataclass(frozen=True)
class Cost:
    """What one call costs.

    Attributes:
        calls: functions called, those written in C included.
        kilobytes: most memory in use for the call at a time.
    """

    calls: int
    kilobytes: int


def measure_cost(path: Path) -> Cost:
    """Call a path until its caches are filled, and count once."""
    for _ in range(WARM_UP):
        path()
    gc.disable()  # a collection would call the finalizers of other tests' objects
    try:
        # The least of several, since other threads may need memory at the same time.
        return Cost(count_calls(path), min(_measure_peak(path) for _ in range(MEASUREMENTS)))
    finally:
        gc.enable()


def _measure_peak(path: Path) -> int:
    tracemalloc.start()
    try:
        begun = tracemalloc.get_traced_memory()[0]
        path()
        return round((tracemalloc.get_traced_memory()[1] - begun) / 1024)
    finally:
        tracemalloc.stop()


def _name_of(kind: str) -> str:
    return str(KIND_CASES[kind].example["metadata"]["name"])


def _lease_shards(batch: int) -> Path:
    dataset = ShardedDataset.new(DatasetParams(name="train", size=10**9, shard_size=100))
    return lambda: dataset.acknowledge("worker-0", dataset.lease("worker-0", batch, 1.0), 1.0)


class _UnstoredMaster(Master):
    """A master whose answers don't wait for the store."""

    async def durable(self, change: int) -> None:
        del change


def _serve_requests() -> tuple[Callable[[Route[Any, Any], Message], Awaitable[bytes]], LeaseRequest]:
    """Calls the master's application, without server and store; with a request for a shard."""
    job = _start_job()
    job.state.shards.register(DatasetParams(name="endless", size=10**9, shard_size=100))
    app = create_app(_UnstoredMaster(job.state, GatedStore(), lambda: job.now), "token")
    worker, cluster = NodeRef(type="worker", id=0), job.published.directive.active
    assert cluster is not None
    lease = LeaseRequest(node=worker, version=cluster.version)

    async def call(route: Route[Any, Any], message: Message) -> bytes:
        body = message.model_dump_json().encode()
        parts: list[Any] = []
        path = route.path.format(name="endless")
        headers = [(b"authorization", b"Bearer token"), (b"content-length", b"%d" % len(body))]
        scope = {
            "type": "http",
            "method": route.method,
            "path": path,
            "headers": headers,
            "query_string": b"",
        }

        async def receive() -> dict[str, Any]:
            return {"type": "http.request", "body": body}

        async def send(part: Any) -> None:
            parts.append(part)

        await app(scope, receive, send)
        answer: bytes = parts[1]["body"]
        return answer

    return call, lease


def _answer_requests() -> Path:
    """Leases and acknowledgements as two requests each, as an older worker sends them."""
    call, lease = _serve_requests()

    async def call_both() -> None:
        granted = LeaseReply.model_validate_json(await call(LEASE, lease))
        done = AckRequest(node=lease.node, done=granted.shards)
        assert AckReply.model_validate_json(await call(ACKNOWLEDGE, done)).accepted == 1

    return _run_repeatedly(call_both)


def _answer_leases() -> Path:
    """Leases that acknowledge the shard before."""
    call, lease = _serve_requests()
    done: list[ShardKey] = []

    async def call_once() -> None:
        request = lease.model_copy(update={"keeps": True, "done": list(done)})
        granted = LeaseReply.model_validate_json(await call(LEASE, request))
        assert granted.recorded == bool(done)
        done[:] = granted.shards

    return _run_repeatedly(call_once)


def _run_repeatedly(call: Callable[[], Awaitable[None]]) -> Path:
    """Calls in an event loop of their own.

    `asyncio.run` would look at each task that other tests left behind, and at the handler of SIGINT.
    """

    async def repeat() -> None:
        for _ in range(REQUESTS):
            await call()

    def run() -> None:
        loop = asyncio.new_event_loop()
        try:
            loop.run_until_complete(repeat())
        finally:
            loop.close()

    return run


def _start_job() -> SimulatedJob:
    job = SimulatedJob(JobSettings("digits", "default", parse_nodes("ps=1,worker=2")), shards=10_000)
    job.calm()
    return job


@cache
def _train_job() -> SimulatedJob:
    """A job that has trained for long enough to have a long history."""
    job = _start_job()
    for _ in range(SECONDS_TRAINED):
        job.now += 1.0
        job.state.history = extend_history(job.state.history, views.history_sample(job.state, job.now))
    return job


def _report_status() -> Path:
    job = _train_job()
    return lambda: views.job_status(job.state, job.now)


def _store_state() -> Path:
    return _train_job().state.to_json


@cache
def _settle_job(kind: str) -> JobsNamespace:
    """The example of a kind, with all its pods running and nothing to do."""
    world = JobsNamespace()
    world.add(KIND_CASES[kind].example)
    for _ in range(5):
        world.settle()
        for found, name in list(world.objects):
            if found == "Pod":
                world.set_pod(name, "Running")
    if kind == "ElasticJob":
        job = _train_job()
        world.edit(kind, _name_of(kind), {"status": views.job_status(job.state, job.now)})
        world.settle()
    return world


def _decide(name: str) -> Path:
    kind, world = kind_of(name), _settle_job(name)
    manifest = world.objects[name, _name_of(name)]
    observed = world.observe(kind, manifest)
    return lambda: kind.decide(manifest, observed)


def _make_lines() -> Callable[[], bytes]:
    """The lines of a watch about a job that changes again and again."""
    manifest = _settle_job("ElasticJob").objects["ElasticJob", _name_of("ElasticJob")]
    metadata = manifest["metadata"] | {"resourceVersion": "@"}
    line = json.dumps({"type": "MODIFIED", "object": manifest | {"metadata": metadata}}).encode()
    versions = count(10**6)
    return lambda: line.replace(b'"@"', b'"%d"' % next(versions))


def _observe_events() -> Path:
    kind = kind_of("ElasticJob")
    cluster = Cluster(api_client=None, namespace="default", key="none")
    world = ObservedCluster(
        cluster,
        NamespaceSelection.of("default"),
        (kind.source,),
        (kind.source.api,),
        lambda _group: None,
        lambda *_: None,
    )
    (informer,) = world._informers
    stream, next_line = _watch_jobs(cluster), _make_lines()
    return lambda: informer._take(stream._parse(next_line()))


def _watch_jobs(cluster: Cluster) -> WatchStream:
    return WatchStream(cluster, Scope(resources.ELASTIC_JOBS, "default"), "1")


def _evaluate_events() -> Path:
    handle = Handle(
        kind="ElasticJob", namespace="default", name=_name_of("ElasticJob"), goal=JobGoal(step=10**9)
    )
    wait, cache, next_line = GoalWait(handle), ObjectCache(), _make_lines()
    stream = _watch_jobs(Cluster(api_client=None, namespace="default", key="none"))

    def evaluate() -> None:
        change = cache.put(stream._parse(next_line()).object)
        assert change is not None
        assert wait.take(change.object) is None

    return evaluate


def _write_status() -> Path:
    """A write of a job's status, from the call to the connection and back."""
    manifest = _settle_job("ElasticJob").objects["ElasticJob", _name_of("ElasticJob")]
    answer = json.dumps(manifest).encode()
    api_client = connect._api_client(connect._new_configuration())

    def send(*_arguments: object, **_options: object) -> urllib3.HTTPResponse:
        return urllib3.HTTPResponse(BytesIO(answer), status=200, preload_content=False)

    api_client.rest_client.pool_manager.urlopen = send
    cluster = Cluster(api_client, "default", "none")
    name, status = _name_of("ElasticJob"), manifest["status"]
    return lambda: client.patch_status(cluster, resources.ELASTIC_JOBS, name, status)


HOT_PATHS: dict[str, Callable[[], Path]] = {
    "lease and acknowledge one shard": partial(_lease_shards, 1),
    "lease and acknowledge 100 shards": partial(_lease_shards, 100),
    "answer 10 leases and acknowledgements": _answer_requests,
    "answer 10 leases that acknowledge": _answer_leases,
    "make a master's status": _report_status,
    "make a master's state": _store_state,
    "write a status": _write_status,
    "take an event in the controller": _observe_events,
    "take an event in a trigger": _evaluate_events,
    **{f"decide about {kind.name}": partial(_decide, kind.name) for kind in KINDS if kind.view is not None},
}
"""Makes each path, by name."""
