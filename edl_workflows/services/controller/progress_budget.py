"""Publishes how often the masters of running ElasticJobs write mere progress, so that all of them together
stay within the installation's budget.

The period is in each job's status (`progressPeriodSeconds`; absent: `PROGRESS_SECONDS`). Jobs that begin to
run get it with a status that the controller writes anyway; the others when it changes, a few at a time. A new
leader continues with the longest published period. The number of jobs is that of the controller's cache, so
looking costs the API server nothing. Replicas that share the jobs count all of them, and each publishes the
period to its own.
"""

from typing import Any

import structlog

from edl_workflows.core.exceptions import ConflictError, EdlError, NotFoundError, UnavailableError
from edl_workflows.core.jobs import left_alone, manifests
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOBS
from edl_workflows.core.jobs.elastic_job.model import ElasticJobPhase
from edl_workflows.core.write_budget import PROGRESS_SECONDS, choose_period
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.resources import Object
from edl_workflows.services.controller.observed_cluster import JobGroup
from edl_workflows.services.controller.periodic_loop import PeriodicLoop
from edl_workflows.services.controller.scaling_loop import ScalingContext

LOOK_SECONDS = 30.0
"""Seconds between two counts of the running jobs."""
BATCH = 5
"""Most statuses that are written in `BATCH_SECONDS` because the period has changed."""
BATCH_SECONDS = 1.0
PRUNED_SECONDS = 600.0
"""Seconds until the next try if the API server drops the field, because its definition is older."""

_FIELD = "progressPeriodSeconds"
_WRITING = {ElasticJobPhase.RUNNING, ElasticJobPhase.SCALING, ElasticJobPhase.RESTARTING}

log = structlog.get_logger(__name__)


class ProgressBudget:
    """Chooses the period and publishes it, in a thread of its own.

    Args:
        context: see `ScalingContext`.
    """

    def __init__(self, context: ScalingContext) -> None:
        self.period = 0
        """Seconds between two progress writes of a job; 0 before the first count."""
        self.loop = PeriodicLoop("progress budget", self.publish, context.world.wait_synced, LOOK_SECONDS)
        self._context = context
        self._tried: set[str] = set()
        """The uids of the jobs that this round has written to."""

    def publish(self, _everything: bool = True, /) -> float:
        """Count the running jobs, and write the period to a few of those that have another one.

        Returns:
            Seconds until the next call.

        Raises:
            UnavailableError: the API server does not answer.
        """
        jobs = [job for job in self._context.world.items(ELASTIC_JOBS) if _writes_progress(job)]
        # What is published, and not what this replica has chosen before: so all replicas choose the same.
        present = max(map(_published, jobs), default=PROGRESS_SECONDS)
        self.period = choose_period(len(jobs), self._context.settings.progress_writes_per_second, present)
        self._context.metrics.chose_progress_period(self.period)
        owns = self._context.partition.owns
        waiting = [
            job
            for job in jobs
            if _published(job) != self.period and _uid(job) not in self._tried and owns(_group_of(job))
        ]
        for job in waiting[:BATCH]:
            self._tried.add(_uid(job))
            with self._context.partition.acting(_group_of(job)) as owned:
                if owned and not self._accepts(job):
                    return PRUNED_SECONDS
        if len(waiting) > BATCH:
            return BATCH_SECONDS
        self._tried.clear()
        return LOOK_SECONDS

    def _accepts(self, job: Object) -> bool:
        """Write the period to a job's status; return False if the API server drops it."""
        metadata = job["metadata"]
        cluster, name, namespace = self._context.cluster, metadata["name"], metadata["namespace"]
        self._context.guard()
        try:
            answer = client.patch_status(
                cluster, ELASTIC_JOBS.api, name, {_FIELD: self.period}, namespace, _uid(job)
            )
        except (NotFoundError, ConflictError):
            return True  # the job is gone
        except UnavailableError:
            raise
        except EdlError as error:
            log.warning("the period of progress is not written", job=f"{namespace}/{name}", error=str(error))
            return True
        self._context.world.wrote(answer)
        if _published(answer) == self.period:
            return True
        log.warning(
            "the API server drops the period of progress, so masters write progress once a minute: update "
            "the definition with `edl crds install elasticjobs`"
        )
        return False


def _writes_progress(job: Object) -> bool:
    phase = (job.get("status") or {}).get("phase")
    return phase in _WRITING and not manifests.is_terminating(job) and not left_alone.is_left_alone(job)


def _published(job: Object) -> int:
    seconds: Any = (job.get("status") or {}).get(_FIELD)
    return seconds if isinstance(seconds, int) and seconds > 0 else PROGRESS_SECONDS


def _group_of(job: Object) -> str:
    return str(JobGroup(job["metadata"]["namespace"], job["metadata"]["name"]))


def _uid(job: Object) -> str:
    return str(job["metadata"]["uid"])
