"""The account of what a job's pods hold."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edl_workflows.core.jobs import cache_fields
from edl_workflows.core.jobs.elastic_job.time_spent import TimeCause, read_spent
from edl_workflows.core.jobs.usage.account import count_usage
from edl_workflows.core.jobs.usage.model import (
    DIVIDED,
    HeldResource,
    SpentTime,
    UsagePart,
    UsageStatus,
    pipeline_of,
    read_usage,
)
from edl_workflows.core.jobs.usage.spans import HeldAmounts, PodSpan, failure_cause, read_span
from edl_workflows.core.kubernetes import names

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
T0 = BEGIN.timestamp()
ONE_CORE = HeldAmounts(cpu=1.0)


def after(seconds: float) -> datetime:
    """The moment so many seconds after the beginning."""
    return BEGIN + timedelta(seconds=seconds)


def text(seconds: float) -> str:
    """The moment as the API server writes it."""
    return after(seconds).isoformat().replace("+00:00", "Z")


def make_pod(**status: Any) -> dict[str, Any]:
    """A pod of a worker that was bound after 10 s, with two containers."""
    resources = {"requests": {"cpu": "1500m", "memory": "2Gi"}, "limits": {"nvidia.com/gpu": "2"}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "a-worker-0", "uid": "p", "labels": {names.REPLICA_TYPE_LABEL: "worker"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {"name": "main", "resources": resources},
                {"name": "proxy", "resources": {"requests": {"cpu": "500m"}}},
            ],
        },
        "status": {
            "phase": "Running",
            "conditions": [{"type": "PodScheduled", "status": "True", "lastTransitionTime": text(10)}],
            **status,
        },
    }


def deleted(pod: dict[str, Any]) -> dict[str, Any]:
    """The pod while it ends because somebody has deleted it."""
    return {**pod, "metadata": {**pod["metadata"], "deletionTimestamp": text(44)}}


def ended(name: str, seconds: float, code: int = 0, reason: str = "Completed") -> dict[str, Any]:
    """The status of a container that has run since 20 s."""
    end = {"startedAt": text(20), "finishedAt": text(seconds), "exitCode": code, "reason": reason}
    return {"name": name, "restartCount": 0, "state": {"terminated": end}}


PODS = {
    "not bound": (make_pod(phase="Pending", conditions=[]), None),
    "pulls its image": (make_pod(phase="Pending"), PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10)),
    "runs": (
        make_pod(containerStatuses=[{"name": "main", "state": {"running": {"startedAt": text(20)}}}]),
        PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10, T0 + 20),
    ),
    "has ended when its last container has": (
        make_pod(phase="Succeeded", containerStatuses=[ended("main", 50), ended("proxy", 60)]),
        PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10, T0 + 20, T0 + 60),
    ),
    "holds its resources until its last container ends": (
        make_pod(containerStatuses=[ended("main", 50), {"name": "proxy", "state": {"running": {}}}]),
        PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10, T0 + 20),
    ),
    "failed": (
        make_pod(phase="Failed", containerStatuses=[ended("main", 50, 1), ended("proxy", 40)]),
        PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10, T0 + 20, T0 + 50, failed=True),
    ),
    "deleted, and ended by SIGTERM": (
        deleted(make_pod(phase="Failed", containerStatuses=[ended("main", 50, 143), ended("proxy", 40)])),
        PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10, T0 + 20, T0 + 50),
    ),
    "preempted": (
        deleted(
            make_pod(
                phase="Failed",
                containerStatuses=[ended("main", 50, 143), ended("proxy", 40)],
                conditions=[
                    {"type": "PodScheduled", "status": "True", "lastTransitionTime": text(10)},
                    {"type": "DisruptionTarget", "status": "True", "lastTransitionTime": text(45)},
                ],
            )
        ),
        PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10, T0 + 20, T0 + 50, failed=True),
    ),
    "evicted before it began": (
        make_pod(phase="Failed", reason="Evicted"),
        PodSpan(HeldAmounts(2.0, 2.0, 2.0), T0 + 10, None, T0 + 10, failed=True),
    ),
}


@pytest.mark.parametrize("name", PODS)
def test_spans_of_pods(name: str) -> None:
    """What a pod held, from its binding to its end, is read from the whole pod, and from the part of it that
    the controller keeps."""
    pod, span = PODS[name]

    assert read_span(pod) == span
    assert read_span(cache_fields.keep_pod(pod)) == span


def held(usage: UsageStatus, resource: HeldResource = HeldResource.CPU) -> dict[str, float]:
    """The parts of a resource."""
    return {str(part): amount for part, amount in usage.held(resource).items()}


def test_the_time_before_the_program_begins_is_overhead() -> None:
    """A pod that pulls its image for 10 s and then runs for 30 s: with no account of the job's time the 30 s
    are unknown."""
    usage = count_usage(None, [PodSpan(ONE_CORE, T0, T0 + 10)], after(40), None, created=after(-5))

    assert held(usage) == {"overhead": 10.0, "unknown": 30.0}
    assert usage.queue_seconds == 15.0


def test_a_failed_pod_is_lost() -> None:
    """What a failed pod's program held is lost, also as far as it was counted before; another pod's time
    stays unknown."""
    pods = [PodSpan(ONE_CORE, T0, T0), PodSpan(ONE_CORE, T0, T0)]
    before = count_usage(None, pods, after(40), None)
    failed = PodSpan(ONE_CORE, T0, T0, T0 + 60, failed=True)
    usage = count_usage(before, [failed, pods[1]], after(100), None)

    assert held(before) == {"unknown": 80.0}
    assert held(usage) == {"lost": 60.0, "unknown": 100.0}
    assert held(count_usage(usage, [failed, pods[1]], after(110), None)) == {"lost": 60.0, "unknown": 110.0}


def test_resources_are_divided_as_the_time_was() -> None:
    """One core for 60 s, then ten cores: what is held is divided by what the time was spent on meanwhile, and
    not by the shares of the job's whole time."""
    first = [PodSpan(ONE_CORE, T0, T0)]
    before = count_usage(None, first, after(60), SpentTime(useful=0, overhead=60))
    grown = [*first, PodSpan(HeldAmounts(cpu=9.0), T0 + 60, T0 + 60)]
    usage = count_usage(before, grown, after(120), SpentTime(useful=60, overhead=60))

    assert held(usage) == {"useful": 600.0, "overhead": 60.0}


def test_lost_steps_are_moved() -> None:
    """If half of the useful time is lost with its steps, half of the useful hours is lost, too."""
    pods = [PodSpan(ONE_CORE, T0, T0)]
    before = count_usage(None, pods, after(100), SpentTime(useful=100))
    usage = count_usage(before, pods, after(110), SpentTime(useful=50, lost=50, overhead=10))

    assert held(before) == {"useful": 100.0}
    assert held(usage) == pytest.approx({"useful": 50.0, "lost": 50.0, "overhead": 10.0})


def test_what_is_held_after_the_end_is_overhead() -> None:
    """Nobody accounts for the time after a job's end."""
    pods = [PodSpan(ONE_CORE, T0, T0, T0 + 30)]
    before = count_usage(None, pods, after(20), SpentTime(useful=20))
    usage = count_usage(before, pods, after(40), SpentTime(useful=20), over=True)

    assert held(usage) == {"useful": 20.0, "overhead": 10.0}


MOMENTS = st.floats(0, 1000, allow_nan=False)


def test_a_clock_that_was_set_back_counts_nothing_twice() -> None:
    """The next controller's clock may be behind: the account keeps its time."""
    pods = [PodSpan(ONE_CORE, T0, T0)]
    usage = count_usage(None, pods, after(60), None)
    behind = count_usage(usage, pods, after(20), None)
    assert behind == usage

    assert held(count_usage(behind, pods, after(100), None)) == {"unknown": 100}


@st.composite
def spans(draw: st.DrawFn) -> PodSpan:
    """A pod that was bound, may have begun, and ended."""
    bound, second, third = sorted(draw(st.tuples(MOMENTS, MOMENTS, MOMENTS)))
    amounts = HeldAmounts(draw(st.floats(0, 64)), draw(st.floats(0, 512)), draw(st.integers(0, 8)))
    begun = draw(st.booleans())
    return PodSpan(
        amounts, T0 + bound, T0 + second if begun else None, T0 + third, failed=draw(st.booleans())
    )


def seen_at(span: PodSpan, moment: float) -> PodSpan | None:
    """What a pod shows at a moment."""
    if span.bound > moment:
        return None
    started = span.started if span.started is not None and span.started <= moment else None
    if span.ended is None or span.ended > moment:
        return PodSpan(span.amounts, span.bound, started)
    return span


@given(
    st.lists(spans(), max_size=5),
    st.lists(st.tuples(MOMENTS, st.lists(st.floats(0, 500), min_size=3, max_size=3) | st.none()), max_size=6),
)
def test_parts_sum_to_the_times_of_the_pods(pods: list[PodSpan], writes: list[tuple[float, Any]]) -> None:
    """However often, and with whatever account of the job's time, what is counted is what the pods held: the
    parts sum to amount times duration, and none is negative."""
    usage: UsageStatus | None = None
    for moment, seconds in [*sorted(writes, key=lambda write: write[0]), (1000.0, None)]:
        seen = [span for pod in pods if (span := seen_at(pod, T0 + moment)) is not None]
        usage = count_usage(usage, seen, after(moment), SpentTime(*seconds) if seconds else None)
        usage = UsageStatus.model_validate(usage.to_dict())  # as it is stored

    assert usage is not None
    for place, resource in enumerate(HeldResource):
        total = sum(pod.amounts[place] * ((pod.ended or 0) - pod.bound) for pod in pods)
        assert sum(usage.held(resource).values()) == pytest.approx(total, abs=0.1)
        assert min(usage.held(resource).values(), default=0.0) >= 0


def test_time_is_read_from_the_status() -> None:
    """Each cause that a job has pods for counts to one part; the time in the queue and of suspensions to
    none. The controller keeps the sums."""
    seconds = {str(cause): 2**place for place, cause in enumerate(TimeCause)}
    spent = read_spent({"status": {"goodput": {"seconds": seconds}}})

    assert spent is not None
    assert sum(spent) == sum(seconds.values()) - seconds["queued"] - seconds["suspended"]
    assert spent.useful == seconds["training"]
    assert spent.lost == seconds["redone"] + seconds["hang"] + seconds["masterDown"]
    assert list(spent.by_part()) == list(DIVIDED)
    assert read_spent({"status": {"spent": spent}}) is spent
    assert read_spent({"status": {"phase": "Pending"}}) is None


@pytest.mark.parametrize("status", [{}, {"usage": None}, {"usage": {"cpu": {}}}, {"usage": {"time": "?"}}])
def test_an_account_that_cannot_be_read_begins_anew(status: dict[str, Any]) -> None:
    """A status that was edited does not stop the controller."""
    assert read_usage({"status": status}) is None


@pytest.mark.parametrize(
    ("owner", "pipeline"),
    [
        ("airflow/digits/manual__2026-01-01/train/-1", "airflow/digits"),
        ("airflow@east/digits/manual/a/b/train/-1", "airflow/digits"),
        ("argo/ml/digits-x7f2k/uid/main/train", "argo/ml/digits-x7f2k"),
        ("cli/ada@laptop/0f", ""),
        ("airflow/digits", ""),
        (f"airflow/{'d' * 253}/manual/train/-1", f"airflow/{'d' * 253}"),
        (f"airflow/{'d' * 254}/manual/train/-1", ""),
        (f"argo/ml/{'d' * 254}/uid/main/train", ""),
        ("", ""),
    ],
)
def test_pipelines_of_jobs(owner: str, pipeline: str) -> None:
    """The DAG or the workflow is read from the owner of a job; a person's job belongs to none."""
    assert pipeline_of({names.OWNER_ANNOTATION: owner}) == pipeline


@pytest.mark.parametrize(
    ("status", "cause"),
    [
        ({"reason": "Evicted"}, "Disrupted"),
        ({"containerStatuses": [ended("main", 50, 137, "OOMKilled")]}, "OOMKilled"),
        ({"containerStatuses": [ended("main", 50, 137, "Error")]}, "Killed"),
        ({"containerStatuses": [ended("main", 50, 1, "Error")]}, "Error"),
        ({}, "Error"),
    ],
)
def test_causes_of_failures(status: dict[str, Any], cause: str) -> None:
    """A failed pod has one of four causes."""
    assert failure_cause(make_pod(phase="Failed", **status)) == cause
    assert UsagePart.LOST.meaning
