"""Probes and hooks: their actions, and the thresholds that decide whether a container has started, is ready
or must be killed."""

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

import httpx

from edl_workflows.local.network.ports import LOOPBACK
from edl_workflows.local.pods import Handler, HttpGetAction, Probe

_OUTPUT_BYTES = 1024


@dataclass(frozen=True)
class ProbeResult:
    """The result of one check. If it failed, `message` says what was observed."""

    ok: bool
    message: str = ""


@dataclass(frozen=True)
class ProbeState:
    """The state of a probe.

    Attributes:
        passing: whether the probe currently counts as successful.
        successes: number of consecutive successes up to the last check.
        failures: number of consecutive failures up to the last check.
    """

    passing: bool
    successes: int = 0
    failures: int = 0

    def after(self, result: ProbeResult, probe: Probe) -> "ProbeState":
        """The state after one more check. `passing` changes only after as many equal results as the probe's
        threshold."""
        if result.ok:
            successes = self.successes + 1
            return ProbeState(self.passing or successes >= probe.success_threshold, successes, 0)
        failures = self.failures + 1
        return ProbeState(self.passing and failures < probe.failure_threshold, 0, failures)


@dataclass(frozen=True)
class ProbeTarget:
    """How to reach a container.

    Attributes:
        command: returns the command line that runs a command in the container's environment.
        port: returns the host port of a container's port, given by number or name; None if there is none.
    """

    command: Callable[[Sequence[str]], list[str]]
    port: Callable[[int | str], int | None]


async def check(handler: Handler, target: ProbeTarget, seconds: float) -> ProbeResult:
    """Perform the action of a probe or hook once.

    Args:
        handler: the action.
        target: the container.
        seconds: timeout.
    """
    try:
        async with asyncio.timeout(seconds):
            return await _act(handler, target)
    except TimeoutError:
        return ProbeResult(False, f"timed out after {seconds:g} s")


async def _act(handler: Handler, target: ProbeTarget) -> ProbeResult:
    if handler.exec is not None:
        return await _execute(target.command(handler.exec.command))
    if handler.sleep is not None:
        await asyncio.sleep(handler.sleep.seconds)
        return ProbeResult(True)
    action = handler.http_get or handler.tcp_socket
    if action is None:
        return ProbeResult(True)
    port = target.port(action.port)
    if port is None:
        return ProbeResult(False, f"port {action.port!r} is not among the container's ports")
    return await _get(handler.http_get, port) if handler.http_get else await _connect(port)


async def _connect(port: int) -> ProbeResult:
    try:
        _, writer = await asyncio.open_connection(LOOPBACK, port)
    except OSError as error:
        return ProbeResult(False, f"dial tcp {LOOPBACK}:{port}: {error.strerror or error}")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return ProbeResult(True)


async def _get(action: HttpGetAction, port: int) -> ProbeResult:
    url = f"{action.scheme.lower()}://{LOOPBACK}:{port}/{action.path.lstrip('/')}"
    headers = [(header.name, header.value) for header in action.http_headers]
    try:
        # As in kubelet, the certificate is not verified and redirects count as success.
        async with httpx.AsyncClient(verify=False, trust_env=False) as client:  # noqa: S501
            answer = await client.get(url, headers=headers)
    except httpx.HTTPError as error:
        return ProbeResult(False, f"Get {url!r}: {str(error) or type(error).__name__}")
    ok = 200 <= answer.status_code < 400  # kubelet's range
    return ProbeResult(ok, "" if ok else f"HTTP probe failed with statuscode: {answer.status_code}")


async def _execute(command: Sequence[str]) -> ProbeResult:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = await process.communicate()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    return ProbeResult(process.returncode == 0, output[:_OUTPUT_BYTES].decode(errors="replace").strip())


async def watch(
    probe: Probe, target: ProbeTarget, *, passing: bool
) -> AsyncIterator[tuple[ProbeState, ProbeResult]]:
    """Repeat a probe without end. Yields the state and the result after each check.

    Args:
        probe: the probe with its times and thresholds.
        target: the container.
        passing: whether the probe counts as successful before the first check.
    """
    await asyncio.sleep(probe.initial_delay_seconds)
    health = ProbeState(passing)
    while True:
        result = await check(probe, target, probe.timeout_seconds)
        health = health.after(result, probe)
        yield health, result
        await asyncio.sleep(probe.period_seconds)
