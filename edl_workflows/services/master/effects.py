"""The master's effects on the outside: it requests pods, and reports on plans and on the job.

Effects follow only the stored state, so everything that is visible outside survives a crash. An effect that a
crash interrupts is carried out again; all effects are idempotent. They are also independent: an effect that
is refused is retried with a back-off and delays no other. The adapters of `MasterBackend` are
`edl_workflows.services.master.kubernetes` and `edl_workflows.services.master.standalone`.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, Self

import structlog

from edl_workflows.core.backoff import Backoff
from edl_workflows.core.exceptions import ConflictError, EdlError, NotFoundError, UnavailableError
from edl_workflows.core.jobs.elastic_job import separate_copies
from edl_workflows.core.jobs.scale_plan.model import ScalePlanSpec
from edl_workflows.core.protocol.cluster import OWN_CHECKPOINT, CheckpointRef
from edl_workflows.runtime.kube.events import EventNote
from edl_workflows.services.master.master import MAX_REFUSAL, Master, WriteUrgency, wait_within
from edl_workflows.services.master.state import observations, views
from edl_workflows.services.master.state.autoscale import autoscale_steps
from edl_workflows.services.master.state.nodes.hang import DUMP_SECONDS
from edl_workflows.services.master.state.nodes.pod_requests import PodRequest
from edl_workflows.services.master.state.nodes.registry import ExitReason, JobNode
from edl_workflows.services.master.state.rollouts import rollout_steps
from edl_workflows.services.master.state.rollouts.rollout import Rollout
from edl_workflows.services.master.state.stored_state import JobRecord
from edl_workflows.services.master.status_pace import StatusPace

LOOK_SECONDS = 2.0
"""Most seconds between two looks at the state."""
LAST_REPORT = 5.0
"""Seconds for the last report of a master that is told to end."""
BACKOFF = Backoff(first=1.0, most=15.0)
UNREPORTED_SECONDS = 60.0
"""Seconds for which the master retries if the API server refuses the job's final status. Then the master
exits, and only its exit code shows how the job ended.
"""
UNSEEN_SECONDS = 60.0
"""Seconds after which one of the job's own plans is created again if it has not been observed."""
_POD_REQUEST = "ask for pods by ScalePlan "
_REPORT = "report on the job"

log = structlog.get_logger(__name__)


class MasterBackend(Protocol):
    """Carries out effects. Its methods block, so they are called in a worker thread; they are idempotent.

    Each raises an `EdlError` if the effect is not possible now.
    """

    def ask_for_pods(self, request: PodRequest, nodes: dict[tuple[str, int], JobNode]) -> None:
        """Request that pods be created and removed. Do nothing if this was requested before."""

    def make_plan(self, name: str, spec: ScalePlanSpec) -> None:
        """Create a manual ScalePlan of the job, unless the job has one of this name.

        Raises:
            UnavailableError: not possible now.
            EdlError: the plan is refused.
        """

    def is_job_deleted(self) -> bool:
        """Whether the job is deleted, or is being deleted."""

    def report_plan(self, rollout: Rollout, status: dict[str, Any]) -> None:
        """Merge `status` into the status of a ScalePlan.

        Raises:
            NotFoundError: the plan was deleted.
            ConflictError: the plan was deleted, and another one has its name now.
        """

    def report_job(self, status: dict[str, Any]) -> None:
        """Merge `status` into the status of the job, except that `autoscaling` replaces the whole field."""

    def record_event(self, event: EventNote) -> None:
        """Create an Event of the job.

        Raises:
            UnavailableError: not possible now.
            EdlError: it is refused.
        """


@dataclass(frozen=True)
class _LoggedState:
    """What has been logged: the number of restarts, the newest request for stacks, the cluster version."""

    restarts: int
    dump: str
    version: int

    @classmethod
    def of(cls, stored: JobRecord) -> Self:
        active = stored.versions.active
        return cls(sum(stored.restarts.counts.values()), stored.hangs.dump, active.number if active else 0)


@dataclass(frozen=True)
class _Refusal:
    """An effect that failed.

    Attributes:
        since: when it first failed.
        until: when it may be retried.
        failures: how often it failed in a row.
        for_good: whether the API server refused it; otherwise the server did not answer.
    """

    since: float
    until: float
    failures: int
    for_good: bool

    @classmethod
    def after(cls, before: "_Refusal | None", error: EdlError, now: float) -> Self:
        """The refusal of an effect that has just failed. `before` is its previous failure, if any."""
        for_good = not isinstance(error, UnavailableError)
        failures = 1 if before is None else before.failures + 1
        since = before.since if before is not None and before.for_good is for_good else now
        return cls(since, now + BACKOFF.delay(failures), failures, for_good)


class Effects:
    """Carries out the effects, each independently.

    Args:
        master: the master whose stored state the effects follow.
        outside: the backend that carries them out.
        clock: monotonic seconds.
    """

    def __init__(
        self, master: Master, outside: MasterBackend, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._master = master
        self._outside = outside
        self._clock = clock
        self._asked: set[int] = set()
        self._logged = _LoggedState.of(master.stored)
        self._warned = master.stored.checkpoints.failing.since
        self._hung = master.stored.hangs.dump
        self._warned_of_copies = len(master.stored.own_copies) > 1
        self._restored = _restored_version(master.stored)
        self._absent = master.stored.restarts.counts.get(ExitReason.ABSENT, 0)
        self._made: tuple[int, float] = (0, 0.0)
        self._queued: dict[str, str] = {}
        self._pace = StatusPace()
        self._reported_end = False
        self._refused: dict[str, _Refusal] = {}

    async def run(self) -> None:
        """Follow the commits until cancelled."""
        while True:
            woken = self._master.next_wake()
            await self.once()
            await wait_within(woken, LOOK_SECONDS)

    async def once(self) -> None:
        """Carry out all effects that the stored state requires, except those that wait for a retry."""
        stored = self._master.stored
        await self._request_pods(stored)
        await self._attempt("report on a ScalePlan", self._report_plan, stored)
        await self._attempt("say what other ScalePlans wait for", self._report_queued_plans, stored)
        await self._attempt("make the job's own ScalePlan", self._create_own_plan, stored)
        await self._attempt(_REPORT, self._report_job, stored)
        await self._attempt(
            "tell of a checkpoint that could not be saved", self._warn_of_failed_saves, stored
        )
        await self._attempt("tell of the step at which training continues", self._announce_restore, stored)
        await self._attempt("tell of a member that was taken out", self._warn_of_absent_members, stored)
        await self._attempt("tell of a hang", self._warn_of_hang, stored)
        await self._attempt("tell of copies of the model", self._warn_of_copies, stored)
        self._log_changes(stored)

    async def _attempt(
        self, action: str, effect: Callable[[JobRecord], Awaitable[None]], stored: JobRecord
    ) -> None:
        before = self._refused.get(action)
        if before is not None and self._clock() < before.until:
            return
        try:
            await effect(stored)
        except EdlError as error:
            refusal = _Refusal.after(before, error, self._clock())
            self._refused[action] = refusal
            log.warning(
                "failed, retrying", what=action, error=str(error), seconds=BACKOFF.delay(refusal.failures)
            )
            # The status lists refusals, except that of the status itself: once written, it was not refused.
            if refusal.for_good and action != _REPORT:
                self._master.state.volatile.refused[action] = str(error)[:MAX_REFUSAL]
        else:
            self._forget(action)

    def _forget(self, action: str) -> None:
        self._refused.pop(action, None)
        self._master.state.volatile.refused.pop(action, None)

    def _log_changes(self, stored: JobRecord) -> None:
        before, self._logged = self._logged, _LoggedState.of(stored)
        fresh = self._logged.restarts - before.restarts
        for restart in stored.restarts.recent[-fresh:] if fresh > 0 else ():
            event = "restart" if restart.replaced else "a node failed and is not replaced"
            log.warning(
                event,
                subject=restart.subject,
                cause=restart.cause,
                message=restart.message,
                version=before.version,
            )
        if self._logged.dump not in ("", before.dump):
            log.warning("training stands still", stacks=self._logged.dump, version=self._logged.version)
        if self._logged.version != before.version:
            log.info("another cluster version trains", version=self._logged.version)

    async def _create_own_plan(self, stored: JobRecord) -> None:
        decision = stored.autoscaling.open
        if decision is None or decision.seen or stored.outcome is not None:
            return
        number, made_at = self._made
        if number == decision.number and self._clock() - made_at < UNSEEN_SECONDS:
            return
        state = self._master.state
        name = decision.name(state.settings.name)
        try:
            await asyncio.to_thread(self._outside.make_plan, name, decision.spec)
        except UnavailableError:
            raise
        except EdlError as error:
            log.warning("the job's own plan is refused", plan=name, error=str(error))
            autoscale_steps.note_refused_plan(state, decision.number, str(error), self._master.now())
            self._master.changed(WriteUrgency.NOW)
        else:
            log.info("made a plan", plan=name, reason=decision.spec.reason)
            self._made = (decision.number, self._clock())

    async def _request_pods(self, stored: JobRecord) -> None:
        # When a job is over, the controller removes the remaining pods.
        requests = stored.pod_plans.open if stored.outcome is None else ()
        for request in requests:
            if request.number not in self._asked:
                await self._attempt(
                    self._describe_request(request), partial(self._ask_for_pods, request), stored
                )
        self._asked &= {request.number for request in requests}
        for action in self._refused.keys() - {self._describe_request(request) for request in requests}:
            if action.startswith(_POD_REQUEST):
                self._forget(action)

    def _describe_request(self, request: PodRequest) -> str:
        return _POD_REQUEST + request.name(self._master.state.settings.name)

    async def _ask_for_pods(self, request: PodRequest, stored: JobRecord) -> None:
        nodes = {(node.type, node.id): node for node in stored.nodes}
        await asyncio.to_thread(self._outside.ask_for_pods, request, nodes)
        log.info("asked for pods", plan=request.number, create=request.create, remove=request.remove)
        self._asked.add(request.number)

    async def _report_plan(self, stored: JobRecord) -> None:
        rollout = stored.plan
        if rollout is None or self._master.state.volatile.recorded_serial >= rollout.serial:
            return
        if await self._write_plan_status(rollout):
            log.info("plan", plan=rollout.name, phase=str(rollout.phase), message=rollout.message)
        observations.note_recorded_plan(self._master.state, rollout.uid, rollout.serial)
        self._master.changed(WriteUrgency.GROUPED)

    async def _report_queued_plans(self, stored: JobRecord) -> None:
        """Plans are carried out one at a time. The status of each waiting plan says so as soon as the plan is
        seen.
        """
        now = self._master.now()
        for rollout in rollout_steps.queued_plans(self._master.state, now) if stored.plan is not None else ():
            if self._queued.get(rollout.uid) == rollout.message:
                continue
            await self._write_plan_status(rollout)
            self._queued[rollout.uid] = rollout.message

    async def _write_plan_status(self, rollout: Rollout) -> bool:
        """Write the status of a plan. Return whether the plan still exists."""
        try:
            await asyncio.to_thread(self._outside.report_plan, rollout, views.plan_status(rollout))
        except (NotFoundError, ConflictError):
            log.info("a plan was deleted", plan=rollout.name)  # the watch will report it, too
            return False
        return True

    async def _report_job(self, stored: JobRecord) -> None:
        state, now = self._master.state, self._clock()
        awaited, trained = state.settings.awaited_steps, state.goodput.useful + state.goodput.redone
        ends = stored.outcome is not None and not self._reported_end
        if not ends and not self._pace.is_open(state.steps.step, awaited, now):
            return
        status = views.job_status(state, self._master.now())
        if ends or self._pace.is_due(status, state.settings, now, trained):
            await self._write_job_status(status, ended=stored.outcome is not None)

    async def _write_job_status(self, status: dict[str, Any], *, ended: bool) -> None:
        """Write the fields that have changed. After a refusal the newest values are written, not these."""
        await asyncio.to_thread(self._outside.report_job, self._pace.begin_write(status))
        self._pace.note_written(status, self._clock())
        self._reported_end = ended

    async def _warn_of_failed_saves(self, stored: JobRecord) -> None:
        failing = stored.checkpoints.failing
        if failing.since == self._warned:
            return
        if failing.row:
            log.warning("checkpoints can't be saved", error=failing.error)
            await self._warn("CheckpointFailed", views.unsaved_warning(failing))
        self._warned = failing.since

    async def _announce_restore(self, stored: JobRecord) -> None:
        """Create an Event when training continues from a checkpoint."""
        restored = _restored_version(stored)
        if restored is not None and restored != self._restored:
            number, restore = restored
            message = f"training continues at step {restore.step}, in cluster version {number}"
            await self._record_event(EventNote("TrainingContinues", f"{message}, from {restore.uri}"))
        self._restored = restored

    async def _warn_of_absent_members(self, stored: JobRecord) -> None:
        count = stored.restarts.counts.get(ExitReason.ABSENT, 0)
        absent = [restart for restart in stored.restarts.recent if restart.cause == ExitReason.ABSENT]
        for restart in absent[self._absent - count :] if count > self._absent else ():
            await self._warn("MemberTakenOut", f"{restart.subject} was taken out: {restart.message}")
        self._absent = count

    async def _warn_of_hang(self, stored: JobRecord) -> None:
        """Create an Event about a hang once all stacks have arrived, or the time for them is over."""
        hang, state = stored.hangs, self._master.state
        if hang.dump in ("", self._hung):
            return
        report, nodes = state.volatile.hang_report, {str(node) for node in state.trainers}
        complete = report is not None and report.stacks.keys() >= nodes
        if complete or self._master.now() - hang.since >= DUMP_SECONDS:
            await self._warn("TrainingHangs", views.hang_warning(state))
            self._hung = hang.dump

    async def _warn_of_copies(self, stored: JobRecord) -> None:
        """Create an Event once. It remains when the warning goes: what the other workers learned is lost."""
        if self._warned_of_copies or not views.trains_copies(stored, self._master.state.settings):
            return
        log.warning("each worker trains its own copy of the model", workers=stored.own_copies)
        await self._warn(separate_copies.CONDITION, views.copies_warning(self._master.state))
        self._warned_of_copies = True

    async def _warn(self, reason: str, message: str) -> None:
        await self._record_event(EventNote(reason, message, "Warning"))

    async def _record_event(self, event: EventNote) -> None:
        """Create an Event, unless the API server refuses it.

        Raises:
            UnavailableError: the server does not answer.
        """
        try:
            await asyncio.to_thread(self._outside.record_event, event)
        except UnavailableError:
            raise
        except EdlError as error:
            # A custom service account may lack the permission; the status shows the same.
            log.warning("no Event was made", error=str(error))

    async def last_report(self) -> None:
        """Report the status once more when the master is told to end, so that a suspended job shows its last
        checkpoint.
        """
        status = views.job_status(self._master.state, self._master.now())
        if not self._pace.has_changed(status):
            return
        try:
            async with asyncio.timeout(LAST_REPORT):
                await self._write_job_status(status, ended=self._master.stored.outcome is not None)
        except (EdlError, TimeoutError) as error:
            log.warning("the last status is not written", error=str(error))

    def log_unreported_end(self) -> None:
        """Log the last checkpoint and step of a job that is over, if its status does not show them."""
        if self._reported_end:
            return
        status = views.job_status(self._master.state, self._master.now())
        log.warning(
            "the API server refuses the last status of the job: checkpoint and step remain as last written",
            checkpoint=status.get("checkpoint"),
            step=status["progress"]["step"],
        )

    @property
    def reported_end(self) -> bool:
        """Whether the job's status shows its end, or has been refused for so long that the exit code must
        suffice.
        """
        refusal = self._refused.get(_REPORT)
        if self._reported_end or refusal is None:
            return self._reported_end
        return refusal.for_good and self._clock() - refusal.since >= UNREPORTED_SECONDS


def _restored_version(stored: JobRecord) -> tuple[int, CheckpointRef] | None:
    """The active version and the checkpoint that it started from; that of an unmodified script has no step.
    Until the version trains, the checkpoint may turn out to be damaged."""
    active = stored.versions.active
    restore = active.restore if active is not None else None
    if active is None or restore is None or restore.uri == OWN_CHECKPOINT:
        return None
    if stored.versions.trained != active.number:
        return None
    return active.number, restore
