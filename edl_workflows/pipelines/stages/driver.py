"""Waiting for the goal of a stage: `wait_for_goal` blocks on the process's shared watch, `await_goal` does so
in event loops, and `check_now` asks once.

All pass each state to the pure `results.evaluate_goal`, and to `job_log`, which writes lines about changes.
Deadlines are Unix times, since a wait may continue in another process. The deadline of a queued job no longer
counts once it has run.
"""

import math
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

from edl_workflows.core.exceptions import EdlError, StageTimeoutError, UnavailableError
from edl_workflows.core.jobs.manifests import parse_time
from edl_workflows.pipelines.stages.description import R, StageSpec
from edl_workflows.pipelines.stages.scale_plans import ChangeRequest
from edl_workflows.pipelines.waiting import failed_pod, queueing
from edl_workflows.pipelines.waiting.goals import ChangeGoal, GoneGoal, Handle
from edl_workflows.pipelines.waiting.identity import Notify, StageIdentity, notify_nobody
from edl_workflows.pipelines.waiting.job_log import (
    PROGRESS_SECONDS,
    StateReporter,
    describe_details,
    describe_state,
)
from edl_workflows.pipelines.waiting.news import is_news
from edl_workflows.pipelines.waiting.observed import ObservedObject, read_object
from edl_workflows.pipelines.waiting.outputs import Outputs
from edl_workflows.pipelines.waiting.ownership import resource_of
from edl_workflows.pipelines.waiting.results import (
    Done,
    Failed,
    InProgress,
    Skipped,
    StageEnd,
    StageResult,
    evaluate_goal,
)
from edl_workflows.pipelines.waiting.step_waiters import StepWaiter
from edl_workflows.pipelines.waiting.training_logs import TrainingLogs
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster, ClusterSource
from edl_workflows.runtime.kube.resources import ALL_NAMESPACES, Object, Scope, version_of
from edl_workflows.runtime.kube.shared import (
    SHARED,
    IsNews,
    LoopWaiting,
    State,
    States,
    ThreadWaiting,
    Waiting,
    run_blocking,
)

LAST_CHECK = CallPolicy(attempts=1, read_seconds=5.0)
"""For the last check after a deadline: one short attempt."""
RETRY_SECONDS = 5.0
"""Between checks while the API server is unavailable."""


Observe = Callable[[ObservedObject], None]
"""Called with each state of the object of a stage."""


def observe_nothing(_seen: ObservedObject) -> None:
    """The `Observe` of callers that need no states."""


class GoalWait:
    """The wait for one handle's goal: evaluates the states of the object one after the other.

    Args:
        handle: what to wait for.
        deadline: Unix time of its end; None for no limit.
        queue_deadline: Unix time until which the job must have begun to run; None for no limit.
        notify: called with the lines of `job_log`.
        observe: called with each state.
    """

    def __init__(
        self,
        handle: Handle,
        deadline: float | None = None,
        queue_deadline: float | None = None,
        notify: Notify = notify_nobody,
        observe: Observe = observe_nothing,
    ) -> None:
        self._handle = handle
        self._end = math.inf if deadline is None else deadline
        self._queue_end = math.inf if queue_deadline is None else queue_deadline
        self._notify = notify
        self._state = ""
        self._reporter = StateReporter()
        self._observe = observe
        self.waiter = StepWaiter(handle)
        """Registers the wait on its job, if it is one for a step."""

    @property
    def seconds_left(self) -> float:
        """Until the next deadline; infinite without one."""
        return max(0.0, min(self._end, self._queue_end) - time.time())

    def must_confirm(self, state: Object | None) -> bool:
        """Whether an absence must be confirmed: the shared watch may lag behind the creation of the
        object."""
        return state is None and bool(self._handle.uid)

    def is_current(self, state: Object) -> bool:
        """Whether a state is not older than the beginning of the stage."""
        return version_of(state) >= self._handle.version

    def confirm(self, source: ClusterSource) -> Object | None:
        """The object as the API server has it now."""
        return _find(source.connect(), self._handle)

    def take(self, state: Object | None) -> StageEnd | None:
        """Evaluate the next state; None to keep waiting."""
        if state is not None and not self.is_current(state):
            return None
        result = self._evaluate(state)
        return None if isinstance(result, InProgress) else result

    def check(self, cluster: Cluster) -> StageResult:
        """Evaluate the state that the API server has now, with one request; for callers that ask again and
        again.

        Raises:
            EdlError: the object can't be read.
        """
        state, source = _find(cluster, self._handle), ClusterSource.of(cluster)
        result = self._evaluate(state)
        if state is not None and self.waiter.is_due(state) and isinstance(result, InProgress):
            self.waiter.register(source, state)
        if not isinstance(result, InProgress):
            self.waiter.withdraw(source)
        if isinstance(result, Failed):
            return failed_pod.explain_failure(source, self._handle, result)
        silence = self._reporter.describe_silence(time.monotonic(), PROGRESS_SECONDS)
        return replace(result, message=silence) if silence and isinstance(result, InProgress) else result

    def _evaluate(self, state: Object | None) -> StageResult:
        """Evaluate a state, and write log lines about it before the observer may end the wait. The caller
        reports errors and why a stage was skipped."""
        try:
            seen = read_object(self._handle.kind, state)
            result = evaluate_goal(self._handle, seen)
        except EdlError as error:
            return Failed(error)
        result = self._report(state, seen, result)
        self._observe(seen)
        return result

    def _report(self, state: Object | None, seen: ObservedObject, result: StageResult) -> StageResult:
        """Write log lines about a state. The result differs if the job was queued for too long."""
        if isinstance(result, Done):
            self._write_end(seen)
        if not isinstance(result, InProgress):
            return result
        if not queueing.is_queued(seen):
            self._queue_end = math.inf
        elif time.time() >= self._queue_end:
            return queueing.fail_queued(self._handle, seen)
        if state is not None and not self._handle.uid:
            self._handle = self._handle.model_copy(update={"uid": state["metadata"]["uid"]})
        self._state = result.message
        if state is None or seen is None or isinstance(self._handle.goal, GoneGoal):
            self._write(self._reporter.report_line(result.message, time.monotonic()))
        else:
            self._write(self._reporter.report_state(seen, time.monotonic(), _age_of(state)))
            self._state = "; ".join([result.message, *describe_details(seen)])
        return result

    def _write_end(self, seen: ObservedObject) -> None:
        """Write the state in which the goal is reached, however little it differs from the one before."""
        if isinstance(self._handle.goal, GoneGoal):
            self._write(["is gone"])
        elif seen is not None:
            self._write(self._reporter.report_state(seen, time.monotonic()) or [describe_state(seen)])

    def remind(self) -> None:
        """Write a line if none was written for a minute."""
        self._write(self._reporter.remind(time.monotonic()))

    def seconds_until_reminder(self) -> float:
        """How long to wait for the next state before `remind` is called."""
        return self._reporter.seconds_left(time.monotonic())

    def _write(self, lines: list[str]) -> None:
        for line in lines:
            self._notify(f"{self._handle} {line}")

    def overdue(self, source: ClusterSource, last_error: EdlError | None) -> StageEnd | None:
        """The result after a deadline; None to keep waiting. A last check finds out whether the goal was
        reached, or the job began to run, while nobody waited."""
        try:
            result = self.take(_find(source.connect().with_policy(LAST_CHECK), self._handle))
        except EdlError as error:
            result, last_error = None, last_error or error
            if self._queue_end <= time.time():  # whether the job runs by now is unknown
                self._queue_end = time.time() + RETRY_SECONDS
        if result is not None or time.time() < self._end:
            return result
        cause = f"; the watch is down: {last_error}" if last_error else ""
        state = self._reporter.describe_silence(time.monotonic()) or self._state or "was not seen yet"
        message = f"{self._handle} did not reach its goal in time; it {state}{cause}"
        return Failed(StageTimeoutError(message))


def check_now(cluster: Cluster, handle: Handle, queue_deadline: float | None = None) -> StageResult:
    """Evaluate the goal now, with one request; for callers that ask once.

    Args:
        cluster: the API server.
        handle: what to wait for.
        queue_deadline: Unix time until which the job must have begun to run; None for no limit.
    """
    unregistered = handle.model_copy(update={"waiter": ""})
    return GoalWait(unregistered, queue_deadline=queue_deadline).check(cluster)


def _find(cluster: Cluster, handle: Handle) -> Object | None:
    return client.find(cluster, resource_of(handle.kind), handle.name, handle.namespace)


def _age_of(manifest: Object) -> float:
    """Seconds since its creation."""
    created = parse_time(manifest["metadata"].get("creationTimestamp"))
    return max(0.0, time.time() - created.timestamp()) if created else 0.0


def wait_for_goal(
    source: ClusterSource,
    handle: Handle,
    deadline: float | None = None,
    notify: Notify = notify_nobody,
    *,
    queue_deadline: float | None = None,
    observe: Observe = observe_nothing,
) -> StageEnd:
    """Block until the goal is reached or can no longer be reached. The error of a job that failed contains
    the last lines of the pod that failed.

    Args:
        source: the API server.
        handle: what to wait for.
        deadline: Unix time after which the result is Failed with a StageTimeoutError; None for no limit.
        notify: called on changes and at least once a minute.
        queue_deadline: Unix time after which the result is Failed with a QueueTimeoutError if the job has not
            run yet; None for no limit.
        observe: called with each state of the object, progress included.
    """
    news = None if observe is not observe_nothing else partial(is_news, handle)
    # The object alone, so that rights to it suffice.
    scope = Scope(resource_of(handle.kind), handle.namespace, field_selector=f"metadata.name={handle.name}")
    wait = GoalWait(handle, deadline, queue_deadline, notify, observe)
    try:
        return run_blocking(_wait_for_end(source, handle, wait, scope, ThreadWaiting(), news))
    except BaseException:  # interrupted by the user, or by a time-out of Airflow
        wait.waiter.withdraw(source)
        raise


async def await_goal(
    source: ClusterSource,
    handle: Handle,
    deadline: float | None = None,
    notify: Notify = notify_nobody,
    *,
    queue_deadline: float | None = None,
    everywhere: bool = False,
    logs: TrainingLogs | None = None,
) -> StageEnd:
    """As `wait_for_goal`, in an event loop, on the watch that all waiters of the process share.

    Args:
        source: the API server.
        handle: what to wait for.
        deadline: Unix time after which the result is Failed with a StageTimeoutError; None for no limit.
        notify: called on changes and at least once a minute.
        queue_deadline: see `wait_for_goal`.
        everywhere: watch all namespaces at once; for processes with the rights for it that wait in many
            namespaces.
        logs: writes the training logs meanwhile.
    """
    observe = logs.observe if logs is not None else observe_nothing
    wait = GoalWait(handle, deadline, queue_deadline, notify, observe)
    # Not the object alone: all waits in the namespace share one watch.
    scope = Scope(resource_of(handle.kind), ALL_NAMESPACES if everywhere else handle.namespace)
    return await _wait_for_end(source, handle, wait, scope, LoopWaiting(), partial(is_news, handle), logs)


async def _wait_for_end(
    source: ClusterSource,
    handle: Handle,
    wait: GoalWait,
    scope: Scope,
    waiting: Waiting,
    news: IsNews | None,
    logs: TrainingLogs | None = None,
) -> StageEnd:
    async with logs.streaming() if logs is not None else nullcontext():
        with SHARED.states(source, scope, handle.name, waiting, handle.namespace, news) as states:
            end: StageEnd | None = None
            while end is None:
                try:
                    state = await _next_state(source, states, wait, waiting)
                    end = wait.take(state)
                    if state is not None and wait.waiter.is_due(state) and end is None:
                        await waiting.call(partial(wait.waiter.register, source, state))
                except TimeoutError:
                    end = await waiting.call(partial(wait.overdue, source, states.last_error))
                except EdlError as error:
                    end = Failed(error)
    waiting.call_later(partial(wait.waiter.withdraw, source))  # the result must not wait for it
    if not isinstance(end, Failed):
        return end
    return await waiting.call(partial(failed_pod.explain_failure, source, handle, end))


async def _next_state(source: ClusterSource, states: States, wait: GoalWait, waiting: Waiting) -> State:
    """The next state to evaluate: one that was delivered, or the newest one when a reminder, or another
    attempt to register the wait, is due.

    Raises:
        TimeoutError: a deadline has passed.
        EdlError: the server refuses the watch.
    """
    while True:
        try:
            retry = wait.waiter.seconds_until_retry
            state = await states.next(min(wait.seconds_left, wait.seconds_until_reminder(), retry))
        except TimeoutError:
            if not wait.seconds_left:
                raise
            newest = states.newest  # with progress that was no news
            if newest is not None and wait.is_current(newest):
                return newest
            wait.remind()
        else:
            return await _confirm(source, wait, waiting) if wait.must_confirm(state) else state


async def _confirm(source: ClusterSource, wait: GoalWait, waiting: Waiting) -> State:
    """Read the object, and retry while the API server is unavailable: the wait survives outages.

    Raises:
        TimeoutError: a deadline has passed.
        EdlError: the server rejects the request.
    """
    while True:
        try:
            return await waiting.call(partial(wait.confirm, source), wait.seconds_left)
        except UnavailableError:
            if not wait.seconds_left:
                raise TimeoutError from None
            await waiting.sleep(min(RETRY_SECONDS, wait.seconds_left))


def run_stage(
    cluster: Cluster,
    stage: StageSpec[R],
    request: R,
    identity: StageIdentity,
    deadline: float | None = None,
    notify: Notify = notify_nobody,
) -> Outputs:
    """Begin a stage and wait for its goal, in one call. A stage that is skipped says so and returns the
    outputs of the job as it is.

    Raises:
        EdlError: why the goal can't be reached. After a StageTimeoutError, what the stage created continues
            to exist; the error of a plan has the commands that show it and cancel it.
    """
    handle = stage.begin(cluster, request, identity)
    result = wait_for_goal(ClusterSource.of(cluster), handle, deadline, notify)
    if isinstance(result, Failed):
        plan_left = isinstance(result.error, StageTimeoutError) and isinstance(handle.goal, ChangeGoal)
        if plan_left and isinstance(request, ChangeRequest):
            raise StageTimeoutError(f"{result.error}; {_describe_way_out(handle, request.job)}")
        raise result.error
    if isinstance(result, Skipped):
        notify(f"skipped: {result.reason}")
    return result.outputs


def _describe_way_out(plan: Handle, job: str) -> str:
    """What becomes of a plan for which nobody waits any more, with the commands that show and cancel it."""
    where = f"--namespace {plan.namespace}"
    return (
        f"the plan goes on: `edl describe {job} {where}` shows it, and "
        f"`edl delete {plan.name} --kind {plan.kind} {where}` cancels it"
    )
