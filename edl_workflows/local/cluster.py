"""Runs the embedded cluster in one event loop: API server, scheduler, network and runner."""

import asyncio
import contextlib
import functools
import socket
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import structlog

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local import events, files, job_kinds, node
from edl_workflows.local.apiserver import serving
from edl_workflows.local.apiserver.app import build_app
from edl_workflows.local.apiserver.server import ApiServer, open_server
from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.local.capacity import NODE_NAME, Capacity
from edl_workflows.local.endpoints import EndpointsWriter
from edl_workflows.local.locks import LOCK_FILE, hold_lock
from edl_workflows.local.mirror import Mirror
from edl_workflows.local.network.network import Network
from edl_workflows.local.network.service_proxy import ServiceProxy
from edl_workflows.local.pods import Pod, Service
from edl_workflows.local.programs import remove_unused_programs
from edl_workflows.local.runner.launches import LaunchFactory
from edl_workflows.local.runner.pod_worker import WorkerContext
from edl_workflows.local.runner.runner import Runner, config_lookups
from edl_workflows.local.runner.support import loopback_obstacle
from edl_workflows.local.scheduler.loop import Scheduler
from edl_workflows.local.scheduler.resources import ResourceUnits
from edl_workflows.local.selection import ServiceSelection
from edl_workflows.runtime.process.http import HttpServer

POD_TOKEN_SECONDS = 365 * 24 * 3600
"""Lifetime of a pod's token in seconds. The Kubernetes client reads the token only once, so it must outlive
the pod. It becomes invalid with its service account."""
_SWEEP_SECONDS = 600.0
_OPEN_PORTS = (
    "on this machine the cluster cannot restrict the servers of pods to the loopback interface ({}): "
    "servers such as TensorFlow's would listen on every interface and serve any client. Linux 5.9 or newer "
    "allows it, but not in a container whose seccomp profile forbids seccomp or pidfd_getfd. To run "
    "without, on a machine that nobody else can reach, use --allow-open-ports or "
    "EDL_LOCAL_ALLOW_OPEN_PORTS=1"
)
_POLL_SECONDS = 0.01
_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class ClusterOptions:
    """Options of a cluster.

    Attributes:
        folder: folder with the cluster's state.
        capacity: capacity of its node.
        back_off: pause before the second restart of a crashed container; it doubles with each further one.
        grace: longest time that pods get to end when the cluster stops, in seconds.
        allow_open_ports: whether servers in pods may listen on every interface of the machine.
    """

    folder: Path
    capacity: Capacity
    back_off: timedelta = timedelta(seconds=10)
    grace: float = 10.0
    allow_open_ports: bool = False


@dataclass(frozen=True)
class RunningCluster:
    """A running cluster.

    Attributes:
        access: URL, token and kubeconfig.
        server: the API server, for components in the process.
        runner: the process runner.
        failed: a future that completes, with the error if any, when a component ends by itself.
    """

    access: serving.ServerAccess
    server: ApiServer
    runner: Runner
    failed: "asyncio.Future[None]"


@contextlib.asynccontextmanager
async def running_cluster(options: ClusterOptions) -> AsyncIterator[RunningCluster]:
    """Run a cluster while the context lasts. When it exits, all processes of pods are ended; the state is
    kept.

    Raises:
        ConflictError: another process runs a cluster in this folder.
        UnavailableError: the machine cannot restrict the pods' servers to the loopback interface, and
            `allow_open_ports` is not set.
    """
    if not options.allow_open_ports and (obstacle := loopback_obstacle()):
        raise UnavailableError(_OPEN_PORTS.format(obstacle))
    options.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    with hold_lock(options.folder / LOCK_FILE):
        port = steady_port(options.folder / "port.json")
        access = serving.prepare_access(options.folder, port)
        server = open_server(options.folder, {access.token: "admin"})
        try:
            async with _serving(options, access, server, port) as cluster:
                yield cluster
        finally:
            server.close()


@dataclass(frozen=True)
class _Parts:
    """The components besides the API server."""

    pods: Mirror[Pod]
    services: Mirror[Service]
    config_maps: Mirror[Object]
    secrets: Mirror[Object]
    network: Network
    runner: Runner
    scheduler: Scheduler
    endpoints: EndpointsWriter

    async def adopt_state(self) -> None:
        """Read the current state, adopt running pods, and subscribe each component to changes."""
        self.pods.listen(lambda _key: self.network.touch())
        self.services.listen(lambda _key: self.network.touch())
        self.services.relist()
        for mirror in (self.config_maps, self.secrets):
            mirror.relist()
            mirror.listen(self.runner.refresh)
        self.pods.relist()  # last: adopting a pod reads the other mirrors
        await self.runner.clean_up()

    def work(self) -> list[Coroutine[Any, Any, None]]:
        """The loops of all components."""
        return [
            self.services.run(),
            self.config_maps.run(),
            self.secrets.run(),
            self.pods.run(),
            self.scheduler.run(),
            self.network.run(),
            self.runner.run(),
            self.endpoints.run(),
        ]


def _build(options: ClusterOptions, access: serving.ServerAccess, server: ApiServer) -> _Parts:
    client = server.client
    pods = Mirror(client, "pods", Pod.model_validate)
    services = Mirror(client, "services", Service.model_validate)
    config_maps: Mirror[Object] = Mirror(client, "configmaps", dict)
    secrets: Mirror[Object] = Mirror(client, "secrets", dict)
    selection = ServiceSelection()
    services.listen(lambda key: selection.put_service(key, services.objects.get(key)))
    pods.listen(lambda key: selection.put_pod(key, pods.objects.get(key)))
    network = Network(
        options.folder,
        lambda: services.objects,
        lambda: runner.occupying(),  # noqa: PLW0108 - the runner is created below
        selection,
    )
    launches = LaunchFactory(
        network=network,
        lookups=lambda namespace: config_lookups(config_maps.objects, secrets.objects, namespace),
        allocatable=ResourceUnits.parse(options.capacity.quantities(options.folder)).values,
        kubeconfig=functools.partial(_pod_kubeconfig, server, access),
        loopback_only=not options.allow_open_ports,
    )
    recorder = events.EventRecorder(client, "kubelet", NODE_NAME)
    shared = WorkerContext(client, recorder, network, launches, options.back_off)
    runner = Runner(NODE_NAME, options.folder / "pods", pods, shared)
    decisions = events.EventRecorder(client, "default-scheduler", "")
    scheduler = Scheduler(client, pods, lambda: node.observe_node(client), decisions)
    endpoints = EndpointsWriter(client, services, pods, selection)
    return _Parts(pods, services, config_maps, secrets, network, runner, scheduler, endpoints)


@contextlib.asynccontextmanager
async def _serving(
    options: ClusterOptions, access: serving.ServerAccess, server: ApiServer, port: int
) -> AsyncIterator[RunningCluster]:
    node.publish_node(server.client, options.capacity.quantities(options.folder))
    job_kinds.install(server.client)
    parts = _build(options, access, server)
    server.logs = parts.runner.logs
    server.proxy = ServiceProxy(parts.network.find_port).get
    await parts.adopt_state()
    http = serving.ApiHttpServer(build_app(server), access, port, server.registry.store)
    work = [*parts.work(), _follow_node(server, parts.scheduler, options), _sweep(server)]
    async with _background(http, work) as failed:
        try:
            yield RunningCluster(access, server, parts.runner, failed)
        finally:
            await parts.runner.shut_down(options.grace)
            parts.network.close()


@contextlib.asynccontextmanager
async def _background(
    http: HttpServer, work: list[Coroutine[Any, Any, None]]
) -> "AsyncIterator[asyncio.Future[None]]":
    """Run all components. The API server ends last."""
    serving_task = asyncio.create_task(http.serve(), name="api server")
    tasks = [asyncio.create_task(coroutine) for coroutine in work]
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    for task in [serving_task, *tasks]:
        task.add_done_callback(functools.partial(_report, failed))
    try:
        while not http.started and not serving_task.done():  # noqa: ASYNC110 - no event in uvicorn
            await asyncio.sleep(_POLL_SECONDS)
        yield failed
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        http.should_exit = True
        await asyncio.gather(serving_task, return_exceptions=True)
        failed.cancel()


def _report(failed: "asyncio.Future[None]", task: "asyncio.Task[None]") -> None:
    if failed.done() or task.cancelled():
        return
    error = task.exception()
    if error is None:
        failed.set_result(None)
    else:
        failed.set_exception(error)


def _pod_kubeconfig(server: ApiServer, access: serving.ServerAccess, namespace: str, account: str) -> str:
    token, _ = server.authenticator.issue(namespace, account, POD_TOKEN_SECONDS)
    return serving.render_kubeconfig(access.url, token, access.files.authority.read_bytes(), namespace)


def steady_port(file: Path) -> int:
    """A port of this machine: the previous one if it is free, so that clients' addresses stay valid.

    Args:
        file: where the port is stored.
    """
    last = files.read_json(file)
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((serving.HOST, last or 0))
        except OSError:
            probe.bind((serving.HOST, 0))
        port = int(probe.getsockname()[1])
    files.write_json(file, port)
    return port


async def _follow_node(server: ApiServer, scheduler: Scheduler, options: ClusterOptions) -> None:
    mirror: Mirror[Object] = Mirror(server.client, "nodes", dict)

    def changed(_key: str) -> None:
        if server.client.find("nodes", NODE_NAME) is None:
            # As a restarted kubelet does, register the node again.
            node.publish_node(server.client, options.capacity.quantities(options.folder))
        scheduler.touch()

    mirror.listen(changed)
    await mirror.run()


async def _sweep(server: ApiServer) -> None:
    while True:
        try:
            events.remove_old(server.client, datetime.now(UTC))
        except Exception:  # noqa: BLE001 - an event that can't be removed must not end the cluster
            _log.exception("old events not removed")
        await asyncio.to_thread(remove_unused_programs)
        await asyncio.sleep(_SWEEP_SECONDS)
