"""What the cluster's process does: serve until a signal, with the controller as a child."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import structlog

from edl_workflows.local import files
from edl_workflows.local.cluster import Options, running
from edl_workflows.local.daemon import RECORD_FILE, Daemon, controller_mark
from edl_workflows.local.runner import processes

_CONTROLLER_RESTART_SECONDS = 2.0
_log = structlog.get_logger(__name__)


async def serve(options: Options, *, controller: bool) -> None:
    """Be the cluster until SIGTERM or SIGINT.

    Raises:
        ConflictError: another process serves this folder.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with running(options) as cluster:
        await asyncio.to_thread(processes.kill_marked, controller_mark(options.folder))
        manager = asyncio.create_task(_keep_controller(options.folder)) if controller else None
        daemon = Daemon(
            pid=os.getpid(),
            url=cluster.access.url,
            kubeconfig=cluster.access.kubeconfig,
            controller=controller,
        )
        files.write(options.folder / RECORD_FILE, daemon.model_dump_json())
        _log.info("cluster ready", url=daemon.url, kubeconfig=str(daemon.kubeconfig))
        cluster.failed.add_done_callback(lambda _failed: stop.set())
        await stop.wait()
        if manager is not None:
            manager.cancel()
            await asyncio.gather(manager, return_exceptions=True)
        (options.folder / RECORD_FILE).unlink(missing_ok=True)
        if cluster.failed.done():
            cluster.failed.result()


async def _keep_controller(folder: Path) -> None:
    """Run the controller manager as a child, again whenever it ends."""
    command = [sys.executable, "-m", "edl_workflows.cli", "controller", "run", "--all-namespaces"]
    command += ["--no-leader-elect", "--metrics-port", "0", "--kubeconfig", str(folder / "kubeconfig")]
    env = {**os.environ, processes.MARK: controller_mark(folder)}
    while True:
        with (folder / "controller.log").open("ab") as log:
            child = await asyncio.create_subprocess_exec(
                *command, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        try:
            code = await child.wait()
        finally:
            if child.returncode is None:
                child.terminate()
                await _end(child)
        _log.warning(
            "the controller ended and is started again", code=code, log=str(folder / "controller.log")
        )
        await asyncio.sleep(_CONTROLLER_RESTART_SECONDS)


async def _end(child: asyncio.subprocess.Process) -> None:
    try:
        async with asyncio.timeout(5):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
