"""Mistakes that a master can make: the gate must notice each.

All of them have been in this product. They are planted into the masters of `fleet`.
"""

import asyncio
from typing import Any

from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.services.master.kubernetes import KubernetesBackend
from edl_workflows.services.master.master import Master, WriteUrgency

ECHO, HISTORY = "echo", "history"
WASTES = ("", ECHO, HISTORY)
"""Nothing; each status write is followed by one of the state; each status write has the whole history."""


class WastefulBackend(KubernetesBackend):
    """Writes a status as the product does, and makes a mistake with it.

    Args:
        cluster, job: see `KubernetesBackend`.
        master: of the job.
        waste: one of `WASTES`.
    """

    def __init__(self, cluster: Cluster, job: ElasticJob, master: Master, waste: str) -> None:
        super().__init__(cluster, job)
        self._master = master
        self._waste = waste
        self._loop = asyncio.get_running_loop()

    def report_job(self, status: dict[str, Any]) -> None:
        """Write the status."""
        if self._waste == HISTORY:
            points = self._master.state.history.points
            status = status | {"history": [point.to_dict() for point in points]}
        super().report_job(status)
        if self._waste == ECHO:
            self._loop.call_soon_threadsafe(self._master.changed, WriteUrgency.GROUPED)
