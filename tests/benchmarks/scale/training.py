"""A training without agents and programs: enters their messages into the master's state, as its API does.

What costs the API server depends on the master alone, so the messages are not sent over HTTP. They come as
often as those of a real training.
"""

import asyncio
import random
import time
from collections.abc import Callable

from edl_workflows.core.jobs.elastic_job.awaited_steps import has_passed
from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause
from edl_workflows.core.protocol.datasets import AckRequest, DatasetParams, LeaseRequest, ShardKey
from edl_workflows.core.protocol.nodes import Heartbeat, NodeRef, ProcessReport, ProcessState, Registration
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.data_calls import DataCalls
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.state import messages, training_messages
from edl_workflows.services.master.state.goodput import Goodput
from edl_workflows.services.master.state.history import History, HistorySample
from edl_workflows.services.master.state.nodes.registry import NodeStatus
from edl_workflows.services.master.state.settings import JobSettings
from edl_workflows.services.master.state.stored_state import StoredState

STEPS_PER_SECOND = 9.5
REPORT_SECONDS = 2.0
"""Between two messages of a worker about its step and its data."""
HEARTBEAT_SECONDS = 5.0
BATCH = 64
JOIN_SECONDS = 0.2
"""Between two looks whether nodes may join."""
TRAINED_SECONDS = 600.0
"""For which a job that is not young has trained before."""
MOVED_SECONDS = 120.0
"""After which a master that is alone goes to a random point of its period; its first events are past then."""
_DATA = "train"
_INCARNATION = "a"

OnStep = Callable[[int, float], None]
"""Called with an awaited step, and the time at which it was reported in Unix seconds."""


def trained_state(settings: JobSettings, now: float) -> StoredState:
    """What the master of a job that has trained for `TRAINED_SECONDS` goes on from."""
    roles = {role: spec.replicas for role, spec in settings.roles.items()}
    began = now - TRAINED_SECONDS
    history = History()
    points = tuple(
        HistorySample(at, round((at - began) * STEPS_PER_SECOND), roles, metrics={"loss": 0.5})
        for at in (began + history.interval * index for index in range(round(TRAINED_SECONDS / 5)))
    )
    queued = {TimeCause.QUEUED: 60.0}
    spent = Goodput(began=began - 60, useful=TRAINED_SECONDS, spent=queued, since=now, worked=True)
    return StoredState(roles, history=History(history.interval, points), goodput=spent)


class SyntheticTraining:
    """Trains one job at a constant speed.

    Args:
        master: of the job.
        on_step: called when a step was reported that somebody waits for.
        rarer: how many times less often messages come than those of a real training.
    """

    def __init__(self, master: Master, on_step: OnStep, rarer: float = 1.0) -> None:
        self._master = master
        self._rarer = rarer
        self._state = master.state
        self._on_step = on_step
        self._calls = DataCalls(master)
        self._leased: list[ShardKey] = []
        self._began = 0.0
        self._first = round(master.state.goodput.useful * STEPS_PER_SECOND)

    @property
    def step(self) -> int:
        """The newest step."""
        return self._state.steps.step

    async def start(self) -> None:
        """Let the nodes join, and report the first step."""
        while self._state.versions.active is None:
            await asyncio.sleep(JOIN_SECONDS)
            self._join()
        if not self._state.settings.collective:
            dataset = DatasetParams(name=_DATA, size=10**9, shard_size=BATCH, batch_size=BATCH)
            training_messages.register_dataset(self._state, dataset, self._master.store_use)
        self._began = self._master.now()
        await self._report()

    async def run(self) -> None:
        """Train until cancelled."""
        await asyncio.sleep(random.uniform(0, REPORT_SECONDS * self._rarer))
        beat = 0.0
        while True:
            if time.monotonic() - beat >= HEARTBEAT_SECONDS * self._rarer:
                beat = time.monotonic()
                self._beat()
            await self._report()
            if not self._state.settings.collective:
                await self._consume()
            await asyncio.sleep(REPORT_SECONDS * self._rarer)

    def _join(self) -> None:
        """All nodes register once all pods run, or at once where there are no pods; when a version is
        prepared, its processes are ready.

        If they registered as their pods come, a collective job would begin without a worker whose pod takes
        long, and change its version later.
        """
        state, change = self._state, self._state.versions.change
        nodes = list(state.nodes)
        if state.watches_pods and any(node.status is not NodeStatus.RUNNING for node in nodes):
            return
        for node in nodes:
            if not node.registered:
                joins = Registration(node=node.ref, rank=node.rank, incarnation=_INCARNATION)
                messages.register_node(state, joins, self._master.now())
            elif change is not None and change.number:
                ready = ProcessReport(node=node.ref, version=change.number, state=ProcessState.READY)
                training_messages.record_process(state, ready, self._master.now())
        self._master.changed(WriteUrgency.NOW)

    def _beat(self) -> None:
        for node in list(self._state.nodes):
            beat = Heartbeat(node=node.ref, incarnation=_INCARNATION)
            messages.record_heartbeat(self._state, beat, self._master.now())

    async def _report(self) -> None:
        """As the route of a step does."""
        state, now, active = self._state, self._master.now(), self._state.versions.active
        assert active is not None, f"{state.settings.name} does not train any more"
        before, step = state.steps.step, self._first + round((now - self._began) * STEPS_PER_SECOND)
        report = StepReport(
            node=self._worker, version=active.number, step=step, time=now, first_step_time=self._began,
            records=step * BATCH if state.settings.collective else 0, loss=1 / (1 + step / 1000),
            metrics={"accuracy": 0.5},
        )  # fmt: skip
        first = training_messages.record_step(state, report, now)
        if has_passed(before, step, state.settings.awaited_steps):
            self._master.wake_effects()
            for awaited in state.settings.awaited_steps:
                if before < awaited <= step:
                    self._on_step(awaited, time.time())
        if first:
            await self._master.durable(self._master.changed(WriteUrgency.NOW))
        else:
            self._master.touched(WriteUrgency.LAZY)

    async def _consume(self) -> None:
        """Acknowledge the shards, and lease others."""
        done = AckRequest(node=self._worker, done=self._leased, keeps=True)
        await self._calls.acknowledge(_DATA, done)
        active = self._state.versions.active
        version = active.number if active is not None else 0
        asks = LeaseRequest(node=self._worker, version=version, max_shards=10, keeps=True)
        reply = await self._calls.lease(_DATA, asks)
        self._leased = [ShardKey(epoch=s.epoch, ordinal=s.ordinal, lease=s.lease) for s in reply.shards]

    @property
    def _worker(self) -> NodeRef:
        return next(node.ref for node in self._state.nodes if node.type == "worker" and node.rank == 0)
