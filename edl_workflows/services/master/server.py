"""The master as a process: connects state, store, loop, API and backend, and returns the exit code."""

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import structlog
from fastapi import FastAPI
from pydantic import ValidationError

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import EdlError, InvalidError, UnavailableError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.brain import JobStateKey
from edl_workflows.core.protocol.message import describe_problems
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.process.http import HttpServer, ListenOptions
from edl_workflows.services.master import kubernetes
from edl_workflows.services.master.app import create_app
from edl_workflows.services.master.autoscaler import JobAutoscaler
from edl_workflows.services.master.brain import BrainAccess, BrainClient, BrainConnection, JobIdentity
from edl_workflows.services.master.effects import Effects, MasterBackend
from edl_workflows.services.master.master import MAX_REFUSAL, Master, WriteUrgency
from edl_workflows.services.master.optimizers import BrainService, Optimizers
from edl_workflows.services.master.standalone import StandaloneBackend, add_plan_routes
from edl_workflows.services.master.state import observations
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.nodes import leaving_steps
from edl_workflows.services.master.state.settings import JobSettings, Timeouts, settings_of
from edl_workflows.services.master.state.stored_state import StoredState
from edl_workflows.services.master.stores.brain import BrainStateStore
from edl_workflows.services.master.stores.config_maps import ConfigMapStore
from edl_workflows.services.master.stores.file import FileStore
from edl_workflows.services.master.stores.port import StateStore
from edl_workflows.services.master.stores.volume import VolumeStore
from edl_workflows.services.master.watch_connection import sharing_connection

SUCCEEDED = 0
FAILED = 1
INTERRUPTED = 143
"""The master was told to end, which is not the job's fault; it is to be started again."""
ASK_SECONDS = 2.0
"""Most seconds for which a master that is told to end asks whether its job is deleted."""
GATHER_SECONDS = 1.5
"""Seconds within which nodes report that they are told to end, too."""
DEPARTURE_SECONDS = 3600.0
"""Most seconds for which it then waits for them. Its pod's grace is usually shorter."""
LINGER = 10.0
"""Most seconds for which the master keeps serving after the job's end, so that nodes learn of it."""
_LOADING = Backoff(first=1.0, most=15.0)

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ListenAddress:
    """Where the API listens."""

    host: str
    port: int


@dataclass(frozen=True)
class MasterParts:
    """What `serve_master` runs.

    Attributes:
        watch: returns a context manager that observes the job while it is open.
        autoscaler: decides the job's counts and sizes, if the master is to do that.
    """

    master: Master
    app: FastAPI
    outside: MasterBackend
    watch: Callable[[], contextlib.AbstractAsyncContextManager[None]]
    autoscaler: JobAutoscaler


def load_state(settings: JobSettings, store: StateStore, *, watches_pods: bool) -> JobState:
    """The stored state, or the state of a new job if nothing is stored.

    Raises:
        InvalidError: this version of the master can't continue from the stored state.
    """
    text = store.load()
    try:
        stored = StoredState.from_json(text) if text else None
        return JobState(settings, stored, watches_pods=watches_pods)
    except ValueError as error:
        raise InvalidError(
            f"{store.place}: job {settings.name} can't go on from this state ({_first_problem(error)}); "
            "put back what the master wrote there, or empty it to begin the job anew"
        ) from error


def _first_problem(error: ValueError) -> str:
    return describe_problems(error)[0] if isinstance(error, ValidationError) else str(error)


def run_standalone(settings: JobSettings, folder: Path, token: str, address: ListenAddress) -> int:
    """Serve a job without a cluster until it is over.

    Args:
        settings: of the job.
        folder: for state and plans; created if it does not exist.
        token: that agents must send.
        address: where to listen.

    Returns:
        The exit code.
    """
    folder.mkdir(parents=True, exist_ok=True)
    store = FileStore(folder / "state.json")

    async def main() -> int:
        master = Master(load_state(settings, store, watches_pods=False), store)
        outside = StandaloneBackend(folder / "scaleplans.json", settings)
        app = create_app(master, token)
        look = add_plan_routes(app, master, outside)
        loop = asyncio.get_running_loop()

        def plan_made() -> None:
            loop.call_soon_threadsafe(look)

        outside.on_plan(plan_made)

        @contextlib.asynccontextmanager
        async def watch() -> AsyncIterator[None]:
            observations.observe_plans(master.state, outside.seen())
            yield

        return await serve_master(MasterParts(master, app, outside, watch, JobAutoscaler(master)), address)

    return asyncio.run(main())


@dataclass(frozen=True)
class StatePlaces:
    """Where a master keeps its state; in ConfigMaps if both are left out.

    Attributes:
        folder: on a volume that all masters mount.
        brain: address of a Brain.
    """

    folder: Path | None = None
    brain: str = ""


@dataclass(frozen=True)
class JobAccess:
    """Which job a master in a cluster serves.

    Attributes:
        name: of the ElasticJob, in the cluster handle's namespace.
        token: that agents must send.
        brain: returns how to reach the Brain with this address.
        state: where the state is kept.
    """

    name: str
    token: str
    timeouts: Timeouts
    brain: Callable[[str], BrainAccess] = BrainAccess
    state: StatePlaces = field(default_factory=StatePlaces)


def run_in_cluster(cluster: Cluster, access: JobAccess, address: ListenAddress) -> int:
    """Serve an ElasticJob until it is over.

    Args:
        cluster: with the job's namespace.
        access: which job.
        address: where to listen.

    Returns:
        The exit code.
    """
    with sharing_connection(cluster) as sharing:
        return _serve_job(sharing, access, address)


def _serve_job(cluster: Cluster, access: JobAccess, address: ListenAddress) -> int:
    job = kubernetes.read_job(cluster, access.name)
    namespace = job.metadata.namespace or cluster.namespace
    settings = settings_of(job, namespace, access.timeouts)
    store = store_of(cluster, job, access)
    outside = kubernetes.KubernetesBackend(cluster, job)
    with _ending_on_signal():
        state = _load_when_reachable(settings, store, outside)

    async def main() -> int:
        master = Master(state, store)
        watch = kubernetes.ClusterWatch(cluster, job, master, access.timeouts)
        autoscaler = JobAutoscaler(master, Optimizers(_brain_of(job, namespace, access)))
        app = create_app(master, access.token)
        return await serve_master(MasterParts(master, app, outside, watch.running, autoscaler), address)

    return asyncio.run(main())


def store_of(cluster: Cluster, job: ElasticJob, access: JobAccess) -> StateStore:
    """Where the job's state is stored: in ConfigMaps, in a folder of its own on a volume, or in a Brain.

    Raises:
        InvalidError: the Brain's address or certificates are invalid.
    """
    config_map, places = ConfigMapStore(cluster, job.metadata.name), access.state
    if places.brain:
        key = JobStateKey(uid=job.metadata.uid, namespace=cluster.namespace, name=job.metadata.name)
        return BrainStateStore(BrainConnection(access.brain(places.brain)), key, config_map)
    if places.folder is not None:
        folder = places.folder / cluster.namespace / f"{job.metadata.name}-{job.metadata.uid}"
        return VolumeStore(folder / "state", config_map)
    return config_map


@contextlib.contextmanager
def _ending_on_signal() -> Iterator[None]:
    """Let SIGTERM end this process, which the first process of a container otherwise ignores."""

    def end(_number: int, _frame: object) -> None:
        raise SystemExit(INTERRUPTED)

    former = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)


def _load_when_reachable(settings: JobSettings, store: StateStore, outside: MasterBackend) -> JobState:
    """The stored state. While its store can't be reached, wait, and say so in the job's status: a master that
    ended instead would use the job's restart budget, and one without the state would begin the job anew.

    Raises:
        EdlError: see `load_state`; the store refuses this master.
    """
    failures, reported = 0, False
    while True:
        try:
            state = load_state(settings, store, watches_pods=True)
        except UnavailableError as error:
            failures += 1
            if failures == 1:
                log.warning("the state can't be loaded; trying again until it can", error=str(error))
            if not reported:
                with contextlib.suppress(EdlError):  # the log says it, too
                    outside.report_job({"warnings": [unloaded_warning(error)]})
                    reported = True
            _pause(_LOADING.delay(failures))
        else:
            if failures:
                log.info("the state is loaded", attempts=failures + 1)
            return state


def _pause(seconds: float) -> None:
    time.sleep(seconds)


def unloaded_warning(error: UnavailableError) -> str:
    return f"the master waits for the job's state, and will retry: {str(error)[:MAX_REFUSAL]}"


def _brain_of(job: ElasticJob, namespace: str, access: JobAccess) -> BrainService | EdlError | None:
    """The client of the job's Brain; None if the job names none. If no client can be made, returns the error,
    and the job trains without Brain.
    """
    if not job.spec.brain_service:
        return None
    try:
        scenario = job.metadata.annotations.get(names.SCENARIO_ANNOTATION, "")
        identity = JobIdentity(job.metadata.uid, namespace, scenario)
        return BrainClient(access.brain(job.spec.brain_service), identity)
    except EdlError as error:
        log.warning("Brain can't be used", error=str(error))
        return error


async def serve_master(parts: MasterParts, address: ListenAddress) -> int:
    """Serve until the job is over or the process is told to end.

    Returns:
        The exit code.
    """
    server = HttpServer(parts.app, ListenOptions(address.host, address.port, keep_alive=60, stop_seconds=2))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    effects = Effects(parts.master, parts.outside)
    await parts.autoscaler.begin()
    async with parts.watch():
        running = [
            asyncio.create_task(parts.master.run(), name="master"),
            asyncio.create_task(effects.run(), name="effects"),
            asyncio.create_task(server.serve(), name="http"),
            asyncio.create_task(parts.autoscaler.run(), name="autoscaler"),
        ]
        over = asyncio.create_task(_until_over(parts, effects), name="over")
        departed = asyncio.create_task(_serve_departures(parts, stop), name="departures")
        try:
            await asyncio.wait([*running, over, departed], return_when=asyncio.FIRST_COMPLETED)
            _raise_failure(running)
            if not over.done():
                await departed
                return INTERRUPTED
            effects.log_unreported_end()
            outcome = parts.master.state.outcome
            log.info("the job is over", outcome=outcome)
            return SUCCEEDED if outcome is not None and outcome.succeeded else FAILED
        finally:
            parts.master.close()
            server.should_exit = True
            await asyncio.wait([running[2]], timeout=5)
            for task in (over, departed, *reversed(running)):
                task.cancel()
            await asyncio.gather(*running, over, departed, return_exceptions=True)
            if parts.master.stored.outcome is None:
                await effects.last_report()


async def _serve_departures(parts: MasterParts, stop: asyncio.Event) -> None:
    """Once this master is told to end, serve on for nodes that were told, too: they may still save. In a job
    that ends as a whole the last checkpoint is made even if no node was told yet.

    If the master alone is told to end, as by an eviction, its nodes train on, and nobody waits.
    """
    await stop.wait()
    master = parts.master

    def is_needed() -> bool:
        state = master.state
        return leaving_steps.somebody_leaves(state) or leaving_steps.is_save_awaited(state, master.now())

    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(ASK_SECONDS):
            if await asyncio.to_thread(parts.outside.is_job_deleted):
                leaving_steps.record_deletion(master.state)
                master.changed(WriteUrgency.NOW)
    await master.wait_until(is_needed, GATHER_SECONDS)
    await master.wait_until(lambda: not is_needed(), DEPARTURE_SECONDS)


async def _until_over(parts: MasterParts, effects: Effects) -> None:
    master = parts.master
    while master.stored.outcome is None or not effects.reported_end:
        await master.committed(1.0)
    await parts.autoscaler.end()
    deadline = asyncio.get_running_loop().time() + LINGER
    while (left := deadline - asyncio.get_running_loop().time()) > 0 and _somebody_listens(master):
        await master.moved(min(left, 1.0))


def _somebody_listens(master: Master) -> bool:
    serving = (names.PS_TYPE, names.EVALUATOR_TYPE)
    return any(node.registered for node in master.state.nodes if node.type in serving)


def _raise_failure(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        if task.done():
            error = task.exception()
            if isinstance(error, EdlError):
                raise error
            raise UnavailableError(f"the master's {task.get_name()} ended: {error}") from error
