"""The cluster's process. It serves until it gets a signal, with the controller and the DI server as
children."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

import structlog

from edl_workflows.local import files
from edl_workflows.local.apiserver import serving
from edl_workflows.local.cluster import ClusterOptions, running_cluster, steady_port
from edl_workflows.local.daemon import RECORD_FILE, Daemon, controller_mark
from edl_workflows.local.runner import processes

_RESTART_SECONDS = 2.0
_log = structlog.get_logger(__name__)


async def serve_cluster(options: ClusterOptions, *, controller: bool, di_server: bool) -> None:
    """Run the cluster until SIGTERM or SIGINT.

    Args:
        options: see `ClusterOptions`.
        controller: whether to run the controller.
        di_server: whether to run the DI server.

    Raises:
        ConflictError: another process serves this folder.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running_cluster(options) as cluster:
        await asyncio.to_thread(processes.kill_marked, controller_mark(options.folder))
        url = _di_server_url(options.folder) if di_server else ""
        kept = [
            asyncio.create_task(coroutine)
            for coroutine in _children(options.folder, url, controller=controller)
        ]
        daemon = Daemon(
            pid=os.getpid(),
            url=cluster.access.url,
            kubeconfig=cluster.access.kubeconfig,
            controller=controller,
            di_server=url,
        )
        files.write(options.folder / RECORD_FILE, daemon.model_dump_json())
        _log.info("cluster ready", url=daemon.url, kubeconfig=str(daemon.kubeconfig))
        cluster.failed.add_done_callback(lambda _failed: stop.set())
        await stop.wait()
        for child in kept:
            child.cancel()
        await asyncio.gather(*kept, return_exceptions=True)
        (options.folder / RECORD_FILE).unlink(missing_ok=True)
        if cluster.failed.done():
            cluster.failed.result()


def _di_server_url(folder: Path) -> str:
    return f"http://{serving.HOST}:{steady_port(folder / 'di-server-port.json')}"


def _children(folder: Path, di_server_url: str, *, controller: bool) -> Iterator[Coroutine[Any, Any, None]]:
    """Coroutines that run the controller and the DI server, if requested."""
    if controller:
        di_server_arguments = ["--di-server-url", di_server_url] if di_server_url else []
        yield _keep(folder, "controller", ["--no-leader-elect", "--kinds", "all", *di_server_arguments])
    if di_server_url:
        yield _keep(folder, "di-server", ["--port", di_server_url.rpartition(":")[2]])


async def _keep(folder: Path, name: str, arguments: list[str]) -> None:
    """Run ``edl NAME run`` as a child, and restart it whenever it ends."""
    command = [sys.executable, "-P", "-m", "edl_workflows", name, "run", "--all-namespaces", *arguments]
    command += ["--metrics-port", "0", "--kubeconfig", str(folder / "kubeconfig")]
    log_file = folder / f"{name}.log"
    env = {**os.environ, processes.MARK: controller_mark(folder)}
    while True:
        with log_file.open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            code = await child.wait()
        finally:
            if child.returncode is None:
                child.terminate()
                await _end(child)
        _log.warning("child process ended and is restarted", name=name, code=code, log=str(log_file))
        await asyncio.sleep(_RESTART_SECONDS)


async def _end(child: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(5):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
