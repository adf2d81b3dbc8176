"""A training that was submitted: what a program, a notebook or `edl run` does with it."""

import asyncio
import threading
import time
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from edl_workflows.core.exceptions import EdlError, JobDisappearedError
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.jobs.view import JobView
from edl_workflows.pipelines import timeline
from edl_workflows.pipelines.client.live_view import LiveView, describe, open_screen, render_html, share_done
from edl_workflows.pipelines.client.places import Place
from edl_workflows.pipelines.client.worker_logs import WorkerLogs
from edl_workflows.pipelines.stages import driver
from edl_workflows.pipelines.stages.catalog import stage_of
from edl_workflows.pipelines.waiting.goals import GoneGoal, Handle
from edl_workflows.pipelines.waiting.identity import Notify, StageIdentity, notify_nobody
from edl_workflows.pipelines.waiting.observed import read_object
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.pipelines.waiting.ownership import cancel_object
from edl_workflows.pipelines.waiting.results import Failed
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, SCALE_PLANS, Scope

CANCEL_SECONDS = 120.0
LAST_LINES_SECONDS = 30.0
"""How long the last lines of the logs are waited for when the job has ended."""
STOP_SECONDS = 60.0
"""Twice the default grace period of a pod."""


class ElasticTraining:
    """A job on a cluster, with the stages as methods. `edl_workflows.pipelines.client.train` returns it.

    As a context manager it ends with the block: a job that has not ended is cancelled, and an embedded
    cluster that was started for it is stopped.

    Args:
        place: where it runs.
        handle: the handle of the stage that submitted it.
        notify: called with lines about the job while something waits for it.
    """

    def __init__(self, place: Place, handle: Handle, notify: Notify = notify_nobody) -> None:
        self.place = place
        self.handle = handle
        self._notify = notify

    @property
    def name(self) -> str:
        """Name of the ElasticJob."""
        return self.handle.name

    @property
    def cluster(self) -> Cluster:
        """The API server, with the job's namespace."""
        return self.place.cluster.in_namespace(self.handle.namespace)

    @property
    def checkpoint_dir(self) -> str:
        """The default folder of the job's checkpoints on the embedded cluster; "" on another one."""
        return self.place.checkpoints(self.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cancel the job unless it has ended, and stop an embedded cluster that was started for it."""
        try:
            self.cancel()
        finally:
            self.place.close()

    def status(self) -> JobView:
        """The job now.

        Raises:
            JobDisappearedError: it was deleted.
        """
        job = client.find(self.cluster, ELASTIC_JOBS, self.name)
        seen = read_object(self.handle.kind, job)
        if not isinstance(seen, JobView) or seen.uid != self.handle.uid:
            raise JobDisappearedError(f"{self.handle} was deleted")
        return seen

    def wait(
        self, timeout: float | None = None, *, observe: driver.Observe = driver.observe_nothing
    ) -> Outputs:
        """Wait until the job has succeeded.

        Args:
            timeout: longest time to wait, in seconds.
            observe: called with each state of the job; an error that it raises ends the wait.

        Raises:
            JobFailedError: it failed.
            StageTimeoutError: it did not end in time; it continues.
        """
        end = driver.wait_for_goal(
            self._source(), self.handle, _deadline(timeout), self._notify, observe=observe
        )
        if isinstance(end, Failed):
            raise end.error
        return end.outputs

    def result(self, timeout: float | None = None) -> Any:
        """Wait until the job has succeeded, and return what the training function returned: a JSON value.
        None if it returned nothing, and of a script.

        Args:
            timeout: as of `wait`; so are the errors.
        """
        return self.wait(timeout).result

    def watch(self, timeout: float | None = None) -> Outputs:
        """As `wait`, and show the training meanwhile: in a notebook and on a terminal as a table that changes
        with phase, nodes, step, speed, remaining time, metrics, newest checkpoint and warnings, above the
        latest changes; elsewhere as a line for each change.

        Args:
            timeout: as of `wait`; so are the errors.
        """
        with LiveView(open_screen()) as view:
            end = driver.wait_for_goal(self._source(), self.handle, _deadline(timeout), observe=view.show)
        if isinstance(end, Failed):
            raise end.error
        return end.outputs

    async def wait_async(self) -> Outputs:
        """As `wait`, in an event loop, on the watch that all waiters of the process share."""
        end = await driver.await_goal(self._source(), self.handle, notify=self._notify)
        if isinstance(end, Failed):
            raise end.error
        return end.outputs

    def stage(self, name: str, values: Mapping[str, Any], timeout: float | None = None) -> Outputs:
        """Run any stage of `edl_workflows.pipelines.stages.catalog` and wait for its goal.

        Args:
            name: name of the stage, such as ``suspend``.
            values: fields of its request, besides the job.
            timeout: longest time to wait, in seconds.

        Raises:
            EdlError: the goal can't be reached.
        """
        stage = stage_of(name)
        own = "job" if "job" in stage.request.model_fields else "name"
        request = stage.request.of({own: self.name, "namespace": self.handle.namespace, **values})
        identity = StageIdentity.of_person("client")
        return driver.run_stage(
            self.cluster, stage, request, identity, _deadline(timeout), notify=self._notify
        )

    async def stage_async(self, name: str, values: Mapping[str, Any]) -> Outputs:
        """As `stage`, in an event loop: the calls run in a thread."""
        return await asyncio.to_thread(self.stage, name, values)

    def wait_for_step(self, step: int, timeout: float | None = None) -> Outputs:
        """Wait until the job has made this global step."""
        return self.stage("wait", {"step": step}, timeout)

    def scale(self, workers: int | None = None, servers: int | None = None) -> Outputs:
        """Change the number of workers, of parameter servers, or of both, while the job trains."""
        counts = {"worker": workers, "ps": servers}
        replicas = {role: {"replicas": count} for role, count in counts.items() if count is not None}
        return self.stage("scale", {"replicas": replicas})

    def migrate(self, ranks: Mapping[int, Mapping[str, str]], servers: int | None = None) -> Outputs:
        """Replace parameter servers while the job trains.

        Args:
            ranks: rank → new size, as ``{0: {"cpu": "2"}}``.
            servers: wanted number of servers; None for the current number.
        """
        return self.stage("migrate-ps", {"migrate": dict(ranks), "replicas": servers})

    def checkpoint(self) -> Outputs:
        """Request a checkpoint, and wait for it."""
        return self.stage("checkpoint", {})

    def suspend(self) -> Outputs:
        """Delete the job's pods but keep its data position; the chief saves first."""
        return self.stage("suspend", {})

    def resume(self) -> Outputs:
        """Continue a suspended job."""
        return self.stage("resume", {})

    def logs(self) -> Iterator[str]:
        """The lines of the workers' logs: of a job that has ended all lines, else each as it comes until it
        ends. With several workers each line begins with the node."""
        worker_logs = self.worker_logs()

        def end_with_job() -> None:
            driver.wait_for_goal(self._source(), self.handle)
            worker_logs.end(LAST_LINES_SECONDS)

        with worker_logs.following():
            threading.Thread(target=end_with_job, name=f"end of {self.name}", daemon=True).start()
            yield from worker_logs.lines()

    def worker_logs(self) -> WorkerLogs:
        """The logs of the workers, for callers that know when the job has ended."""
        job, _ = ElasticJob.read_stored(client.get(self.cluster, ELASTIC_JOBS, self.name))
        rendezvous, workers = job.spec.rendezvous, job.spec.replica_specs["worker"].replicas
        return WorkerLogs(self.cluster, self.name, prefixed=max(workers, rendezvous.max_nodes) > 1)

    def cancel(self) -> bool:
        """Delete the job and its pods if it has not ended, and wait until it is gone. Its checkpoints stay.

        Returns:
            Whether there was something to cancel.
        """
        if not cancel_object(self.cluster, self.handle):
            return False
        gone = self.handle.model_copy(update={"goal": GoneGoal()})
        driver.wait_for_goal(self._source(), gone, time.time() + CANCEL_SECONDS)
        return True

    def stop(self, timeout: float = STOP_SECONDS) -> bool:
        """As `cancel`, but let the chief save its model first: the job is suspended before it is deleted.

        Args:
            timeout: longest time for that, in seconds; then the job is deleted as it is.
        """
        try:
            self.stage("suspend", {}, timeout)
        except EdlError as error:
            self._notify(f"{self.handle} could not be suspended: {error}")
        finally:
            cancelled = self.cancel()
        return cancelled

    def history(self) -> timeline.Timeline:
        """The history of the job: steps, speed, nodes, restarts and plans."""
        job, _ = ElasticJob.read_stored(client.get(self.cluster, ELASTIC_JOBS, self.name))
        listed = client.list_objects(self.cluster, Scope(SCALE_PLANS, self.handle.namespace)).items
        plans = [plan for plan, _ in map(ScalePlan.read_stored, listed) if plan.job == self.name]
        return timeline.of_job(job, plans, time.time())

    def __repr__(self) -> str:
        return f"ElasticTraining({self.handle})"

    def _repr_html_(self) -> str:
        """A table about the job for notebooks."""
        try:
            job = self.status()
        except EdlError as error:
            return render_html({"job": str(self.handle), "state": str(error)})
        return render_html(describe(job), share_done(job.progress))

    def _source(self) -> ClusterSource:
        return ClusterSource.of(self.cluster)


def _deadline(timeout: float | None) -> float | None:
    return None if timeout is None else time.time() + timeout
