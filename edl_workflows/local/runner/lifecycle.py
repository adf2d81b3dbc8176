"""Decides what to do with a pod: a pure function of the pod, its containers' states and the time.

The rules are kubelet's. Init containers run one after the other, then all containers together. Containers
restart according to ``restartPolicy`` with a back-off of 0, 10, 20, … 300 s, which is reset after a run of
ten minutes. A pod is finished when none of its containers will run again.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from edl_workflows.core.backoff import Backoff
from edl_workflows.local.pods import Container, Pod
from edl_workflows.local.runner.attempts import AttemptEnd

BACK_OFF_CAP = 300.0
FORGET_AFTER = timedelta(minutes=10)
"""The back-off of a container that ran this long is reset."""
RETRY_CONFIG = timedelta(seconds=2)
"""Time after which a container that could not be configured is tried again, since a missing object may exist
by then."""


@dataclass(frozen=True)
class Waiting:
    """Why a container waits to start."""

    reason: str
    message: str = ""
    since: datetime | None = None


@dataclass(frozen=True)
class ContainerState:
    """The state of one container.

    Attributes:
        starts: number of starts.
        running_since: when it started; None if it does not run.
        ended: how the latest start ended; None if it has not.
        previous: how the start before the latest ended.
        crashes: consecutive restarts after short runs.
        waiting: why the last attempt to start it failed before there was a process.
        started, ready: results of the startup and readiness probes.
        unhealthy: why it must be killed (liveness or startup probe, postStart hook); empty if it is healthy.
        stopping: whether it was told to end.
    """

    starts: int = 0
    running_since: datetime | None = None
    ended: AttemptEnd | None = None
    previous: AttemptEnd | None = None
    crashes: int = 0
    waiting: Waiting | None = None
    started: bool = False
    ready: bool = False
    unhealthy: str = ""
    stopping: bool = False

    @property
    def running(self) -> bool:
        return self.running_since is not None

    @property
    def restarts(self) -> int:
        return max(self.starts - 1, 0)


NEVER_STARTED = ContainerState()
States = Mapping[str, ContainerState]


@dataclass(frozen=True)
class PodFailure:
    """Why the whole pod fails, such as ``DeadlineExceeded``."""

    reason: str
    message: str


@dataclass(frozen=True)
class PodDecision:
    """The actions to take now.

    Attributes:
        start: containers to start now.
        stop: containers to end now, with the grace in seconds.
        failure: the pod fails for this reason.
        finished: whether no container of the pod runs or will run again.
        wake: when to decide again even if nothing happens; None: not needed.
    """

    start: tuple[str, ...] = ()
    stop: Mapping[str, float] = field(default_factory=dict)
    failure: PodFailure | None = None
    finished: bool = False
    wake: datetime | None = None


@dataclass(frozen=True)
class PodSituation:
    """The input of a decision.

    Attributes:
        pod: the pod. Of its status, only phase and start time are used.
        states: the states of its containers; a container without a state was never started.
        now: the time.
        started_at: when the node accepted the pod.
        back_off: pause before the second restart; it doubles with each further one, up to `BACK_OFF_CAP`.
        failure: a failure that was decided earlier or outside of this module.
        gone: whether the pod no longer exists in the API, so that there is no grace period.
    """

    pod: Pod
    states: States
    now: datetime
    started_at: datetime
    back_off: timedelta = timedelta(seconds=10)
    failure: PodFailure | None = None
    gone: bool = False

    def state(self, container: Container) -> ContainerState:
        return self.states.get(container.name, NEVER_STARTED)


def decide_pod(situation: PodSituation) -> PodDecision:
    """The next actions. Once they have been carried out, this function returns no actions until something
    else happens."""
    pod = situation.pod
    if situation.gone:
        return _end(situation, 0.0)
    if pod.finished or pod.metadata.deletion_timestamp is not None:
        return _end(situation, _deletion_grace(situation))
    failure = situation.failure or _deadline(situation)
    if failure is not None:
        return _end(situation, pod.spec.termination_grace_period_seconds, failure)
    decision = _run(situation)
    return _with_deadline(situation, decision)


def _run(situation: PodSituation) -> PodDecision:
    spec = situation.pod.spec
    stop = _unhealthy(situation)
    for container in spec.init_containers:
        state = situation.state(container)
        if state.ended is not None and not state.running and state.ended.code == 0:
            continue
        if state.running:
            return PodDecision(stop=stop)
        if state.ended is not None and spec.restart_policy == "Never":
            return _end(situation, 0.0)
        return _start([container], situation, stop)
    waiting = [
        container
        for container in spec.containers
        if not situation.state(container).running and _should_run(container, situation)
    ]
    running = any(situation.state(container).running for container in spec.containers)
    if not waiting and not running:
        return PodDecision(finished=True)
    return _start(waiting, situation, stop)


def _should_run(container: Container, situation: PodSituation) -> bool:
    """Whether a container that does not run should be started."""
    ended = situation.state(container).ended
    policy = situation.pod.spec.restart_policy
    return ended is None or policy == "Always" or (policy == "OnFailure" and ended.code != 0)


def _start(containers: list[Container], situation: PodSituation, stop: Mapping[str, float]) -> PodDecision:
    times = {
        container.name: may_start_at(situation.state(container), situation.back_off)
        for container in containers
    }
    due = tuple(name for name, at in times.items() if at is None or at <= situation.now)
    later = [at for name, at in times.items() if at is not None and name not in due]
    return PodDecision(start=due, stop=stop, wake=min(later, default=None))


def may_start_at(state: ContainerState, back_off: timedelta) -> datetime | None:
    """The earliest time at which a container may be started; None: at once."""
    if state.waiting is not None and state.waiting.since is not None:
        return state.waiting.since + RETRY_CONFIG
    if state.ended is None or state.crashes == 0:
        return None
    pause = Backoff(back_off.total_seconds(), BACK_OFF_CAP).delay(state.crashes)
    return state.ended.finished_at + timedelta(seconds=pause)


def crashes_after(state: ContainerState) -> int:
    """The value of `crashes` for the next start of a container that has ended."""
    if state.ended is None:
        return 0
    ran = state.ended.finished_at - state.ended.started_at
    return 1 if ran >= FORGET_AFTER else state.crashes + 1


def _unhealthy(situation: PodSituation) -> dict[str, float]:
    grace = float(situation.pod.spec.termination_grace_period_seconds)
    names = (
        name
        for name, state in situation.states.items()
        if state.running and state.unhealthy and not state.stopping
    )
    return dict.fromkeys(names, grace)


def _end(situation: PodSituation, grace: float, failure: PodFailure | None = None) -> PodDecision:
    running = {name: state for name, state in situation.states.items() if state.running}
    stop = {name: grace for name, state in running.items() if not state.stopping or situation.gone}
    return PodDecision(stop=stop, failure=failure, finished=not running)


def _deletion_grace(situation: PodSituation) -> float:
    """The remaining seconds of the grace period, which ends at the deletion timestamp."""
    until = situation.pod.metadata.deletion_timestamp
    return 0.0 if until is None else max((until - situation.now).total_seconds(), 0.0)


def _deadline(situation: PodSituation) -> PodFailure | None:
    at = _deadline_at(situation)
    if at is None or situation.now < at:
        return None
    return PodFailure("DeadlineExceeded", "Pod was active on the node longer than the specified deadline")


def _deadline_at(situation: PodSituation) -> datetime | None:
    seconds = situation.pod.spec.active_deadline_seconds
    return None if seconds is None else situation.started_at + timedelta(seconds=seconds)


def _with_deadline(situation: PodSituation, decision: PodDecision) -> PodDecision:
    at = _deadline_at(situation)
    if at is None or decision.finished:
        return decision
    wake = at if decision.wake is None else min(at, decision.wake)
    return PodDecision(decision.start, decision.stop, decision.failure, decision.finished, wake)


def back_off_of(situation: PodSituation) -> Iterator[tuple[str, datetime]]:
    """The names of the containers in back-off, each with the end of its pause."""
    for container in situation.pod.spec.all_containers:
        state = situation.state(container)
        if (
            not state.running
            and state.ended is not None
            and state.waiting is None
            and _should_run(container, situation)
        ):
            until = may_start_at(state, situation.back_off)
            if until is not None and until > situation.now:
                yield container.name, until
