"""A master with its real API, effects and watch, a cluster that echoes its writes, and nodes that train."""

import asyncio
import contextlib
import copy
import json
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan.model import ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.core.kubernetes.api import ApiResource
from edl_workflows.runtime.kube import resources
from edl_workflows.runtime.kube.cache import ObjectCache, ObjectChange
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.events import EventNote
from edl_workflows.runtime.kube.resources import Scope
from edl_workflows.services.master import kubernetes
from edl_workflows.services.master.app import create_app
from edl_workflows.services.master.effects import Effects
from edl_workflows.services.master.kubernetes import ClusterWatch
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest
from edl_workflows.services.master.state.nodes.registry import JobNode
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.settings import Timeouts, settings_of
from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.virtual_time import Clock

TOKEN = "secret"
EPOCH = 1_750_000_000.0
DATA = "train"
STEPS_PER_SECOND = 9.5
REPORT_SECONDS = 2.0
"""Between two reports of the step; a training program reports it more often, which changes nothing here."""


class FakeInformer:
    """An informer that gets its events from the test."""

    def __init__(self, _source: object, scope: Scope, **_options: Any) -> None:
        self.scope = scope
        self.cache = ObjectCache()
        self.synced = True
        self.last_error = None
        self._listeners: list[Callable[[ObjectChange], None]] = []

    def on_change(self, listener: Callable[[ObjectChange], None]) -> None:
        self._listeners.append(listener)

    def start(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def wait_synced(self, _seconds: float) -> bool:
        return True

    def deliver(self, obj: Mapping[str, Any]) -> None:
        """An event of the watch."""
        change = self.cache.put(copy.deepcopy(dict(obj)))
        if change is not None:
            for listener in self._listeners:
                listener(change)


@dataclass
class Write:
    """One write: of the state or of the job's status, in seconds of the clock."""

    kind: str
    at: float
    size: int
    content: dict[str, Any] = field(default_factory=dict)


class FakeCluster:
    """An API server: takes the master's writes, counts them, and sends each back to the master's watch."""

    interval = 1.0
    capacity = 1_000_000
    place = "memory"

    def __init__(self, job: dict[str, Any], clock: Clock) -> None:
        self.job = copy.deepcopy(job)
        self.writes: list[Write] = []
        self.document: bytes | None = None
        self.away = False
        self.loses_answers = False
        """Whether the master gets no answer to a write that was applied."""
        self._clock = clock
        self._informers: dict[str, FakeInformer] = {}
        self._version = 1

    def make_informer(self, source: object, scope: Scope, **options: Any) -> FakeInformer:
        informer = FakeInformer(source, scope, **options)
        self._informers[scope.resource.plural] = informer
        if scope.resource is resources.ELASTIC_JOBS:
            informer.deliver(self.job)
        return informer

    def deliver(self, resource: ApiResource, obj: Mapping[str, Any]) -> None:
        self._version += 1
        metadata = {**obj["metadata"], "resourceVersion": str(self._version)}
        self._informers[resource.plural].deliver({**obj, "metadata": metadata})

    def annotate(self, **annotations: str | None) -> None:
        """Somebody changes annotations of the job; None removes one."""
        merged = {**self.job["metadata"].get("annotations", {}), **annotations}
        kept = {name: value for name, value in merged.items() if value is not None}
        self.job["metadata"]["annotations"] = kept
        self.deliver_job()

    def deliver_job(self) -> None:
        """Send the job as it is to the master's watch."""
        self.deliver(resources.ELASTIC_JOBS, self.job)

    @property
    def shown_steps(self) -> list[tuple[float, int]]:
        """The step in the status, and since when."""
        written = [write for write in self.written("status") if "progress" in write.content]
        return [(write.at, write.content["progress"]["step"]) for write in written]

    def written(self, kind: str, since: float = 0.0) -> list[Write]:
        return [write for write in self.writes if write.kind == kind and write.at >= since]

    # The master's store.

    def load(self) -> bytes | None:
        return self.document

    def save(self, document: bytes) -> None:
        self.document = document
        self.writes.append(Write("state", self._clock.now, len(document)))

    # The master's backend.

    def ask_for_pods(self, request: PodRequest, nodes: dict[tuple[str, int], JobNode]) -> None:
        owner = {"uid": self.job["metadata"]["uid"], "controller": True, "kind": "ElasticJob", "name": "job"}
        for node_type, node_id in request.create:
            labels = {names.REPLICA_TYPE_LABEL: node_type, names.REPLICA_INDEX_LABEL: str(node_id)}
            name = names.node_name("job", node_type, node_id)
            metadata = {"name": name, "namespace": "default", "uid": name, "labels": labels}
            pod = {"metadata": metadata | {"ownerReferences": [owner]}, "status": {"phase": "Running"}}
            self.deliver(resources.PODS, pod)
        name, labels = request.name("job"), {names.SCALE_TYPE_LABEL: names.SCALE_AUTO}
        metadata = {"name": name, "namespace": "default", "uid": name, "labels": labels}
        head = {
            "apiVersion": names.API_VERSION,
            "kind": "ScalePlan",
            "metadata": metadata | {"ownerReferences": [owner]},
        }
        plan = {**head, "spec": {"ownerJob": "job"}, "status": {"phase": "Succeeded"}}
        self.deliver(resources.SCALE_PLANS, plan)

    def make_plan(self, name: str, spec: ScalePlanSpec) -> None:
        raise AssertionError(f"{name}: a steady job is not changed")

    def is_job_deleted(self) -> bool:
        return False

    def report_plan(self, rollout: Rollout, status: dict[str, Any]) -> None:
        raise AssertionError(f"{rollout.name}: a steady job has no plan")

    def record_event(self, event: EventNote) -> None:
        raise AssertionError(f"{event}: nothing happens in a steady job")

    def report_job(self, status: dict[str, Any]) -> None:
        text = json.dumps(status, default=str)
        self.writes.append(Write("refused" if self.away else "status", self._clock.now, len(text), status))
        if self.away:
            raise UnavailableError("the API server is away")
        self.job["status"] = {**self.job.get("status", {}), **json.loads(text)}
        self.deliver_job()
        if self.loses_answers:
            raise UnavailableError("no answer in time")


def job_manifest(strategy: str, **replicas: int) -> dict[str, Any]:
    """An ElasticJob as the API server has it."""
    template = {"spec": {"containers": [{"name": "main", "image": "x"}]}}
    specs = {role: {"replicas": count, "template": template} for role, count in replicas.items()}
    metadata = {"name": "job", "namespace": "default", "uid": "u", "generation": 1, "resourceVersion": "1"}
    spec = {"distributionStrategy": strategy, "replicaSpecs": specs}
    return {"apiVersion": names.API_VERSION, "kind": "ElasticJob", "metadata": metadata, "spec": spec}


class SteadyJob:
    """A job whose workers train at the same speed all the time."""

    def __init__(self, cluster: FakeCluster, master: Master, client: httpx.AsyncClient, clock: Clock) -> None:
        self.cluster = cluster
        self.master = master
        self.step = 0
        self._client = client
        self._clock = clock
        self._leases: list[dict[str, Any]] = []
        self._began = self._unix

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        response = await self._client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def start(self) -> None:
        """Bring the job to its first step."""
        await asyncio.sleep(5.0)  # pods are created
        nodes = list(self.master.state.nodes)
        for node in nodes:
            await self.post("/v1/nodes", node=node.ref.model_dump(), rank=node.rank, incarnation="a")
        await asyncio.sleep(3.0)
        for node in nodes:
            await self.post("/v1/processes", node=node.ref.model_dump(), version=1, state="ready")
        await asyncio.sleep(3.0)
        await self.report()

    async def register_data(self) -> None:
        await self.post("/v1/datasets", name=DATA, size=10**9, shard_size=64, batch_size=64)

    async def report(self) -> None:
        """The chief reports a step, as its program does."""
        times = {"time": self._unix, "first_step_time": self._began}
        losses = {"loss": 1 / (1 + self.step), "metrics": {"accuracy": 0.5 + self.step / 1e6}}
        node = {"type": "worker", "id": 0}
        await self.post(
            "/v1/steps", node=node, version=1, step=self.step, records=self.step, **times, **losses
        )

    async def consume(self, *, keeps: bool = True) -> None:
        """The worker acknowledges its shards, and leases others.

        Args:
            keeps: whether it keeps its acknowledgements until they are stored, as agents do.
        """
        request = {"node": {"type": "worker", "id": 0}} | ({"keeps": True} if keeps else {})
        if self._leases:
            await self.post(f"/v1/datasets/{DATA}/ack", **request, done=self._leases)
        answer = await self.post(f"/v1/datasets/{DATA}/lease", **request, version=1, max_shards=10)
        self._leases = [{name: s[name] for name in ("epoch", "ordinal", "lease")} for s in answer["shards"]]

    async def train(self, seconds: float, *, data: bool = False, keeps: bool = True) -> None:
        """Train for so long.

        Args:
            seconds: of the clock.
            data: whether shards are leased and acknowledged.
            keeps: whether the worker keeps its acknowledgements.
        """
        begun, first = self._clock.now, self.step
        while self._clock.now < begun + seconds:
            await asyncio.sleep(REPORT_SECONDS)
            self.step = first + round((self._clock.now - begun) * STEPS_PER_SECOND)
            for node in self.master.state.nodes:
                await self.post("/v1/nodes/heartbeat", node=node.ref.model_dump(), incarnation="a")
            await self.report()
            if data:
                await self.consume(keeps=keeps)

    @property
    def _unix(self) -> float:
        return EPOCH + self._clock.now


@contextlib.asynccontextmanager
async def running_job(
    manifest: dict[str, Any] | FakeCluster, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[SteadyJob]:
    """Run a master of this job, or the next master of a cluster's job."""
    cluster = manifest if isinstance(manifest, FakeCluster) else FakeCluster(manifest, clock)
    monkeypatch.setattr(kubernetes, "Informer", cluster.make_informer)
    job = ElasticJob.parse(cluster.job)
    stored = StoredState.from_json(cluster.document) if cluster.document else None
    state = JobState(settings_of(job, "default", Timeouts()), stored, watches_pods=True)
    master = Master(state, cluster, lambda: EPOCH + clock.now)
    watch = ClusterWatch(Cluster(None, "default", "key"), job, master, Timeouts())
    effects = Effects(master, cluster, clock)
    transport = httpx.ASGITransport(create_app(master, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    client = httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers, timeout=None)
    async with client, watch.running():
        tasks = [asyncio.create_task(master.run()), asyncio.create_task(effects.run())]
        try:
            yield SteadyJob(cluster, master, client, clock)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
