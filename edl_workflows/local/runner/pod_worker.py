"""The loop of one pod: observe its containers, decide, act and write its status, until the pod is gone."""

import asyncio
import contextlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import structlog

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local.apiserver.client import LocalClient
from edl_workflows.local.apiserver.errors import ApiError
from edl_workflows.local.events import EventRecorder
from edl_workflows.local.network.network import Network
from edl_workflows.local.network.ports import LOOPBACK
from edl_workflows.local.pods import Pod, named_port
from edl_workflows.local.runner import lifecycle, status
from edl_workflows.local.runner.containers import NODE_RESTARTED, ContainerCallbacks, ContainerRunner
from edl_workflows.local.runner.environment import ContainerConfigError
from edl_workflows.local.runner.launches import LaunchFactory
from edl_workflows.local.runner.processes import ProcessSnapshot
from edl_workflows.local.runner.support import mounts_possible, unsupported_fields
from edl_workflows.local.runner.volumes import remove_memory

_log = structlog.get_logger(__name__)
UNSUPPORTED, EVICTED, NO_HOST_PORT = "Unsupported", "Evicted", "NoHostPort"
_NOT_FOUND = 404
_READ_SECONDS = 30.0
"""How long the logs of a deleted pod are kept for those who read them."""


@dataclass(frozen=True)
class WorkerContext:
    """What all pods share.

    Attributes:
        client: the API.
        events: records events.
        network: assigns addresses and ports.
        launches: prepares the launches of containers.
        back_off: pause before the second restart of a container.
    """

    client: LocalClient
    events: EventRecorder
    network: Network
    launches: LaunchFactory
    back_off: timedelta


class PodWorker:
    """Runs one pod.

    Args:
        pod: as read from the API.
        folder: folder of the pod.
        services: what all pods share.
    """

    def __init__(self, pod: Pod, folder: Path, services: WorkerContext) -> None:
        self.pod = pod
        self.done = asyncio.Event()
        self._folder = folder
        self._services = services
        self._wake = asyncio.Event()
        self.gone = False
        self._recovered = False
        self._doom: lifecycle.PodFailure | None = None
        self._wake_at: datetime | None = None
        self._started_at = datetime.now(UTC)
        self._containers = {
            container.name: ContainerRunner(
                container,
                folder / "containers" / container.name,
                f"{pod.metadata.uid}/{container.name}",
                self._callbacks(container.name),
            )
            for container in pod.spec.all_containers
        }

    def _callbacks(self, container: str) -> ContainerCallbacks:
        def event(kind: str, reason: str, message: str) -> None:
            record = self._services.events.warning if kind == "Warning" else self._services.events.normal
            record(self.pod, reason, message, container)

        return ContainerCallbacks(self._wake.set, event, self._host_port)

    def _host_port(self, port: int | str) -> int | None:
        number = named_port(self.pod.spec.all_containers, port)
        # If the pod does not declare the port, its process has opened that port on this machine itself.
        return None if number is None else self._services.network.attach(self.pod).ports.get(number, number)

    def update(self, pod: Pod | None) -> None:
        """Take the current version of the pod from the API; None if it no longer exists."""
        self.gone = self.gone or pod is None
        self.pod = pod or self.pod
        self._wake.set()

    @property
    def occupies(self) -> bool:
        """Whether processes of the pod run or may be started."""
        if self.done.is_set():
            return False
        if not self._recovered:
            return True  # an earlier cluster process may have left running processes
        return not self.pod.finished or any(
            container.state.running for container in self._containers.values()
        )

    def refresh(self) -> None:
        """Update volumes, and start containers that waited for a missing object, after a ConfigMap or Secret
        of the namespace changed."""
        try:
            if self.occupies and self.pod.spec.volumes and self._folder.is_dir():
                self._services.launches.refresh(self.pod, self._folder)
        except ContainerConfigError as error:
            self._services.events.warning(self.pod, "FailedMount", str(error))
        self._wake.set()

    def container(self, name: str) -> ContainerRunner | None:
        return self._containers.get(name)

    def check_memory(self, snapshot: Callable[[], ProcessSnapshot]) -> None:
        """Enforce the memory limits of the pod's containers."""
        for container in self._containers.values():
            container.check_memory(snapshot)

    async def check_volumes(self) -> None:
        """Evict the pod if an emptyDir volume exceeds its sizeLimit."""
        limited = any((volume.get("emptyDir") or {}).get("sizeLimit") for volume in self.pod.spec.volumes)
        if not limited or not self.occupies or self._doom is not None:
            return
        message = await asyncio.to_thread(self._services.launches.excess, self.pod, self._folder)
        if message and self._doom is None:
            self._services.events.warning(self.pod, EVICTED, message)
            self._doom = lifecycle.PodFailure(EVICTED, message)
            self._wake.set()

    async def run(self) -> None:
        """Run the loop until the pod is gone."""
        try:
            while not self._try(self._recover):
                await self._sleep()
            while not self._try(self._step):
                await self._sleep()
            self.done.set()
            self._services.network.touch()
            try:
                await self._read_out()
            finally:
                self._forget()
        finally:
            self.done.set()

    def _try(self, step: Callable[[], bool]) -> bool:
        """Run a step. As in kubelet, an error of one pod is reported, retried later, and does not affect
        other pods."""
        try:
            return step()
        except Exception as error:  # noqa: BLE001 - reported in the log and an event, and retried
            _log.exception("pod not synced", pod=self.pod.key)
            self.complain(error)
            self._wake_at = datetime.now(UTC) + lifecycle.RETRY_CONFIG
            return False

    def complain(self, error: Exception) -> None:
        """Report an error in an event of the pod."""
        self._services.events.warning(self.pod, "FailedSync", f"error syncing pod: {error}")

    def _recover(self) -> bool:
        self._wake.clear()
        if kept := self.pod.status.get("startTime"):
            self._started_at = datetime.fromisoformat(kept)
        if not self.pod.finished:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for container in self._containers.values():
            container.recover()
        self._doom = None if self.pod.finished else self._refusal()
        self._recovered = True
        return True

    def _refusal(self) -> lifecycle.PodFailure | None:
        raw = self._services.client.find("pods", self.pod.metadata.name, self.pod.metadata.namespace)
        problems = unsupported_fields(raw, mounts=mounts_possible()) if raw else []
        if not problems:
            return None
        message = "the embedded cluster can't run this pod: " + "; ".join(
            str(problem) for problem in problems
        )
        self._services.events.warning(self.pod, UNSUPPORTED, message)
        return lifecycle.PodFailure(UNSUPPORTED, message)

    def _situation(self) -> lifecycle.PodSituation:
        return lifecycle.PodSituation(
            pod=self.pod,
            states={name: container.state for name, container in self._containers.items()},
            now=datetime.now(UTC),
            started_at=self._started_at,
            back_off=self._services.back_off,
            failure=self._doom,
            gone=self.gone,
        )

    def _step(self) -> bool:
        """Run one iteration of the loop. Returns whether the pod is finished."""
        self._wake.clear()
        decision = lifecycle.decide_pod(self._situation())
        self._doom = decision.failure or self._doom
        for name, grace in decision.stop.items():
            self._containers[name].stop(grace)
        for name in decision.start:
            self._start(self._containers[name])
        self._wake_at = decision.wake
        over = decision.finished and not decision.start
        self._write_status(finished=over)
        if over:
            remove_memory(self.pod.metadata.uid)  # volumes on disk stay until the pod is deleted
        return over and self._finalise()

    def _start(self, container: ContainerRunner) -> None:
        try:
            launch = self._services.launches.prepare(self.pod, container, self._folder)
        except (ContainerConfigError, OSError) as error:
            container.cannot_start("CreateContainerConfigError", str(error))
            return
        except UnavailableError as error:
            container.cannot_start(NO_HOST_PORT, str(error))
            return
        container.start(launch)

    async def _sleep(self) -> None:
        seconds = None
        waits = [
            container.state.waiting.since
            for container in self._containers.values()
            if container.state.waiting
        ]
        times = [since + lifecycle.RETRY_CONFIG for since in waits if since]
        if times or self._wake_at:
            first = min([*times, *([self._wake_at] if self._wake_at else [])])
            seconds = max((first - datetime.now(UTC)).total_seconds(), 0.0)
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            return

    def _write_status(self, *, finished: bool) -> None:
        client, meta = self._services.client, self.pod.metadata
        present = client.find("pods", meta.name, meta.namespace)
        if present is None or present["metadata"]["uid"] != meta.uid:
            self.gone = True
            return
        before = present.get("status") or {}
        if before.get("phase") in ("Succeeded", "Failed"):
            return
        place = status.PodAddresses(self._services.network.address(self.pod), LOOPBACK)
        verdict = status.PodVerdict(self._doom, finished)
        after = status.build_status(self._situation(), place, verdict, before)
        if after != before:
            updated = client.update("pods", {**present, "status": after}, subresource="status")
            self.pod = Pod.model_validate(updated)

    def _finalise(self) -> bool:
        """Complete a deletion that waited for the end of this pod. Returns whether the loop is done with the
        pod."""
        if self.gone:
            return True
        meta = self.pod.metadata
        if meta.deletion_timestamp is None:
            return False  # finished, but its logs can still be read
        try:
            self._services.client.delete("pods", meta.name, meta.namespace, grace=0, uid=meta.uid)
        except ApiError as error:
            if error.code != _NOT_FOUND:
                raise
        # If it has finalizers, it stays until they are removed. None of its processes runs.
        self.gone = self._services.client.find("pods", meta.name, meta.namespace) is None
        return self.gone

    async def _read_out(self) -> None:
        """Let those who follow the logs read the last lines."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_READ_SECONDS):
                for container in self._containers.values():
                    await container.read_out()

    def _forget(self) -> None:
        remove_memory(self.pod.metadata.uid)
        shutil.rmtree(self._folder, ignore_errors=True)

    async def shut_down(self, grace: float) -> None:
        """End the processes because the node shuts down, and record that for the cluster's next start."""
        running = [container for container in self._containers.values() if container.state.running]
        for container in running:
            container.stop(min(grace, float(self.pod.spec.termination_grace_period_seconds)), NODE_RESTARTED)
        await asyncio.gather(*(container.ended() for container in running))

    async def close(self) -> None:
        """Stop the loop. Processes continue."""
        await asyncio.gather(*(container.close() for container in self._containers.values()))
