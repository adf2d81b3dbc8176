"""Implements the calls of the DI server: reads a job from the cache, changes its spec, stores its
profilings."""

import hmac
import threading
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from edl_workflows.core.exceptions import ConflictError, NotFoundError
from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.model import DIJob
from edl_workflows.core.kubernetes import api
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster
from edl_workflows.runtime.kube.resources import Object, ObjectKey
from edl_workflows.services.di_server import profilings, replicas
from edl_workflows.services.di_server.messages import JobId
from edl_workflows.services.di_server.replicas import ReplicaAddresses
from edl_workflows.services.di_server.watching import JobCaches

log = structlog.get_logger(__name__)

ATTEMPTS = 5
"""Attempts to edit a job that others change at the same time."""
MAX_CACHED_JOBS = 1000
"""Jobs whose addresses are cached."""
LOCKS = 64
"""Enough locks, since fewer jobs report at the same moment."""


@dataclass(frozen=True)
class _CachedAddresses:
    """The addresses of a job's replicas at one version of the job and its pods."""

    version: int
    job: DIJob
    addresses: ReplicaAddresses


class DiService:
    """The calls of the API. Methods that write block.

    Args:
        cluster: the API server.
        watches: caches of the jobs and their pods.
    """

    def __init__(self, cluster: Cluster, watches: JobCaches) -> None:
        self._cluster = cluster
        # An edit of the replicas must not be sent again if there was no answer: it may have been carried out.
        self._once = cluster.with_policy(CallPolicy(attempts=1))
        self._watches = watches
        self._cached_addresses: dict[ObjectKey, _CachedAddresses] = {}
        self._reporting = tuple(threading.Lock() for _ in range(LOCKS))

    def has_token(self, job_id: JobId, token: str) -> bool:
        """Whether this is the job's token."""
        try:
            manifest = self._watches.job(job_id.key)
        except NotFoundError:
            return False
        digest = str((manifest.get("status") or {}).get("tokenDigest") or "")
        return hmac.compare_digest(pods.token_digest(token), digest)

    def find(self, job_id: JobId) -> DIJob:
        """The job in the cache.

        Raises:
            NotFoundError: there is none.
            JobIdError: the caller belongs to an earlier generation.
        """
        return _checked(self._watches.job(job_id.key), job_id)

    def addresses(self, job_id: JobId) -> ReplicaAddresses:
        """The addresses of the job's replicas, computed once per change: all replicas of a job may ask at the
        same time.

        Raises:
            EdlError: as `find`.
        """
        key = job_id.key
        version = self._watches.version(key)
        cached = self._cached_addresses.get(key)
        if cached is None or not version or cached.version != version:
            job = DIJob.parse(self._watches.job(key))
            cached = _CachedAddresses(version, job, replicas.replica_addresses(job, self._watches.pods(key)))
            if len(self._cached_addresses) >= MAX_CACHED_JOBS:
                self._cached_addresses.clear()
            self._cached_addresses[key] = cached
        job_id.check(cached.job)
        return cached.addresses

    async def all_addresses(self, job_id: JobId, seconds: float) -> ReplicaAddresses:
        """Wait until all replicas that have not completed have an address.

        Returns:
            The addresses; after this many seconds, incomplete ones.

        Raises:
            EdlError: as `find`, also while waiting.
        """

        def look() -> ReplicaAddresses | None:
            addresses = self.addresses(job_id)
            return None if addresses.missing else addresses

        return await self._watches.until(job_id.key, look, seconds) or self.addresses(job_id)

    def resize(self, job_id: JobId, task: str | None, delta: int) -> DIJob:
        """Add replicas to a task, or remove them.

        Returns:
            The job with its new spec.

        Raises:
            ConflictError: the job has ended, its allocator decides, or others changed it at each attempt.
            ManifestError: there is no such task, or its bounds forbid it.
            EdlError: as `find`.
        """
        manifest = self._watches.job(job_id.key)
        uid = manifest["metadata"]["uid"]
        for _ in range(ATTEMPTS):
            job = _checked(manifest, job_id)
            spec = replicas.resize_patch(job, task, delta)
            try:
                answer = self._patch(self._once, manifest, {"spec": spec})
            except ConflictError:
                manifest = self._again(job_id, uid)
                continue
            self._watches.wrote(answer)
            log.info("replicas changed", job=str(job_id.key), task=task, delta=delta)
            return DIJob.parse(answer)
        raise _beaten(job_id)

    def report(self, job_id: JobId, patch: dict[str, Any]) -> None:
        """Merge what a program reports into the job's profilings.

        The write requires the version against which the bounds were checked, so that concurrent reports are
        counted together.

        Raises:
            ConflictError: others changed the job at each attempt.
            InvalidError: the report is too large, or has values that cannot be stored.
            EdlError: as `find`.
        """
        # Reports about one job are processed one after the other, so that only reports to other servers can
        # conflict.
        with self._reporting[hash(job_id.key) % LOCKS]:
            manifest = self._watches.job(job_id.key)
            uid = manifest["metadata"]["uid"]
            for _ in range(ATTEMPTS):
                job = _checked(manifest, job_id)
                if profilings.merge_profilings(job.status.profilings, patch) == job.status.profilings:
                    return
                try:
                    answer = self._patch(self._cluster, manifest, {"status": {"profilings": patch}}, "status")
                except ConflictError:
                    manifest = self._again(job_id, uid)
                    continue
                self._watches.wrote(answer)
                return
        raise _beaten(job_id)

    def _again(self, job_id: JobId, uid: str) -> Object:
        """Read the job again after a conflict.

        Raises:
            NotFoundError: it was replaced by another job.
        """
        manifest = client.get(self._cluster, api.DI_JOBS, job_id.name, job_id.namespace)
        if manifest["metadata"]["uid"] != uid:
            raise NotFoundError(f"DIJob {job_id.key} was replaced by another one")
        return manifest

    def _patch(
        self, cluster: Cluster, manifest: Object, body: dict[str, Any], part: Literal["", "status"] = ""
    ) -> Object:
        """Change the job if it is still at this version."""
        metadata = manifest["metadata"]
        guarded = {"metadata": {key: metadata[key] for key in ("uid", "resourceVersion")}, **body}
        return client.patch(cluster, api.DI_JOBS, metadata["name"], guarded, metadata["namespace"], part)


def _beaten(job_id: JobId) -> ConflictError:
    return ConflictError(f"DIJob {job_id.key} was changed by others {ATTEMPTS} times in a row; try again")


def _checked(manifest: Object, job_id: JobId) -> DIJob:
    job = DIJob.parse(manifest)
    job_id.check(job)
    return job
