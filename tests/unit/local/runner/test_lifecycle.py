"""The decisions about a pod, without any process."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.local.pods import Pod
from edl_workflows.local.runner import status
from edl_workflows.local.runner.attempts import AttemptEnd
from edl_workflows.local.runner.lifecycle import (
    ContainerState,
    PodFailure,
    PodSituation,
    Waiting,
    crashes_after,
    decide_pod,
)

NOW = datetime(2026, 1, 1, tzinfo=UTC)
RUNNING = ContainerState(starts=1, running_since=NOW, started=True, ready=True)


def seconds(number: float) -> timedelta:
    return timedelta(seconds=number)


def ended(code: int, *, ago: float = 0, ran: float = 1, crashes: int = 0) -> ContainerState:
    """A container that ended."""
    finished = NOW - seconds(ago)
    end = AttemptEnd(code, "Completed" if code == 0 else "Error", "", finished - seconds(ran), finished)
    return ContainerState(starts=1, ended=end, crashes=crashes)


def make_pod(*, init: int = 0, deleted: float | None = None, phase: str = "Running", **spec: Any) -> Pod:
    """A pod with containers ``a`` and ``b``."""
    metadata: dict[str, Any] = {"name": "pod", "uid": "u"}
    if deleted is not None:
        metadata["deletionTimestamp"] = NOW + seconds(deleted)
    containers = [{"name": name} for name in "ab"]
    inits = [{"name": f"i{number}"} for number in range(init)]
    body = {"restartPolicy": "Never", "containers": containers, "initContainers": inits, **spec}
    return Pod.model_validate({"metadata": metadata, "spec": body, "status": {"phase": phase}})


def situation(pod: Pod, *, started: Any = 0, **fields: Any) -> PodSituation:
    """A moment of a pod that began `started` seconds ago."""
    given_fields = {key: fields.pop(key) for key in ("failure", "gone") if key in fields}
    return PodSituation(pod, fields, NOW, NOW - seconds(started), **given_fields)


def test_all_containers_start_together() -> None:
    """Without init containers, all containers start at once."""
    assert decide_pod(situation(make_pod())).start == ("a", "b")


def test_init_containers_come_one_by_one() -> None:
    """The next init container starts when the one before succeeded, the containers after the last."""
    pod = make_pod(init=2)

    assert decide_pod(situation(pod)).start == ("i0",)
    assert decide_pod(situation(pod, i0=RUNNING)).start == ()
    assert decide_pod(situation(pod, i0=ended(0))).start == ("i1",)
    assert decide_pod(situation(pod, i0=ended(0), i1=ended(0))).start == ("a", "b")


@pytest.mark.parametrize(
    ("policy", "code", "restarts"),
    [
        ("Never", 0, False),
        ("Never", 1, False),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Always", 0, True),
        ("Always", 1, True),
    ],
)
def test_restart_policy(policy: str, code: int, restarts: bool) -> None:
    """Restart policy and exit codes decide whether containers restart. If none does, the pod is finished."""
    decision = decide_pod(situation(make_pod(restartPolicy=policy), a=ended(code), b=ended(code)))

    assert bool(decision.start) == restarts
    assert decision.finished != restarts


@pytest.mark.parametrize(("crashes", "pause"), [(0, 0), (1, 10), (2, 20), (3, 40), (6, 300), (60, 300)])
def test_back_off(crashes: int, pause: float) -> None:
    """The first restart is immediate, later ones wait 10, 20, 40 … 300 s."""
    pod = make_pod(restartPolicy="Always")
    early = decide_pod(situation(pod, a=ended(1, ago=pause - 1, crashes=crashes), b=RUNNING))
    late = decide_pod(situation(pod, a=ended(1, ago=pause, crashes=crashes), b=RUNNING))

    assert late.start == ("a",)
    if pause:
        assert (early.start, early.wake) == ((), NOW + seconds(1))


def test_a_long_run_forgives_crashes() -> None:
    """Each crash is counted. After a run of ten minutes, counting starts anew."""
    assert crashes_after(ContainerState()) == 0
    assert crashes_after(ended(1, crashes=3)) == 4
    assert crashes_after(ended(1, ran=600, crashes=3)) == 1


def test_a_failed_init_container_ends_a_pod_that_restarts_nothing() -> None:
    """With Never, a failed init container ends the pod. With OnFailure it runs again."""
    assert decide_pod(situation(make_pod(init=1), i0=ended(1))).finished
    assert decide_pod(situation(make_pod(init=1, restartPolicy="OnFailure"), i0=ended(1))).start == ("i0",)


def test_deletion_grants_what_is_left_of_the_grace() -> None:
    """The containers of a deleted pod are stopped once, with the rest of the grace period, and none is
    started."""
    pod = make_pod(deleted=12)

    assert decide_pod(situation(pod, a=RUNNING)).stop == {"a": 12.0}
    assert decide_pod(situation(pod, a=replace(RUNNING, stopping=True))).stop == {}
    assert decide_pod(situation(pod)).finished


def test_a_pod_that_is_gone_is_killed_even_while_it_stops() -> None:
    """A forced deletion kills a container at once, even if it was granted a grace period before."""
    assert decide_pod(situation(make_pod(), a=replace(RUNNING, stopping=True), gone=True)).stop == {"a": 0.0}


def test_the_deadline() -> None:
    """Before the deadline a pod is only scheduled to be looked at again. After it, all containers are
    stopped."""
    pod = make_pod(activeDeadlineSeconds=60)

    assert decide_pod(situation(pod, started=50, a=RUNNING, b=RUNNING)).wake == NOW + seconds(10)
    late = decide_pod(situation(pod, started=61, a=RUNNING, b=RUNNING))
    assert (late.failure and late.failure.reason, set(late.stop)) == ("DeadlineExceeded", {"a", "b"})


def test_termination_messages_share_a_bound() -> None:
    """The messages of all containers of a pod have together at most 12 KiB, as in kubelet, so that its status
    can be stored."""
    containers = [{"name": f"c{number}"} for number in range(500)]
    message = "\u00e9" * 2048
    states = {one["name"]: ended(1) for one in containers}
    for name, state in states.items():
        assert state.ended is not None
        states[name] = replace(state, ended=replace(state.ended, message=message))
    now = situation(make_pod(containers=containers), **states)
    built = status.build_status(now, status.PodAddresses("127.64.0.1", "127.0.0.1"), status.PodVerdict(), {})

    written = [one["state"]["terminated"]["message"] for one in built["containerStatuses"]]
    assert written == ["\u00e9" * 12] * 500


def test_a_finished_pod_never_starts_again() -> None:
    """A terminal phase is final, whatever restartPolicy says."""
    assert decide_pod(situation(make_pod(phase="Failed", restartPolicy="Always"))).finished


def test_an_unhealthy_container_is_stopped_once() -> None:
    """A failed liveness probe stops its container alone."""
    sick = replace(RUNNING, unhealthy="liveness probe failed")

    assert decide_pod(situation(make_pod(), a=sick, b=RUNNING)).stop == {"a": 30.0}
    assert decide_pod(situation(make_pod(), a=replace(sick, stopping=True), b=RUNNING)).stop == {}


STATES = st.sampled_from(
    [
        ContainerState(),
        RUNNING,
        replace(RUNNING, stopping=True),
        replace(RUNNING, unhealthy="sick"),
        ended(0),
        ended(1, ago=5, crashes=1),
        ended(1, ago=500, crashes=9),
        replace(ContainerState(), waiting=Waiting("CreateContainerConfigError", "x", NOW)),
    ]
)


@given(
    policy=st.sampled_from(["Always", "OnFailure", "Never"]),
    states=st.fixed_dictionaries(dict.fromkeys(("i0", "a", "b"), STATES)),
    deleted=st.sampled_from([None, 5.0]),
    failure=st.sampled_from([None, PodFailure("Evicted", "x")]),
)
def test_a_decision_is_taken_once(
    policy: str, states: dict[str, ContainerState], deleted: float | None, failure: PodFailure | None
) -> None:
    """After a decision is carried out, the next decision does nothing. It never starts a running container or
    stops a stopped one, a finished pod has no running container, and each state has a status."""
    now = situation(make_pod(init=1, restartPolicy=policy, deleted=deleted), failure=failure, **states)
    decision = decide_pod(now)
    after = dict(states)
    for name in decision.start:
        after[name] = replace(RUNNING, starts=states[name].starts + 1)
    for name in decision.stop:
        after[name] = replace(after[name], stopping=True)
    again = decide_pod(replace(now, states=after))
    built = status.build_status(
        now, status.PodAddresses("127.64.0.1", "127.0.0.1"), status.PodVerdict(failure, decision.finished), {}
    )

    assert all(not states[name].running for name in decision.start)
    assert all(states[name].running for name in decision.stop)
    assert (again.start, dict(again.stop)) == ((), {})
    assert not (decision.finished and any(one.running for one in states.values()))
    assert built["phase"] in ("Pending", "Running", "Succeeded", "Failed")
