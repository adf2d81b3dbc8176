"""Limits on the calls and jobs of each tenant of a shared Brain. Operators have no limits."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.runtime.process.rate_limit import RateLimit, TokenBuckets
from edl_workflows.services.brain.auth import Tenant
from edl_workflows.services.brain.store.records import JobKey

CALLS_PER_SECOND = 400.0
"""Default limit of calls of all kinds. A job reports every 15 s and asks for advice every 30 s, so this is
enough for 4,000 jobs; with the masters' states here, up to one call a second of each job whose state changes
is to be added. A server handles some thousands of calls per second."""
_BURST_SECONDS = 20.0
"""Calls that a tenant may make at once after a quiet time, as a multiple of its calls per second: when the
Brain comes back, all masters report."""
MAX_JOBS = 10_000
"""Most new jobs within `JOB_SECONDS`. Each is a row that is kept for the retention time."""
JOB_SECONDS = 86_400.0


class TenantLimits:
    """Counts the calls and jobs of tenants in this process. Thread-safe.

    Args:
        clock: monotonic seconds.
        calls_per_second: limit for each tenant.
    """

    def __init__(
        self, clock: Callable[[], float] = time.monotonic, calls_per_second: float = CALLS_PER_SECOND
    ) -> None:
        self._calls_per_second = calls_per_second
        rate = RateLimit(calls_per_second, burst=max(1.0, calls_per_second * _BURST_SECONDS))
        self._calls = TokenBuckets(rate, clock)
        self._clock = clock
        self._lock = threading.Lock()
        self._jobs: dict[str, OrderedDict[JobKey, float]] = {}
        """Tenant → when it reported each of its jobs last."""

    def take(self, tenant: Tenant, job: JobKey | None = None) -> None:
        """Count a call. Calls that write are about a job.

        Raises:
            UnavailableError: the tenant has made too many calls, or reported too many jobs.
        """
        if tenant.namespaces is None:
            return
        with self._lock:
            if self._calls.take(tenant.name):
                raise UnavailableError(
                    f"the tenant {tenant.name} sends more than {self._calls_per_second:g} requests a second: "
                    "send fewer, or ask the Brain's operator to raise --tenant-calls-per-second"
                )
            if job is not None:
                self._remember(tenant.name, job)

    def _remember(self, tenant: str, job: JobKey) -> None:
        now, jobs = self._clock(), self._jobs.setdefault(tenant, OrderedDict())
        while jobs and now - next(iter(jobs.values())) > JOB_SECONDS:
            jobs.popitem(last=False)
        if job not in jobs and len(jobs) >= MAX_JOBS:
            raise UnavailableError(
                f"the tenant {tenant} has reported about {MAX_JOBS} jobs within a day: new ones have to wait"
            )
        jobs[job] = now
        jobs.move_to_end(job)
