"""Limits on the calls and jobs of each tenant of a shared Brain. Operators have no limits."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.services.brain.auth import Tenant
from edl_workflows.services.brain.store.records import JobKey

CALLS_PER_SECOND = 400.0
"""Default limit of calls of all kinds. A job reports every 15 s and asks for advice every 30 s, so this is
enough for 4,000 jobs. A server handles some thousands of calls per second."""
_BURST_SECONDS = 20.0
"""Calls that a tenant may make at once after a quiet time, as a multiple of its calls per second: when the
Brain comes back, all masters report."""
MAX_JOBS = 10_000
"""Most new jobs within `JOB_SECONDS`. Each is a row that is kept for the retention time."""
JOB_SECONDS = 86_400.0


@dataclass
class _Spent:
    """How much of its limits a tenant has used."""

    calls: float = 0.0
    looked: float = 0.0
    jobs: OrderedDict[JobKey, float] = field(default_factory=OrderedDict)


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
        self._burst = max(1.0, calls_per_second * _BURST_SECONDS)
        self._clock = clock
        self._lock = threading.Lock()
        self._tenants: dict[str, _Spent] = {}

    def take(self, tenant: Tenant, job: JobKey | None = None) -> None:
        """Count a call. Calls that write are about a job.

        Raises:
            UnavailableError: the tenant has made too many calls, or reported too many jobs.
        """
        if tenant.namespaces is None:
            return
        now = self._clock()
        with self._lock:
            spent = self._tenants.setdefault(tenant.name, _Spent(looked=now))
            spent.calls = max(0.0, spent.calls - (now - spent.looked) * self._calls_per_second)
            spent.looked = now
            if spent.calls + 1 > self._burst:
                raise UnavailableError(
                    f"the tenant {tenant.name} sends more than {self._calls_per_second:g} requests a second: "
                    "send fewer, or ask the Brain's operator to raise --tenant-calls-per-second"
                )
            spent.calls += 1
            if job is not None:
                self._remember(spent, tenant, job, now)

    def _remember(self, spent: _Spent, tenant: Tenant, job: JobKey, now: float) -> None:
        while spent.jobs and now - next(iter(spent.jobs.values())) > JOB_SECONDS:
            spent.jobs.popitem(last=False)
        if job not in spent.jobs and len(spent.jobs) >= MAX_JOBS:
            raise UnavailableError(
                f"the tenant {tenant.name} has reported about {MAX_JOBS} jobs within a day: new ones have "
                "to wait"
            )
        spent.jobs[job] = now
        spent.jobs.move_to_end(job)
