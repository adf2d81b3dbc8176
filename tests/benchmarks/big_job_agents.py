"""The agents of one big job over asyncio, in one process: they train nothing, but call the job's master as
the agent and the library of a training program do.

What they decide is the product's code (`choose_processes`, `HeldShards`, `Retries`); only the threads around
it are replaced. A directive of a big job has a hundred kilobytes, and all agents get the same text, so the
process parses it once.
"""

import asyncio
import contextlib
import functools
import json
import threading
import time
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from edl_workflows.core.exceptions import EdlError, InvalidError, UnavailableError
from edl_workflows.core.protocol import routes
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.core.protocol.datasets import AckReply, LeaseReply, LeaseRequest, LeaseState
from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.nodes import (
    Directive,
    ExitReport,
    ExitVerdict,
    Heartbeat,
    NodeRef,
    PresenceReport,
    ProcessReport,
    ProcessState,
    Registration,
    Usage,
)
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.agent.process_choice import choose_processes
from edl_workflows.services.agent.processes import LAST_CHARACTERS
from edl_workflows.training.client import ANSWER_SECONDS, Retries
from edl_workflows.training.data.held_shards import HeldShards
from edl_workflows.training.directives import POLL_SECONDS
from edl_workflows.training.reports import PRESENCE_SECONDS

DATASET = "train"
HEARTBEAT_SECONDS = 5.0
AHEAD = 4
"""Shards that a process holds besides the one that it processes."""
STEP_SECONDS = 5.0
"""A step of a job of this size; a process finishes a shard in it."""
_parse_directive = functools.lru_cache(maxsize=8)(Directive.model_validate_json)


@dataclass
class Fleet:
    """What all agents of a job share and note.

    Attributes:
        port, token: of the job's master.
        step_seconds: how long a step takes.
        trained: how often each shard was trained, by its ordinal.
        activations: when each node first knew of each active version, by version, in monotonic seconds.
        begun: when training began, for the number of the present step.
        shards_per_step: how many shards a process finishes in a step.
    """

    port: int
    token: str
    step_seconds: float = STEP_SECONDS
    trained: Counter[int] = field(default_factory=Counter)
    activations: dict[int, dict[int, float]] = field(default_factory=dict)
    begun: float = field(default_factory=time.monotonic)
    answers: int = 0
    shards_per_step: int = 1

    @property
    def step(self) -> int:
        return int((time.monotonic() - self.begun) / self.step_seconds) + 1


class MasterConnection:
    """One connection to the master, for one call at a time; reconnects after a failure."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._lock = asyncio.Lock()
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def call(self, route: routes.Route[Any, Any], message: Message | None, **names: str) -> bytes:
        """One attempt.

        Raises:
            UnavailableError: the master did not answer, or failed.
            InvalidError: it rejected the call.
        """
        path, body, wait = route.path.format(**names), b"", 0.0
        if route.method == "GET" and message is not None:
            query = message.model_dump(mode="json")
            path, wait = f"{path}?{urlencode(query)}", query["wait"]
        elif message is not None:
            body = message.model_dump_json().encode()
        return await self.send(route.method, path, body, wait)

    async def send(self, method: str, path: str, body: bytes, wait: float = 0.0) -> bytes:
        """Like `call`, with any body."""
        head = (
            f"{method} {path} HTTP/1.1\r\nHost: master\r\nAuthorization: Bearer {self._fleet.token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        async with self._lock:
            try:
                async with asyncio.timeout(ANSWER_SECONDS + wait):
                    status, answer = await self._exchange(head.encode() + body)
            except (OSError, asyncio.IncompleteReadError, TimeoutError) as error:
                self.close()
                raise UnavailableError(f"{method} {path}: {error!r}") from error
            except asyncio.CancelledError:
                self.close()
                raise
        self._fleet.answers += 1
        if status >= 400:
            kind = UnavailableError if status >= 500 else InvalidError
            raise kind(f"{method} {path}: {status}: {answer[:300]!r}")
        return answer

    async def _exchange(self, request: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._fleet.port, limit=2**20)
        reader, writer = self._streams
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0])
        answer = await reader.readexactly(length)
        if b"connection: close" in head:
            self.close()
        return int(head.split(None, 2)[1]), answer

    def close(self) -> None:
        """Drop the connection."""
        if self._streams is not None:
            self._streams[1].transport.abort()
            self._streams = None


class SimulatedAgent:
    """An agent, and the training process that it runs.

    Args:
        fleet: shared by all agents.
        node, rank: from the pod's labels.
    """

    def __init__(self, fleet: Fleet, node: int, rank: int) -> None:
        self.ref = NodeRef(type="worker", id=node)
        self._fleet = fleet
        self._rank = rank
        self._incarnation = uuid.uuid4().hex
        self._polls, self._calls = MasterConnection(fleet), MasterConnection(fleet)
        self._held = HeldShards()
        self._state = LeaseState.OK
        self._running: set[int] = set()
        self._reported: set[tuple[int, ProcessState]] = set()
        self._changed = asyncio.Event()
        self._done = asyncio.Event()
        self.directive = Directive(revision=0)
        self.registered = False
        self.code: int | None = None

    async def run(self) -> None:
        """Do what an agent and its process do, until told to end, or cancelled."""
        work = (self._done.wait(), self._follow(), self._beat(), self._train())
        tasks = [asyncio.create_task(part) for part in work]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def die(self, text: str, code: int) -> None:
        """Report the end of the process, as its agent does; call it after `run` was cancelled.

        Another client's report has the whole text, which the master refuses; the agent cuts it.
        """
        active = self.directive.active
        assert active is not None
        report = self._exit_report(active, code, text)
        await until_answered(lambda: self._calls.call(routes.DEATH, report))
        whole = json.dumps(report.model_dump(mode="json") | {"last_lines": text}).encode()
        with contextlib.suppress(InvalidError):
            await self._calls.send("POST", routes.DEATH.path, whole)
            raise AssertionError("the master accepted a text of a megabyte")
        answer = await until_answered(lambda: self._calls.call(routes.EXIT, report))
        assert not ExitVerdict.model_validate_json(answer).wait
        self.close()

    def close(self) -> None:
        """Drop the connections."""
        self._polls.close()
        self._calls.close()

    async def _follow(self) -> None:
        retries = Retries(threading.Event())
        while True:
            try:
                if not self.registered:
                    message = Registration(node=self.ref, rank=self._rank, incarnation=self._incarnation)
                    self._accept(await self._polls.call(routes.REGISTER, message))
                    self.registered = True
                query = routes.DirectiveQuery(
                    type=self.ref.type, id=self.ref.id, after=self.directive.revision, wait=POLL_SECONDS
                )
                self._accept(await self._polls.call(routes.DIRECTIVE, query))
                retries.reset()
            except UnavailableError:
                self.registered = False  # the hardest case: all register again with a new master
                await asyncio.sleep(retries.next_delay())

    def _accept(self, answer: bytes) -> None:
        directive = _parse_directive(answer)
        if not directive.revision or directive == self.directive:
            return
        self.directive = directive
        active = directive.active
        if active is not None:
            seen = self._fleet.activations.setdefault(active.version, {})
            seen.setdefault(self.ref.id, time.monotonic())
        if directive.stop or (directive.finished and active is not None):
            self._end()
        choice = choose_processes(directive, self.ref, self._running, set())
        self._running -= set(choice.end)
        self._running |= {cluster.version for cluster in choice.start}
        self._changed.set()

    async def _beat(self) -> None:
        await asyncio.sleep(HEARTBEAT_SECONDS * (self.ref.id % 100) / 100)
        while True:
            await self._report(
                routes.HEARTBEAT,
                Heartbeat(
                    node=self.ref,
                    incarnation=self._incarnation,
                    usage=Usage(cpu=1.0, memory=1000.0),
                    known=self.directive.revision,
                    asks_to_leave=True,
                ),
            )
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _report(self, route: routes.Route[Any, Any], message: Message) -> None:
        try:
            self._accept(await self._calls.call(route, message))
        except EdlError:  # the next report says the same
            await asyncio.sleep(0.1)

    async def _train(self) -> None:
        made = 0
        while True:
            self._changed.clear()
            for cluster in self.directive.clusters:
                if cluster.version in self._running:
                    await self._report_state(cluster, ProcessState.READY)
            if (active := self._training) is not None:
                if self.directive.drain:
                    await self._drain(active)
                elif (step := self._fleet.step) > made:
                    await self._step(active, step)
                    made = step
                else:
                    await self._say_present(active, made)
            try:
                async with asyncio.timeout(min(PRESENCE_SECONDS, self._fleet.step_seconds)):
                    await self._changed.wait()
            except TimeoutError:
                continue

    @property
    def _training(self) -> TrainingCluster | None:
        """The active version, if this process trains in it now."""
        active, broken = self.directive.active, self.directive.broken or self.directive.lost
        if active is None or broken or active.rank_of(self.ref.type, self.ref.id) is None:
            return None
        return active if active.process_of(self.ref.type, self.ref.id) in self._running else None

    async def _report_state(self, cluster: TrainingCluster, state: ProcessState) -> None:
        if (cluster.version, state) in self._reported:
            return
        self._reported.add((cluster.version, state))
        report = ProcessReport(
            node=self.ref, version=cluster.version, state=state, in_place=state is ProcessState.READY
        )
        with contextlib.suppress(InvalidError):  # the version is left
            self._accept(await until_answered(lambda: self._calls.call(routes.PROCESS, report)))

    async def _drain(self, active: TrainingCluster) -> None:
        self._held.give_back()
        while not self._held.settled:
            await self._acknowledge(active, stored=True)
        await self._report_state(active, ProcessState.DRAINED)

    async def _say_present(self, active: TrainingCluster, step: int) -> None:
        report = PresenceReport(
            node=self.ref, version=active.version, step=step, known=self.directive.revision
        )
        await self._report(routes.PRESENCE, report)

    async def _step(self, active: TrainingCluster, step: int) -> None:
        now = time.time()
        report = StepReport(
            node=self.ref,
            version=active.version,
            step=step,
            time=now,
            first_step_time=now,
            loss=1.0,
            known=self.directive.revision,
        )
        await self._report_state(active, ProcessState.TRAINING)
        await self._report(routes.STEP, report)
        await self._process_shard(active)

    async def _process_shard(self, active: TrainingCluster) -> None:
        if self._is_consumed():
            return
        if len(self._held.ahead) <= AHEAD // 2 and self._held.may_lease:
            await self._lease(active)
        for _ in range(min(self._fleet.shards_per_step, len(self._held.ahead))):
            shard = self._held.begin()
            self._fleet.trained[shard.ordinal] += 1
            self._held.finish(shard)
        if self._held.unsent or self._held.master:
            await self._acknowledge(active, stored=self._is_consumed())
        if self._is_consumed() and self._held.settled:
            await self._exit(active)

    async def _exit(self, active: TrainingCluster) -> None:
        report = self._exit_report(active, 0)
        answer = await until_answered(lambda: self._calls.call(routes.EXIT, report))
        if not ExitVerdict.model_validate_json(answer).wait:
            self._end()

    def _end(self) -> None:
        self.code = 0
        self._done.set()

    def _exit_report(self, active: TrainingCluster, code: int, text: str = "") -> ExitReport:
        return ExitReport(
            node=self.ref,
            incarnation=self._incarnation,
            version=active.process_of(self.ref.type, self.ref.id),
            code=code,
            asked=False,
            last_lines=text[-LAST_CHARACTERS:],
        )

    def _is_consumed(self) -> bool:
        return self._state is LeaseState.END

    async def _lease(self, active: TrainingCluster) -> None:
        request = self._held.lease_request(self._ask(active))
        try:
            answer = await self._calls.call(routes.LEASE, request, name=DATASET)
        except EdlError:
            return
        reply = LeaseReply.model_validate_json(answer)
        self._held.note_lease(reply)
        self._state = reply.state

    async def _acknowledge(self, active: TrainingCluster, *, stored: bool) -> None:
        request = self._held.acknowledgement(self._ask(active), stored=stored)
        answer = await until_answered(lambda: self._calls.call(routes.ACKNOWLEDGE, request, name=DATASET))
        self._held.note_acknowledged(AckReply.model_validate_json(answer))

    def _ask(self, active: TrainingCluster) -> LeaseRequest:
        return LeaseRequest(node=self.ref, version=active.version, max_shards=AHEAD)


async def until_answered(call: Callable[[], Awaitable[bytes]]) -> bytes:
    """Repeat a call until the master, which may be restarting, answers."""
    retries = Retries(threading.Event())
    while True:
        try:
            return await call()
        except UnavailableError:
            await asyncio.sleep(retries.next_delay())
