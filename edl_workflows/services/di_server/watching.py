"""Caches of the jobs and their pods, by one LIST+WATCH each and per namespace, and long polls that wait for
changes."""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable
from typing import TypeVar

import structlog

from edl_workflows.core.exceptions import EdlError, NotFoundError, UnavailableError
from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.kubernetes import api
from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer_group import InformerGroup, NamespacedInformer, ServedNamespaces
from edl_workflows.runtime.kube.resources import Object, ObjectKey, Scope
from edl_workflows.runtime.kube.watch import EventType
from edl_workflows.services.di_server import replicas

log = structlog.get_logger(__name__)

GATHER_SECONDS = 0.1
"""Changes of a job's pods come in bursts: waiters are woken this long after the first change."""

Found = TypeVar("Found")


class JobCaches(InformerGroup):
    """Caches of the jobs and their pods.

    Args:
        cluster: the API server.
        selection: the namespaces whose jobs are served.
    """

    def __init__(self, cluster: Cluster, selection: NamespaceSelection) -> None:
        source = ClusterSource.of(cluster)
        selector = f"{pods.OPERATOR_LABEL}={pods.OPERATOR}"
        self._served = ServedNamespaces(source, selection)
        self._jobs = NamespacedInformer(source, Scope(api.DI_JOBS), selection.scopes)
        self._pods = NamespacedInformer(
            source,
            Scope(api.PODS, label_selector=selector),
            selection.scopes,
            {"job": _by_job},
            replicas.reduce_pod,
        )
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiting: defaultdict[ObjectKey, set[asyncio.Event]] = defaultdict(set)
        self._waking: set[ObjectKey] = set()
        self._changes = itertools.count(1)
        self._changed: dict[ObjectKey, int] = {}
        self._jobs.on_change(self._job_changed)
        self._pods.on_change(self._record_pod_change)
        informers = (*self._served.informers, *self._jobs.informers, *self._pods.informers)
        super().__init__(informers, _log_failure)

    def job(self, key: ObjectKey) -> Object:
        """A job in the cache.

        Raises:
            NotFoundError: there is none.
            UnavailableError: the jobs of its namespace have not been listed yet.
        """
        self._check_ready(key.namespace)
        job = self._jobs.get(key)
        if job is None or not self._served.includes(key.namespace):
            raise NotFoundError(f"no DIJob {key}; check the id")
        return job

    def pods(self, key: ObjectKey) -> list[Object]:
        """A job's pods in the cache, as returned by `replicas.reduce_pod`.

        Raises:
            UnavailableError: the pods of its namespace have not been listed yet.
        """
        self._check_ready(key.namespace)
        return self._pods.by_index("job", str(key), key.namespace)

    def version(self, key: ObjectKey) -> int:
        """The number of the last change of a job or its pods; 0 if there was none, or the namespace is not
        served. Reads after this call include this change."""
        return self._changed.get(key, 0) if self._served.includes(key.namespace) else 0

    def wrote(self, job: Object) -> None:
        """Put the API server's answer to our own write into the cache."""
        self._jobs.put(job)
        self._record_change(ObjectKey(job["metadata"]["namespace"], job["metadata"]["name"]))

    async def until(self, key: ObjectKey, look: Callable[[], Found | None], seconds: float) -> Found | None:
        """Wait until `look` returns a result.

        Args:
            key: the job. Changes of the job or its pods wake the waiter.
            look: called first and after changes.
            seconds: how long to wait.

        Returns:
            The result; None if there was none in time.
        """
        self._loop = asyncio.get_running_loop()
        changed = asyncio.Event()
        self._waiting[key].add(changed)
        try:
            async with asyncio.timeout(seconds):
                while (answer := look()) is None:
                    await changed.wait()
                    changed.clear()
                return answer
        except TimeoutError:
            return None
        finally:
            self._waiting[key].discard(changed)
            if not self._waiting[key]:
                del self._waiting[key]

    def _check_ready(self, namespace: str) -> None:
        if scopes := self.unlisted_in(namespace):
            raise UnavailableError(
                f"the server can't answer yet for jobs in {namespace}: it has not listed "
                f"{', '.join(map(str, scopes))}; try again. If it repeats, see the server's log"
            )

    def _job_changed(self, change: ObjectChange) -> None:
        self._record_change(change.key)
        if change.type is EventType.DELETED:
            self._changed.pop(change.key, None)

    def _record_pod_change(self, change: ObjectChange) -> None:
        self._record_change(ObjectKey(change.key.namespace, replicas.job_of(change.object)))

    def _record_change(self, key: ObjectKey) -> None:
        """Called from any thread."""
        self._changed[key] = next(self._changes)
        loop = self._loop
        if loop is not None and not loop.is_closed():
            loop.call_soon_threadsafe(self._wake, key)

    def _wake(self, key: ObjectKey) -> None:
        """Wake all waiters together after a short delay, so that one of them computes a result that all
        share."""
        if self._waiting.get(key) and key not in self._waking:
            self._waking.add(key)
            asyncio.get_running_loop().call_later(GATHER_SECONDS, self._wake_all, key)

    def _wake_all(self, key: ObjectKey) -> None:
        self._waking.discard(key)
        for event in self._waiting.get(key, ()):
            event.set()


def _by_job(pod: Object) -> list[str]:
    return [str(ObjectKey(pod["metadata"].get("namespace") or "", replicas.job_of(pod)))]


def _log_failure(scope: Scope, error: EdlError) -> None:
    if isinstance(error, NotFoundError) and scope.resource == api.DI_JOBS:
        log.error("the API server has no DIJobs: run `edl crds install dijobs`; trying again")
    else:
        log.warning("watch failed; trying again", watch=str(scope), error=str(error))
