"""The law of replacements, for all kinds and all causes of an end: a place of a job (a role and an index)
gets three of them at once, after that six a minute at most, and in the end one in five minutes.
"""

import copy
import itertools
from collections.abc import Mapping
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edl_workflows.core.backoff import FREE_REPLACEMENTS, STEADY_SECONDS
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.kinds import KINDS
from edl_workflows.services.controller.delayed_writes import DelayedWrites
from tests.cases.kinds import KIND_CASES
from tests.cases.kubeflow import KUBEFLOW_KINDS, spec_of
from tests.jobs_namespace import JobsNamespace

JOB_KINDS = [kind for kind in KINDS if kind.view is not None]
each_kind = pytest.mark.parametrize("kind", JOB_KINDS, ids=lambda kind: kind.name)

CAUSES = (
    "exit 1", "exit 3", "exit 137", "exit 143", "evict", "delete", "vanish", "init container", "no exit code",
    "full node", "lost",
)  # fmt: skip
STEPS = st.lists(
    st.tuples(st.sampled_from(CAUSES), st.integers(0, 9), st.sampled_from([0.2, 1.0, 4.0, 30.0, 250.0])),
    min_size=20,
    max_size=40,
)
"""Which pod ends, why, and how many seconds later the next one does."""


def _tolerant(example: dict[str, Any]) -> dict[str, Any]:
    """The job with as many restarts as it may have."""
    job: dict[str, Any] = copy.deepcopy(example)
    spec = job["spec"]
    match job["kind"]:
        case kind if kind in KUBEFLOW_KINDS:
            for replicas in spec[spec_of(kind).specs_key()].values():
                replicas["restartPolicy"] = "OnFailure"
        case "DIJob":
            spec["backoffLimit"] = None
        case "TrainingJob":
            spec |= {"backoff_limit": 100, "fault_tolerant": True, "failure_percent": 1_000}
        case _:
            spec["replicaSpecs"]["dlrover-master"] = {"restartCount": 100}
    return job


class FailingJob:
    """One job whose pods do not live long, and when each place got its pods."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.namespace = JobsNamespace()
        self.namespace.delayed = DelayedWrites(self._clock)
        manifest = self.namespace.add(_tolerant(KIND_CASES[kind.name].example))
        self.name: str = manifest["metadata"]["name"]
        self.made: dict[str, list[datetime]] = {}
        add = self.namespace.add

        def note(child: Mapping[str, Any]) -> dict[str, Any]:
            if child["kind"] == "Pod":
                place = "master" if "master" in child["metadata"]["name"] else child["metadata"]["name"]
                self.made.setdefault(place, []).append(self.namespace.now)
            return add(child)

        self.namespace.add = note  # type: ignore[method-assign, assignment]  # a function of this object

    def _clock(self) -> float:
        return self.namespace.now.timestamp()

    @property
    def job(self) -> dict[str, Any]:
        return self.namespace.objects[self.kind.name, self.name]

    def pods(self) -> list[str]:
        return sorted(
            name
            for (kind, name), pod in self.namespace.objects.items()
            if kind == "Pod"
            and pod["status"]["phase"] in ("Pending", "Running")
            and not pod["metadata"].get("deletionTimestamp")
        )

    def end(self, name: str, cause: str) -> None:
        """Let a pod end."""
        namespace = self.namespace
        what, _, code = cause.partition(" ")
        match what:
            case "exit":
                namespace.set_pod(name, "Failed", int(code))
            case "evict":
                namespace.set_pod(name, "Failed", None, "Evicted")
            case "delete":
                namespace.delete("Pod", name)
            case "vanish":
                del namespace.objects["Pod", name]
            case "init":
                ended = {"exitCode": 4, "message": "no such host"}
                status = {"name": "fetch", "state": {"terminated": ended}}
                namespace.set_pod(name, "Failed")
                namespace.objects["Pod", name]["status"]["initContainerStatuses"] = [status]
            case "full":
                namespace.set_pod(name, "Failed", None, "OutOfcpu")
                namespace.objects["Pod", name]["status"]["message"] = "Pod was rejected: OutOfcpu"
            case "lost":
                namespace.set_pod(name, "Unknown")
            case _:
                namespace.set_pod(name, "Failed")

    def run(self) -> None:
        """Let all pods run that may."""
        for _ in range(5):
            self.namespace.settle()
            for name in self.pods():
                if self.namespace.objects["Pod", name]["status"]["phase"] == "Pending":
                    self.namespace.set_pod(name, "Running")
        self.namespace.settle()

    def live_through(self, steps: list[tuple[str, int, float]]) -> None:
        for cause, number, seconds in steps:
            self.namespace.settle()
            if pods := self.pods():
                self.end(pods[number % min(2, len(pods))], cause)
            self.namespace.settle()
            self.namespace.tick(seconds)
            self.namespace.reap()


def gaps_in_a_row(times: list[datetime]) -> list[list[float]]:
    """The seconds between the pods of a place, in rows that end where a pod lived long."""
    rows: list[list[float]] = [[]]
    for before, after in itertools.pairwise(times):
        gap = (after - before).total_seconds()
        rows[-1].append(gap)
        if gap >= STEADY_SECONDS:
            rows.append([])
    return rows


@each_kind
@settings(max_examples=5, deadline=None)
@given(steps=STEPS)
def test_no_place_is_replaced_faster_than_the_law_allows(
    kind: Kind, steps: list[tuple[str, int, float]]
) -> None:
    """Whatever ends the pods: after the third replacement in a row 10, 20, 40 … 300 s lie between them."""
    failing = FailingJob(kind)
    failing.live_through(steps)

    for place, times in failing.made.items():
        for row in gaps_in_a_row(times):
            for number, gap in enumerate(row[4:], start=0):
                assert gap >= min(300.0, 10.0 * 2**number) - 0.001, (place, row)


@each_kind
@pytest.mark.parametrize("cause", ["delete", "vanish"])
def test_a_pod_of_a_running_job_that_ends_each_second_is_paced(kind: Kind, cause: str) -> None:
    """The counters of a job that runs may wait in the controller before they are written, but not the count
    of replacements."""
    failing = FailingJob(kind)
    failing.run()
    failing.made.clear()
    for _ in range(60):
        if pods := failing.pods():
            failing.end(pods[-1], cause)
        failing.namespace.settle()
        failing.namespace.tick(1.0)
        failing.namespace.reap()
        failing.run()

    most = FREE_REPLACEMENTS + 4  # after 10, 20 and 40 s, and the one that was there
    assert all(len(times) <= most for times in failing.made.values())


@each_kind
def test_a_resumed_job_begins_without_counts(kind: Kind) -> None:
    """Pods that are made because somebody edited the job replace none. Those of roles that start later are
    counted as at the job's first start."""
    failing = FailingJob(kind)
    failing.run()
    at_first = set(failing.job["status"].get("replacements") or ())
    for suspend in (True, False):
        failing.namespace.edit(kind.name, failing.name, {"spec": kind.suspension(suspend=suspend)})
        for _ in range(5):
            failing.namespace.settle()
            failing.namespace.reap()
            failing.namespace.tick(10.0)
    failing.run()

    assert failing.pods()
    assert set(failing.job["status"].get("replacements") or ()) == at_first


@each_kind
@pytest.mark.parametrize("cause", ["delete", "vanish"])
def test_a_job_says_that_a_pod_waits_and_another_controller_goes_on(kind: Kind, cause: str) -> None:
    """A place whose pods are taken away again and again is named in the job's message and in an Event, and no
    controller remembers it. When its time has come the pod is made, and the message ends."""
    failing = FailingJob(kind)
    failing.live_through([(cause, 0, 1.0)] * 8)
    failing.namespace.settle()
    events = [event for event in failing.namespace.events if event.reason == "ReplacedAgainAndAgain"]

    assert "times in a row" in failing.job["status"]["message"]
    assert events
    assert events[0].type == "Warning"
    failing.namespace.tick(400)
    failing.namespace.reap()
    failing.namespace.settle()
    assert "times in a row" not in failing.job["status"].get("message", "")


@each_kind
def test_a_new_spec_is_followed_at_once(kind: Kind) -> None:
    """Counts end when somebody edits the job, as a suspension does."""
    failing = FailingJob(kind)
    failing.live_through([("delete", 0, 1.0)] * 8)
    assert failing.job["status"]["replacements"]
    failing.namespace.edit(kind.name, failing.name, {"spec": kind.suspension(suspend=True)})
    for _ in range(5):
        failing.namespace.settle()
        failing.namespace.reap()
    failing.namespace.edit(kind.name, failing.name, {"spec": kind.suspension(suspend=False)})
    failing.namespace.settle()

    assert "times in a row" not in failing.job["status"].get("message", "")
    assert failing.pods()
