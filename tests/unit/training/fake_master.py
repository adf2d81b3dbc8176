"""A master for the agent's tests: real HTTP and the real sharding core; its directive is what the test
says."""

import asyncio
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, Any

import uvicorn
from fastapi import Depends, FastAPI, Header, HTTPException, Request
from fastapi.responses import JSONResponse

from edl_workflows.core.exceptions import ConflictError, InvalidError, NotFoundError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef, Member, TrainingCluster
from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DatasetParams,
    DatasetProgress,
    LeaseReply,
    LeaseRequest,
)
from edl_workflows.core.protocol.nodes import (
    CheckReport,
    CrashReport,
    Directive,
    ExitReport,
    ExitVerdict,
    Heartbeat,
    LeaveReport,
    LeaveVerdict,
    PresenceReport,
    ProcessReport,
    Registration,
    StackReport,
)
from edl_workflows.core.protocol.sync import BarrierState, SyncJoin, SyncState
from edl_workflows.core.protocol.training import (
    CheckpointBegin,
    CheckpointDamage,
    CheckpointEnd,
    CheckpointRestore,
    CheckpointTicket,
    ModelReport,
    ModelVerdict,
    StepReceipt,
    StepReport,
)
from edl_workflows.services.master.shards import ShardManager
from edl_workflows.training.job import Job

TOKEN = "fake-token"
_STATUS = {NotFoundError: 404, ConflictError: 409, InvalidError: 422}


def eventually(condition: Callable[[], Any], seconds: float = 240.0, what: str = "") -> Any:
    """The condition's first true value; fails when there is none in time."""
    end = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < end, f"not within {seconds} s: {what or condition}"
        time.sleep(0.01)
    return value


def cluster(
    version: int, ps: int = 0, restore: CheckpointRef | None = None, chief: int = 0
) -> TrainingCluster:
    """A cluster version with parameter servers 0..ps-1."""
    members = [
        Member(rank=i, id=i, address=f"demo-edljob-ps-{i}.demo-edljob.default.svc:2222") for i in range(ps)
    ]
    return TrainingCluster(version=version, ps=members, restore=restore, chief_id=chief)


def world(
    version: int, workers: tuple[int, ...], restore: CheckpointRef | None = None, max_workers: int = 4
) -> TrainingCluster:
    """A cluster version of a collective job: the ids of its workers by rank."""
    members = [
        Member(rank=rank, id=i, address=names.node_address("demo", "default", names.WORKER_TYPE, i, version))
        for rank, i in enumerate(workers)
    ]
    return TrainingCluster(
        version=version, workers=members, max_workers=max_workers, restore=restore, chief_id=workers[0]
    )


def in_place(version: int, workers: tuple[int, ...], process: int = 1) -> TrainingCluster:
    """A version in which these processes go on."""
    made = world(version, workers)
    members = [member.model_copy(update={"process": process}) for member in made.workers]
    return made.model_copy(update={"workers": members})


class FakeMaster:
    """One job's master.

    Attributes:
        url: where it listens.
        shards: the real sharding core.
        wait_on_exit: its verdict on ended training processes.
        leave: its verdict on nodes that are told to end.
        knows_node: refuses reports of exits and of damage, and to say a directive, when cleared.
        rank: refuses nodes that register with another; None: takes all.
        away: answers 503 to everything while set.
        awaited: the step that somebody waits for; 0: none.
        refuses_ends: of checkpoints, as when another version has become active.
        refuses_positions: of checkpoints that are restored.
        deaf_to_ends: answers 503 to ends of checkpoints while set.
        ends_asked: how often somebody tried to tell one.
        position: the data position that it says when a checkpoint begins.
        refuses_model: its verdict on what a restored model says.
        received: all messages, in order.
    """

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self.address = f"127.0.0.1:{port}"
        self.shards = ShardManager()
        self.directive = Directive(revision=1)
        self.wait_on_exit = False
        self.leave = LeaveVerdict(wait=False)
        self.away = False
        self.awaited = 0
        self.knows_node = True
        self.rank: int | None = None
        self.refuses_ends = False
        self.refuses_positions = False
        self.deaf_to_ends = False
        self.ends_asked = 0
        self.position: dict[str, Any] | None = None
        self.refuses_model = ""
        self.sync_finished = False
        self.barrier_open = False
        self.received: list[Any] = []

    def say(self, **changes: Any) -> None:
        """Change the directive."""
        self.directive = self.directive.model_copy(
            update={"revision": self.directive.revision + 1, **changes}
        )

    def got(self, kind: type[Any], **fields: Any) -> list[Any]:
        """Messages of a kind with these fields."""
        return [
            message
            for message in list(self.received)
            if isinstance(message, kind)
            and all(getattr(message, name) == value for name, value in fields.items())
        ]

    def take(self, message: Any) -> Directive:
        """Note a message."""
        self.received.append(message)
        return self.directive

    def app(self) -> FastAPI:
        """Its HTTP API."""
        app = FastAPI(dependencies=[Depends(self._admit)])
        for error in _STATUS:
            app.add_exception_handler(error, _refuse)
        self._node_routes(app)
        self._process_routes(app)
        self._check_routes(app)
        self._restoring_routes(app)
        self._training_routes(app)
        self._sync_routes(app)
        self._dataset_routes(app)
        return app

    def _admit(self, authorization: Annotated[str, Header()] = "") -> None:
        if self.away:
            raise HTTPException(503, "the master is away")
        if authorization != f"Bearer {TOKEN}":
            raise HTTPException(401, "no or a wrong token")

    def _check_rank(self, message: Registration) -> None:
        if self.rank not in (None, message.rank):
            raise ConflictError(f"{message.node} has rank {self.rank}, it says {message.rank}")

    def _node_routes(self, app: FastAPI) -> None:
        @app.post("/v1/nodes")
        def register(message: Registration) -> Directive:
            self._check_rank(message)
            return self.take(message)

        @app.post("/v1/nodes/heartbeat")
        def heartbeat(message: Heartbeat) -> Directive:
            return self.take(message)

        @app.post("/v1/nodes/exit")
        def exited(message: ExitReport) -> ExitVerdict:
            self.take(message)
            if not self.knows_node:
                raise NotFoundError("the job has no such node")
            return ExitVerdict(wait=self.wait_on_exit)

        @app.post("/v1/nodes/leave")
        def leaves(message: LeaveReport) -> LeaveVerdict:
            self.take(message)
            return self.leave

        @app.get("/v1/directive")
        async def directive(after: int, wait: float) -> Directive:
            if not self.knows_node:
                raise NotFoundError("the job has no such node")
            end = time.monotonic() + min(wait, 30)
            # Polling: the test changes the directive in another thread.
            while self.directive.revision <= after and time.monotonic() < end and not self.away:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            return self.directive

    def _process_routes(self, app: FastAPI) -> None:
        @app.post("/v1/processes")
        def process(message: ProcessReport) -> Directive:
            return self.take(message)

        @app.post("/v1/processes/presence")
        def present(message: PresenceReport) -> Directive:
            return self.take(message)

        @app.post("/v1/processes/crashes")
        def crashed(message: CrashReport) -> Directive:
            return self.take(message)

    def _check_routes(self, app: FastAPI) -> None:
        @app.post("/v1/nodes/stacks")
        def stacks(message: StackReport) -> Directive:
            return self.take(message)

        @app.post("/v1/nodes/check")
        def checked(message: CheckReport) -> Directive:
            return self.take(message)

    def _training_routes(self, app: FastAPI) -> None:
        @app.post("/v1/steps")
        def step(message: StepReport) -> StepReceipt:
            awaited = self.awaited if self.awaited > message.step else 0
            return StepReceipt(**dict(self.take(message)), awaited=awaited)

        @app.post("/v1/checkpoints")
        def begin(message: CheckpointBegin) -> CheckpointTicket:
            self.take(message)
            return CheckpointTicket(id=f"ticket-{len(self.got(CheckpointBegin))}", position=self.position)

        @app.post("/v1/checkpoints/{ticket}")
        def end(ticket: str, message: CheckpointEnd) -> CheckpointRef:
            self.ends_asked += 1
            if self.deaf_to_ends:
                raise HTTPException(503, "the master is away")
            self.take(message)
            if self.refuses_ends:
                raise NotFoundError(f"checkpoint {ticket!r} is not under way")
            return CheckpointRef(uri=message.uri, step=message.step)

    def _restoring_routes(self, app: FastAPI) -> None:
        @app.post("/v1/checkpoints/restored")
        def restored(message: CheckpointRestore) -> Directive:
            if not self.knows_node:
                raise ConflictError("another version is the active one")
            if self.refuses_positions:
                raise InvalidError("the data position is damaged")
            return self.take(message)

        @app.post("/v1/checkpoints/model")
        def model(message: ModelReport) -> ModelVerdict:
            self.take(message)
            return ModelVerdict(refused=self.refuses_model)

        @app.post("/v1/checkpoints/damaged")
        def damaged(message: CheckpointDamage) -> Directive:
            if not self.knows_node:
                raise ConflictError("another version is the active one")
            return self.take(message)

    def _sync_routes(self, app: FastAPI) -> None:
        @app.post("/v1/sync/{name}")
        def join(name: str, message: SyncJoin) -> SyncState:
            self.take(message)
            return SyncState(finished=self.sync_finished)

        @app.get("/v1/sync/{name}")
        def sync(name: str) -> SyncState:
            return SyncState(finished=self.sync_finished)

        @app.post("/v1/barriers/{name}")
        def open_barrier(name: str, message: SyncJoin) -> BarrierState:
            self.barrier_open = True
            return BarrierState(open=True)

        @app.get("/v1/barriers/{name}")
        def barrier(name: str) -> BarrierState:
            return BarrierState(open=self.barrier_open)

    def _dataset_routes(self, app: FastAPI) -> None:
        # async: the sharding core is for one thread
        @app.post("/v1/datasets")
        async def dataset(params: DatasetParams) -> DatasetProgress:
            return self.shards.register(params)

        @app.get("/v1/datasets/{name}")
        async def progress(name: str) -> DatasetProgress:
            return self.shards.progress(name)

        @app.post("/v1/datasets/{name}/lease")
        async def lease(name: str, request: LeaseRequest) -> LeaseReply:
            return self.shards.lease(name, request, time.time())

        @app.post("/v1/datasets/{name}/ack")
        async def acknowledge(name: str, request: AckRequest) -> AckReply:
            self.take(request)
            return self.shards.acknowledge(name, request, time.time())


def _refuse(request: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": str(error)}, _STATUS[type(error)])  # type: ignore[index]


@contextmanager
def running_master() -> Iterator[FakeMaster]:
    """A master that listens while the context lasts."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        master = FakeMaster(listener.getsockname()[1])
        server = uvicorn.Server(
            uvicorn.Config(master.app(), log_level="warning", timeout_graceful_shutdown=1)
        )
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        eventually(lambda: server.started, what="the fake master starts")
        try:
            yield master
        finally:
            master.away = True  # ends the long polls
            server.should_exit = True
            thread.join(240)


Connect = Callable[..., Job]
"""The fixture `connected`: makes a job of a version for worker 0."""


def in_background(target: Callable[[], object]) -> tuple[threading.Thread, list[BaseException]]:
    """Run something in a thread; what it raises lands in the list."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            target()
        except BaseException as error:  # noqa: BLE001 - SystemExit is what we look for
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, raised
