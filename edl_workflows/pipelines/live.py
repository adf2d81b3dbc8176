"""The live figures of ElasticJobs, which their masters give by the API server's service proxy; where a master
can't be reached, those of the status.

The caller needs the right ``get`` on ``services/proxy``, which the API server checks. No port of the cluster
needs to be open.
"""

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from edl_workflows.core.exceptions import EdlError, ForbiddenError, UnavailableError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol import routes
from edl_workflows.core.protocol.message import describe_problems
from edl_workflows.core.protocol.training import LiveFigures
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.client import ServiceAddress
from edl_workflows.runtime.kube.connect import Cluster

AT_ONCE = 8
"""Masters that are asked at the same time."""
BATCH_SECONDS = 10.0
"""For all masters together; those that have not answered by then are not waited for."""


@dataclass(frozen=True)
class Measurement:
    """The newest figures of a job.

    Attributes:
        figures: None if neither master nor status has any.
        obstacle: why they are those of the status; "" if they are the master's.
    """

    figures: LiveFigures | None
    obstacle: str = ""

    @property
    def age(self) -> float:
        """Seconds since the figures of the status were measured; 0 for live ones."""
        return max(0.0, time.time() - self.figures.time) if self.figures and self.obstacle else 0.0


def measure_jobs(cluster: Cluster, jobs: Sequence[ElasticJob]) -> list[Measurement]:
    """The figures of each job. Few masters are asked at once, and all together for a bounded time.

    Raises:
        ForbiddenError: the caller may not ask any of the masters.
    """
    if not jobs:
        return []
    executor = ThreadPoolExecutor(min(AT_ONCE, len(jobs)), "figures")
    answers = [executor.submit(read_figures, cluster, job) for job in jobs]
    try:
        wait(answers, BATCH_SECONDS)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    obstacles = [_find_obstacle(answer) for answer in answers]
    if isinstance(obstacles[0], ForbiddenError) and all(isinstance(o, ForbiddenError) for o in obstacles):
        raise obstacles[0]
    return [
        Measurement(answer.result()) if obstacle is None else Measurement(status_figures(job), str(obstacle))
        for job, answer, obstacle in zip(jobs, answers, obstacles, strict=True)
    ]


def _find_obstacle(answer: "Future[LiveFigures]") -> EdlError | None:
    """Why there are no figures of a master; None if there are."""
    if answer.cancelled() or not answer.done():
        return UnavailableError(f"not read within {BATCH_SECONDS:.0f} s")
    error = answer.exception()
    if error is None or isinstance(error, EdlError):
        return error
    raise error


def read_figures(cluster: Cluster, job: ElasticJob) -> LiveFigures:
    """The figures that a job's master gives.

    Raises:
        ForbiddenError: the caller may not use the service proxy.
        NotFoundError: the job has no master yet.
        UnavailableError: the master can't be reached, or is of a version without live figures.
    """
    namespace = job.metadata.namespace or cluster.namespace
    address = ServiceAddress(
        namespace, names.master_name(job.metadata.name), names.MASTER_PORT, routes.LIVE.path
    )
    action = f"read the live figures of {job.kind} {namespace}/{job.metadata.name}"
    try:
        return LiveFigures.model_validate_json(client.read_service(cluster, address, action))
    except ValidationError as error:
        raise UnavailableError(
            f"cannot {action}: its master answers with {describe_problems(error)[0]}"
        ) from error
    except ForbiddenError as error:
        raise ForbiddenError(
            f"{error}; `edl get` shows the figures of the status without this right"
        ) from error


def status_figures(job: ElasticJob) -> LiveFigures | None:
    """The figures that a job's status has; None if its master has not written any."""
    progress, goodput = job.status.progress, job.status.goodput
    if progress is None or progress.time is None:
        return None
    return LiveFigures.model_construct(  # whoever writes a status is not bound by what a master answers
        time=progress.time.timestamp(),
        step=progress.step,
        speed=progress.speed,
        records=progress.records,
        records_per_second=progress.records_per_second,
        records_total=progress.records_total,
        goodput=goodput.ratio if goodput is not None else 0.0,
        metrics=progress.metrics,
    )


def show_in_status(manifest: Mapping[str, Any], figures: LiveFigures) -> dict[str, Any]:
    """A job's manifest with these figures in its status."""
    measured = datetime.fromtimestamp(figures.time, UTC).isoformat(timespec="milliseconds")
    status = manifest.get("status") or {}
    progress = (status.get("progress") or {}) | {
        "step": figures.step,
        "records": figures.records,
        "recordsTotal": figures.records_total,
        "speed": figures.speed,
        "recordsPerSecond": figures.records_per_second,
        "metrics": figures.metrics,
        "time": measured,
    }
    return {**manifest, "status": {**status, "progress": progress}}
