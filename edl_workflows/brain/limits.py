"""How much one tenant may ask of a Brain that it shares with others. An operator is not limited."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from edl_workflows.brain.auth import Tenant
from edl_workflows.brain.store.records import JobKey
from edl_workflows.exceptions import UnavailableError

CALLS_PER_SECOND = 400.0
"""Calls of all kinds together, unless the operator says otherwise. A job makes one every 15 seconds, and one
every 30: room for 4,000 jobs, on a server that answers some thousands a second."""
_BURST_SECONDS = 20.0
"""After a quiet time a tenant may make so many seconds' calls at once: as when Brain comes back and all
masters report."""
MAX_JOBS = 10_000
"""Jobs within `JOB_SECONDS`. Each is a row that stays for the time of retention."""
JOB_SECONDS = 86_400.0


@dataclass
class _Spent:
    """What a tenant has used up."""

    calls: float = 0.0
    looked: float = 0.0
    jobs: OrderedDict[JobKey, float] = field(default_factory=OrderedDict)


class TenantLimits:
    """Counts what tenants ask, in this process. For any thread.

    Args:
        clock: monotonic seconds.
        calls_per_second: of each tenant.
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
        """Count a call; one that writes is about a job.

        Raises:
            UnavailableError: the tenant has asked too often, or about too many jobs.
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
                    "send fewer, or have the Brain's operator raise --tenant-calls-per-second"
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
