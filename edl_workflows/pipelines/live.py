"""The live figures of ElasticJobs, which their masters give by the API server's service proxy; where a master
can't be reached, those of the status.

The caller needs the right ``get`` on ``services/proxy``, which the API server checks. No port of the cluster
needs to be open.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import ValidationError

from edl_workflows.core.backoff import Backoff
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
PAUSES = Backoff(first=4.0, most=60.0)
"""Before a master that gave no figures is asked again."""


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
    def live(self) -> bool:
        """Whether the job's master has given them now."""
        return self.figures is not None and not self.obstacle

    @property
    def age(self) -> float:
        """Seconds since the figures of the status were measured; 0 for live ones."""
        return max(0.0, time.time() - self.figures.time) if self.figures and self.obstacle else 0.0

    def show_in(self, manifest: dict[str, Any]) -> dict[str, Any]:
        """A job's manifest: with these figures in its status if they are live, else as it is."""
        if self.figures is None or self.obstacle:
            return manifest
        return _with_progress(manifest, self.figures)


@dataclass(frozen=True)
class _Pause:
    """A master that gave no figures is not asked again for a while.

    Attributes:
        obstacle: why it gave none.
        failures: how often in a row.
        until: monotonic seconds.
    """

    obstacle: EdlError
    failures: int
    until: float


class FigureReader:
    """Reads the figures of jobs again and again. A master that gave none is asked again after a pause, which
    doubles each time, or when the phase of its job has changed. Threads may share a reader.

    Args:
        clock: monotonic seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._pauses: dict[tuple[str, ...], _Pause] = {}
        self._lock = threading.Lock()

    def measure(self, cluster: Cluster, jobs: Sequence[ElasticJob]) -> list[Measurement]:
        """The figures of each job. Few masters are asked at once, and all together for a bounded time.

        Raises:
            ForbiddenError: the caller may not ask any of the masters.
        """
        if not jobs:
            return []
        paused = self._read_pauses()
        keys = [_key(cluster, job) for job in jobs]
        asked = {key: job for key, job in zip(keys, jobs, strict=True) if key not in paused}
        answers = dict(zip(asked, _ask_masters(cluster, list(asked.values())), strict=True))
        self._note(answers)
        results = [answers.get(key) or paused[key].obstacle for key in keys]
        if isinstance(results[0], ForbiddenError) and all(isinstance(r, ForbiddenError) for r in results):
            raise results[0]
        return [
            Measurement(status_figures(job), str(result) or type(result).__name__)
            if isinstance(result, EdlError)
            else Measurement(result)
            for job, result in zip(jobs, results, strict=True)
        ]

    def _read_pauses(self) -> dict[tuple[str, ...], _Pause]:
        """Those that last; forgets the ones of jobs that nobody has asked for since."""
        now = self._clock()
        with self._lock:
            self._pauses = {key: p for key, p in self._pauses.items() if now < p.until + PAUSES.most}
            return {key: pause for key, pause in self._pauses.items() if now < pause.until}

    def _note(self, answers: Mapping[tuple[str, ...], LiveFigures | EdlError]) -> None:
        now = self._clock()
        with self._lock:
            for key, answer in answers.items():
                if isinstance(answer, _NotAskedError):
                    continue
                before = self._pauses.pop(key, None)
                if isinstance(answer, EdlError):
                    failures = before.failures + 1 if before is not None else 1
                    self._pauses[key] = _Pause(answer, failures, now + PAUSES.delay(failures))


def measure_jobs(cluster: Cluster, jobs: Sequence[ElasticJob]) -> list[Measurement]:
    """The figures of each job, once.

    Raises:
        ForbiddenError: the caller may not ask any of the masters.
    """
    return FigureReader().measure(cluster, jobs)


class _NotAskedError(UnavailableError):
    """There was no time left to ask the master."""


def _key(cluster: Cluster, job: ElasticJob) -> tuple[str, ...]:
    """What a pause is for: another caller of the same job may have other rights."""
    metadata = job.metadata
    return cluster.key, metadata.namespace or "", metadata.name, metadata.uid, str(job.status.phase)


def _ask_masters(cluster: Cluster, jobs: Sequence[ElasticJob]) -> list[LiveFigures | EdlError]:
    """What each master answers, or why it does not."""
    if not jobs:
        return []
    executor = ThreadPoolExecutor(min(AT_ONCE, len(jobs)), "figures")
    answers = [executor.submit(read_figures, cluster, job) for job in jobs]
    try:
        wait(answers, BATCH_SECONDS)
    finally:
        executor.shutdown(wait=False, cancel_futures=True)
    return [_result_of(answer) for answer in answers]


def _result_of(answer: "Future[LiveFigures]") -> LiveFigures | EdlError:
    if answer.cancelled() or not answer.done():
        late = _NotAskedError if answer.cancelled() else UnavailableError
        return late(f"not read within {BATCH_SECONDS:.0f} s")
    error = answer.exception()
    if error is None:
        return answer.result()
    if isinstance(error, EdlError):
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


def _with_progress(manifest: dict[str, Any], figures: LiveFigures) -> dict[str, Any]:
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
