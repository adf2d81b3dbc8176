"""How much one tenant may ask of a Brain that it shares with others. An operator is not limited."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field

from edl_workflows.brain.auth import Tenant
from edl_workflows.brain.store.stored import JobKey
from edl_workflows.exceptions import UnavailableError

CALLS_PER_SECOND = 200.0
"""Reports and questions together. A job makes one every 15 seconds, and one every 30: room for 2,000 jobs."""
BURST = 4_000.0
"""Calls at once, after a quiet time: as when Brain comes back and all masters report."""
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
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tenants: dict[str, _Spent] = {}

    def take(self, tenant: Tenant, job: JobKey) -> None:
        """Count a call about a job.

        Raises:
            UnavailableError: the tenant has asked too often, or about too many jobs.
        """
        if tenant.namespaces is None:
            return
        now = self._clock()
        with self._lock:
            spent = self._tenants.setdefault(tenant.name, _Spent(looked=now))
            spent.calls = max(0.0, spent.calls - (now - spent.looked) * CALLS_PER_SECOND)
            spent.looked = now
            if spent.calls + 1 > BURST:
                raise UnavailableError(
                    f"the tenant {tenant.name} asks more than {CALLS_PER_SECOND:g} times a second: ask less often"
                )
            spent.calls += 1
            self._remember(spent, tenant, job, now)

    def _remember(self, spent: _Spent, tenant: Tenant, job: JobKey, now: float) -> None:
        while spent.jobs and now - next(iter(spent.jobs.values())) > JOB_SECONDS:
            spent.jobs.popitem(last=False)
        if job not in spent.jobs and len(spent.jobs) >= MAX_JOBS:
            raise UnavailableError(
                f"the tenant {tenant.name} has reported about {MAX_JOBS} jobs within a day: new ones have to wait"
            )
        spent.jobs[job] = now
        spent.jobs.move_to_end(job)
