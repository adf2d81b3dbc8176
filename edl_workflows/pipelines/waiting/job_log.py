"""The lines that a wait writes about its object: one when something changes, and its progress once a minute.

Pure: two states and a time in, lines out. The driver of the wait writes them, in a task's log or on a
terminal.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from edl_workflows.core.jobs import autoscaling
from edl_workflows.core.jobs.elastic_job.faults import RestartRecord
from edl_workflows.core.jobs.elastic_job.model import AutoscalingStatus
from edl_workflows.core.jobs.scale_plan.model import ScalePlan, ScalePlanPhase
from edl_workflows.core.jobs.view import JobPhase, JobView, Progress
from edl_workflows.core.kubernetes.names import CONTROLLER
from edl_workflows.core.protocol.metrics import MAX_CHARTED, describe_metrics
from edl_workflows.pipelines.waiting.observed import ObservedObject

PROGRESS_SECONDS = 60.0
"""A line is written at least this often while an object is waited for."""
KUEUE_LABEL = "kueue.x-k8s.io/queue-name"
"""Kueue suspends a job with this label until it admits it
(https://kueue.sigs.k8s.io/docs/tasks/run/kubeflow/)."""
CONTROLLER_COMMAND = f"kubectl get pods --all-namespaces --selector app.kubernetes.io/component={CONTROLLER}"
"""Shows the controllers that ``edl install`` made."""
KEPT_RESTARTS = 20
"""A job's status keeps so many."""


def describe_changes(before: ObservedObject, now: JobView | ScalePlan) -> list[str]:
    """What changed between two states of an object.

    Progress alone (step, speed, checkpoint) is no change: it changes every few seconds.

    Args:
        before: the state before; None if this is the first one.
        now: the new state.

    Returns:
        Lines without the name of the object.
    """
    if isinstance(now, ScalePlan):
        changed = not isinstance(before, ScalePlan) or describe_state(before) != describe_state(now)
        return [describe_state(now)] if changed else []
    earlier = before if isinstance(before, JobView) else None
    changed = earlier is None or _state_key(earlier) != _state_key(now)
    lines = [describe_state(now)] if changed else []
    return [*lines, *_describe_restarts(earlier, now), *_describe_plans(earlier, now), *_warn(earlier, now)]


def describe_state(seen: JobView | ScalePlan) -> str:
    """One line about a job or a plan: phase and reason; of a plan also what it waits for; of a job also
    nodes, progress, speed and checkpoint."""
    if isinstance(seen, ScalePlan):
        status = seen.status
        reason = "; ".join(part for part in (seen.spec.reason, status.message) if part)
        paused = "" if status.stall_seconds is None else f"; training paused for {status.stall_seconds:.1f} s"
        return f"is {status.phase or ScalePlanPhase.PENDING}" + (f": {reason}" if reason else "") + paused
    reason = ": ".join(part for part in (seen.reason, seen.message) if part)
    if seen.phase is JobPhase.SUSPENDED and (queue := seen.labels.get(KUEUE_LABEL)):
        reason += f"; in the queue {queue} of Kueue"
    return "; ".join([f"is {seen.phase}" + (f" ({reason})" if reason else ""), *describe_details(seen)])


def describe_details(seen: ObservedObject) -> list[str]:
    """What a line says of a job beside its phase; nothing of a plan."""
    if not isinstance(seen, JobView):
        return []
    nodes = [f"{role} {count.ready}/{count.desired}" for role, count in sorted(seen.replicas.items())]
    ready = [f"ready: {', '.join(nodes)}"] if nodes and not seen.phase.final else []
    plan = [f"carries out {seen.plan}"] if seen.plan else []
    checkpoint = [f"checkpoint at step {seen.checkpoint.step:,}"] if seen.checkpoint else []
    return [*ready, *plan, *_describe_progress(seen), *checkpoint]


def is_unobserved(seen: ObservedObject) -> bool:
    """Whether the object has no status at all: no controller has looked at it yet."""
    if isinstance(seen, ScalePlan):
        return seen.status.phase is None and not seen.status.observed_generation
    return (
        seen is not None
        and seen.phase is JobPhase.PENDING
        and not (seen.observed_generation or seen.reason or seen.conditions or seen.started)
    )


def describe_unobserved(seconds: float | None = None) -> str:
    """One line about an object without a status, with what to do.

    Args:
        seconds: how long it is known to have had none; None if that is not known.
    """
    since = "" if seconds is None else f" in {seconds:.0f} s"
    return (
        f"has no status: no controller has observed it{since}; is the controller running, and does it serve "
        f"this kind and namespace? See `{CONTROLLER_COMMAND}`, or start one with `edl controller run`"
    )


def _state_key(job: JobView) -> tuple[object, ...]:
    nodes = {role: (count.ready, count.desired) for role, count in job.replicas.items()}
    return job.phase, job.reason, job.message, job.plan, nodes


def _describe_progress(job: JobView) -> list[str]:
    progress = job.progress
    where = describe_step(progress)
    if not where:
        return []
    metrics = describe_metrics(progress.metrics, MAX_CHARTED) if progress.metrics else ""
    parts = (f"step {where}", describe_speed(progress), metrics, describe_time_left(job))
    return [", ".join(part for part in parts if part)]


def describe_step(progress: Progress) -> str:
    """The step, and the share of the data; "" before the first."""
    if not progress.step and not progress.records:
        return ""
    total = progress.records_total
    share = f" ({progress.records / total:.0%} of the data)" if total else ""
    return f"{progress.step:,}{share}"


def describe_speed(progress: Progress) -> str:
    """Steps and records per second; "" if they are not known."""
    speeds = [(progress.speed, "steps/s"), (progress.records_per_second, "records/s")]
    return ", ".join(f"{_rounded(value)} {unit}" for value, unit in speeds if value > 0)


def describe_time_left(job: JobView) -> str:
    """The time until all data is trained, at the present speed; "" if it is not known, or the job has
    ended."""
    progress = job.progress
    left = progress.records_total - progress.records
    if job.phase.final or left <= 0 or progress.records_per_second <= 0:
        return ""
    return f"about {_duration(left / progress.records_per_second)} left"


def _describe_restarts(before: JobView | None, now: JobView) -> Iterator[str]:
    """New restarts and failures for good; of those before the first state only their number."""
    if before is None:
        restarts = [restart for restart in now.restarts if restart.replaced]
        failures = [restart for restart in now.restarts if not restart.replaced]
        yield from _count_before("had restarts before", restarts, now)
        yield from _count_before("did not replace nodes before", failures, now)
        return
    for restart in now.restarts:
        if restart not in before.restarts:
            action = (
                f"restarts {restart.subject}"
                if restart.replaced
                else f"does not replace {restart.subject}, which failed"
            )
            yield f"{action}: {', '.join(filter(None, (restart.cause, restart.message)))}"


def _count_before(description: str, restarts: Sequence[RestartRecord], now: JobView) -> Iterator[str]:
    if restarts:
        count = f"{len(restarts)} or more" if len(now.restarts) >= KEPT_RESTARTS else f"{len(restarts)}"
        yield f"{description} ({count}); the newest: {restarts[-1].subject}, {restarts[-1].cause}"


def _describe_plans(before: JobView | None, now: JobView) -> Iterator[str]:
    """What the job's optimizer plans while the job runs, once for each plan, and what becomes of it."""
    plan, changes = now.planned, _changes_of(now.planned)
    earlier_changes = _changes_of(before.planned) if before is not None else []
    if plan is None or now.phase.final or changes in ([], earlier_changes):
        return
    reasons = "; ".join(f"{subject}: {reason}" for subject, reason in sorted(plan.reasons.items()))
    summary = ", ".join(changes) + (f" ({reasons})" if reasons else "")
    if now.annotations.get(autoscaling.ANNOTATION, "") not in ("", autoscaling.OFF):
        yield f"has a new proposal of its optimizer: {summary}"
        return
    yield (
        f"has advice of its optimizer: {summary}; autoscaling is off, so nothing changes: "
        f"`edl autoscale {now.name}` lets its master apply its plans, the stage apply-plan applies one"
    )


def _changes_of(plan: AutoscalingStatus | None) -> list[str]:
    if plan is None:
        return []
    replica_specs = sorted(plan.replica_resource_specs.items())
    counts = [
        f"{role} {to.replicas}" if to.replicas is not None else f"{role} resized"
        for role, to in replica_specs
    ]
    return [*counts, *(f"{pod.name} replaced" for pod in plan.migrate_pods)]


def _warn(before: JobView | None, now: JobView) -> Iterator[str]:
    earlier_warnings = before.warnings if before is not None else ()
    return (f"warns: {warning}" for warning in now.warnings if warning not in earlier_warnings)


def _rounded(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 else f"{value:.2g}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60} min"


@dataclass
class StateReporter:
    """The lines of one wait.

    Attributes:
        seen: the newest state; None before the first.
        line: what is written instead of a state, as of an object that does not exist; "" for nothing.
        written: when the last line was written, in seconds of the caller's clock.
        created: when the object was created, in seconds of the same clock.
    """

    seen: JobView | ScalePlan | None = None
    line: str = ""
    written: float = 0.0
    created: float = 0.0

    def report_state(self, now: JobView | ScalePlan, clock: float, age: float = 0.0) -> list[str]:
        """The lines for the next state.

        Args:
            now: the state.
            clock: the present time in seconds, of any clock that only advances.
            age: seconds since the object was created.
        """
        lines = describe_changes(self.seen, now)
        if self.seen is None:
            self.created = clock - age
        self.seen = now
        if not lines:
            return self.remind(clock)
        self.written = clock
        silence = self.describe_silence(clock, PROGRESS_SECONDS)
        return [silence] if silence else lines

    def report_line(self, line: str, clock: float) -> list[str]:
        """The lines while there is no state worth a line: the object does not exist yet, or is being deleted.

        Args:
            line: says so.
            clock: as of `report_state`.
        """
        if line == self.line:
            return self.remind(clock)
        self.line, self.written = line, clock
        return [line]

    def remind(self, clock: float) -> list[str]:
        """The newest state, if no line was written for `PROGRESS_SECONDS`."""
        state = describe_state(self.seen) if self.seen is not None else self.line
        if not state or clock - self.written < PROGRESS_SECONDS:
            return []
        self.written = clock
        return [self.describe_silence(clock) or state]

    def describe_silence(self, clock: float, least: float = 0.0) -> str:
        """That no controller has observed the object, and for how long; "" if one has, or if it is not
        older than `least` seconds."""
        age = clock - self.created
        return describe_unobserved(age) if is_unobserved(self.seen) and age >= least else ""

    def seconds_left(self, clock: float) -> float:
        """After how many seconds `remind` has something to write, at the earliest."""
        if self.seen is None and not self.line:
            return PROGRESS_SECONDS
        return max(0.0, self.written + PROGRESS_SECONDS - clock)
