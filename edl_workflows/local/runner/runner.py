"""Runs all pods of the node, each with its own worker. Enforces memory limits, serves logs, and takes over
from an earlier cluster process."""

import asyncio
import contextlib
import functools
import shutil
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import structlog

from edl_workflows.local.apiserver.storage.revisions import Object
from edl_workflows.local.apiserver.subresources import LogRequest
from edl_workflows.local.mirror import Mirror
from edl_workflows.local.pods import Pod, config_references
from edl_workflows.local.runner import logs, processes
from edl_workflows.local.runner.environment import decode_secret
from edl_workflows.local.runner.pod_worker import PodWorker, WorkerContext
from edl_workflows.local.runner.processes import ProcessSnapshot
from edl_workflows.local.runner.volumes import Lookups, remove_memory, remove_orphaned_memory

MEMORY_POLL_SECONDS = 0.5
VOLUME_POLL_SECONDS = 2.0
_log = structlog.get_logger(__name__)


class Runner:
    """Runs the pods that are bound to the node.

    Args:
        node: the node's name.
        folder: folder that contains a folder for each pod, named by its uid.
        pods: all pods, kept current.
        services: what all pods share.
    """

    def __init__(self, node: str, folder: Path, pods: Mirror[Pod], services: WorkerContext) -> None:
        self._node = node
        self._folder = folder
        self._pods = pods
        self._services = services
        self._workers: dict[str, PodWorker] = {}
        # Few of thousands of pods run at a time. Frequent checks look only at those.
        self._active: dict[str, PodWorker] = {}
        self._uids: dict[str, set[str]] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        pods.listen(self._changed)

    def occupying(self) -> dict[str, Pod]:
        """The pods whose processes run or may be started, by key."""
        return {worker.pod.key: worker.pod for worker in self._occupying()}

    def _occupying(self) -> list[PodWorker]:
        # A pod that has ended does not run again.
        self._active = {uid: worker for uid, worker in self._active.items() if worker.occupies}
        return list(self._active.values())

    async def clean_up(self) -> None:
        """Kill processes and delete folders of pods that were deleted while the cluster was down. Call it
        once, when `pods` is current."""
        await asyncio.to_thread(remove_orphaned_memory)
        uids = {pod.metadata.uid for pod in self._pods.objects.values()}
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        for folder in self._folder.iterdir():
            if folder.name not in uids:
                killed = await asyncio.to_thread(processes.kill_marked, folder.name)
                _log.info("removed a deleted pod", uid=folder.name, processes=killed)
                remove_memory(folder.name)
                shutil.rmtree(folder, ignore_errors=True)

    def _changed(self, key: str) -> None:
        pod = self._pods.objects.get(key)
        for uid in self._uids.get(key, ()):
            if pod is None or pod.metadata.uid != uid:
                self._workers[uid].update(None)
        if pod is None or pod.spec.node_name != self._node:
            return
        worker = self._workers.get(pod.metadata.uid)
        if worker is not None:
            worker.update(pod)
        else:
            self._adopt(pod)

    def _adopt(self, pod: Pod) -> None:
        uid = pod.metadata.uid
        # The processes of pods that were deleted by force are still being killed. The worker waits for them,
        # since its pod may get their name and ports.
        namesakes = [self._workers[namesake_uid] for namesake_uid in self._uids.get(pod.key, ())]
        leaving = [*namesakes, *(worker for worker in self._occupying() if worker.gone)]
        worker = PodWorker(pod, self._folder / uid, self._services)
        self._workers[uid] = self._active[uid] = worker
        self._uids.setdefault(pod.key, set()).add(uid)
        task = asyncio.create_task(_run(worker, leaving), name=f"pod {pod.key}")
        self._tasks[uid] = task
        task.add_done_callback(functools.partial(self._over, pod.key, uid))

    def _over(self, key: str, uid: str, task: asyncio.Task[None]) -> None:
        self._workers.pop(uid, None)
        self._active.pop(uid, None)
        self._uids[key].discard(uid)
        if not self._uids[key]:
            del self._uids[key]
        self._tasks.pop(uid, None)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("pod abandoned", uid=uid, exc_info=error)
        self._services.network.touch()

    async def run(self) -> None:
        """Enforce the limits of memory and volumes until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch_memory())
            group.create_task(self._watch_volumes())

    async def _watch_volumes(self) -> None:
        while True:
            await asyncio.sleep(VOLUME_POLL_SECONDS)
            for worker in self._occupying():
                with _alone(worker):
                    await worker.check_volumes()

    async def _watch_memory(self) -> None:
        while True:
            await asyncio.sleep(MEMORY_POLL_SECONDS)
            snapshot = functools.cache(ProcessSnapshot.take)  # taken only if a container has a limit
            for worker in self._occupying():
                with _alone(worker):
                    worker.check_memory(snapshot)

    def refresh(self, key: str) -> None:
        """Update the pods of a namespace after a ConfigMap or Secret (``namespace/name``) changed."""
        namespace, _, name = key.partition("/")
        for worker in self._occupying():
            if worker.pod.metadata.namespace == namespace and name in config_references(worker.pod):
                worker.refresh()

    def logs(self, request: LogRequest) -> AsyncIterator[bytes]:
        """A container's output. This is the API server's `LogProvider`."""
        worker = self._workers.get(request.uid)
        return logs.read(request, worker.container(request.container) if worker else None)

    async def shut_down(self, grace: float) -> None:
        """End all processes. The status of their pods is updated at the next start."""
        workers = list(self._workers.values())
        for task in list(self._tasks.values()):
            task.cancel()
        await asyncio.gather(*self._tasks.values(), return_exceptions=True)
        await asyncio.gather(*(worker.shut_down(grace) for worker in workers))
        await asyncio.gather(*(worker.close() for worker in workers))


@contextlib.contextmanager
def _alone(worker: PodWorker) -> Iterator[None]:
    """Report an error of one pod, and continue with the others."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - reported in the log and in an event of the pod
        _log.exception("limits of a pod not enforced", pod=worker.pod.key)
        worker.complain(error)


async def _run(worker: PodWorker, after: list[PodWorker]) -> None:
    for other in after:
        await other.done.wait()
    await worker.run()


def config_lookups(
    config_maps: Mapping[str, Object], secrets: Mapping[str, Object], namespace: str
) -> Lookups:
    """Functions that look up the contents of a namespace's ConfigMaps and Secrets."""

    def config_map(name: str) -> Mapping[str, bytes] | None:
        obj = config_maps.get(f"{namespace}/{name}")
        if obj is None:
            return None
        text = {key: value.encode() for key, value in (obj.get("data") or {}).items()}
        return text | decode_secret(obj.get("binaryData") or {})

    def secret(name: str) -> Mapping[str, bytes] | None:
        obj = secrets.get(f"{namespace}/{name}")
        return None if obj is None else decode_secret(obj.get("data") or {})

    return Lookups(config_map, secret)
