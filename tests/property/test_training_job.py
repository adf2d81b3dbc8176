"""Laws of a TrainingJob's state machine under any sequence of edits, pod events and controller deaths."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis.stateful import initialize, invariant, rule

from tests.jobs_namespace import JobsNamespace
from tests.property.job_machine import JobMachine

NAME = "ctr"
FINAL = ("succeeded", "failed")
PHASES = {"Creating", "Running", "Scaling", "Suspended", "Succeeded", "Failed"}
STEPS = st.integers(0, 8)


class TrainingJobs(JobMachine):
    """A TrainingJob, to which any event may happen in any order."""

    kind, name = "TrainingJob", NAME

    def __init__(self) -> None:
        super().__init__()
        self.final: tuple[str, str] | None = None
        self.seen: dict[str, tuple[str, str]] = {}

    @initialize(
        ft=st.booleans(),
        master=st.booleans(),
        servers=st.integers(0, 2),
        percent=st.sampled_from([0, 100, 1000]),
        autoclean=st.booleans(),
    )
    def submit(self, ft: bool, master: bool, servers: int, percent: int, autoclean: bool) -> None:
        spec: dict[str, Any] = {
            "fault_tolerant": ft, "failurePercent": percent, "autoclean": autoclean,
            "failureWindowSeconds": 1000,
            "trainer": {"entrypoint": "train", "min-instance": 1, "max-instance": 3, "parallelism": 2},
        }  # fmt: skip
        spec |= {"master": {}} if master else {}
        spec |= {"pserver": {"min-instance": servers}} if servers else {}
        head = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob", "metadata": {"name": NAME}}
        self.world.add(head | {"spec": spec})

    @rule(suspend=st.booleans())
    def set_suspend(self, suspend: bool) -> None:
        self.world.edit("TrainingJob", NAME, {"spec": {"suspend": suspend}})

    @rule(trainers=st.integers(1, 3))
    def scale(self, trainers: int) -> None:
        self.world.edit("TrainingJob", NAME, {"spec": {"trainer": {"parallelism": trainers}}})

    @rule(low=st.integers(1, 3), more=st.integers(0, 2))
    def edit_bounds(self, low: int, more: int) -> None:
        bounds = {"min-instance": low, "max-instance": low + more}
        self.world.edit("TrainingJob", NAME, {"spec": {"trainer": bounds}})

    @rule(
        which=st.integers(0, 10),
        phase=st.sampled_from(["Running", "Running", "Succeeded", "Failed"]),
        code=st.sampled_from([1, 137, None]),
    )
    def pod_event(self, which: int, phase: str, code: int | None) -> None:
        if live := self.live():
            exit_code = 0 if phase == "Succeeded" else code if phase == "Failed" else None
            self.world.set_pod(live[which % len(live)], phase, exit_code)

    @rule(steps=STEPS)
    def controller_dies_at_it(self, steps: int) -> None:
        """Wherever the controller dies on the way to an end, the job still comes to that end."""
        decided = self.world.decide("TrainingJob", NAME).status or {}
        self.world.reconcile(steps)
        if decided.get("phase") in FINAL:
            self.world.settle()
            assert self.status["phase"] == decided["phase"]

    @rule()
    def controller_settles(self) -> None:
        """When nothing more happens, the controller stops acting, and there are no more trainers than
        wanted."""
        self.world.settle()
        if self.status.get("phase") not in FINAL:
            trainer = self.world.objects["TrainingJob", NAME]["spec"]["trainer"]
            wanted = min(max(trainer["parallelism"], trainer["min-instance"]), trainer["max-instance"])
            counts = self.status["replicaStatuses"]["trainer"]
            if counts["completed"] and not self.world.objects["TrainingJob", NAME]["spec"]["fault_tolerant"]:
                wanted = self.status["parallelism"]  # other trainers come too late
            pods = [self.world.objects["Pod", name] for name in self.live() if "-trainer-" in name]
            assert sum("deletionTimestamp" not in pod["metadata"] for pod in pods) <= wanted

    @invariant()
    def an_end_is_an_end(self) -> None:
        """A final phase and its reason never change, and the condition of only one phase is True."""
        if ("TrainingJob", NAME) not in self.world.objects or not self.status:
            return
        now = (self.status["phase"], self.status["reason"])
        assert self.final in (None, now)
        self.final = now if now[0] in FINAL else None
        true = {c["type"] for c in self.status["conditions"] if c["status"] == "True"} & PHASES
        assert len(true) == 1 or true == {"Running", "Scaling"}

    @invariant()
    def no_name_is_used_for_two_ranks(self) -> None:
        """The name of a pod always contains its role and index."""
        for name in self.pods():
            labels = self.world.objects["Pod", name]["metadata"]["labels"]
            rank = (labels["paddlepaddle.org/replica-type"], labels["paddlepaddle.org/replica-index"])
            assert name == f"{NAME}-{rank[0]}-{rank[1]}"
            assert self.seen.setdefault(name, rank) == rank

    @invariant()
    def a_failure_is_counted_once(self) -> None:
        """However often the controller dies, each pod is counted at most once in the failures."""
        uids = [failure["uid"] for failure in self.status.get("failures", ())] if self._exists() else []
        assert len(uids) == len(set(uids))

    def _exists(self) -> bool:
        return ("TrainingJob", NAME) in self.world.objects

    def teardown(self) -> None:
        """From every state the job can still be brought to an end, and then no pod runs."""
        if not self._exists():
            return
        self.world.edit("TrainingJob", NAME, {"spec": {"suspend": False}})
        for _ in range(16):
            self.world.reap()
            self.world.settle()
            if self.status.get("phase") in FINAL:
                break
            for name in self.live():
                pod = self.world.objects["Pod", name]
                if "deletionTimestamp" not in pod["metadata"]:
                    done = pod["status"]["phase"] == "Running" and "-trainer-" in name
                    self.world.set_pod(name, "Succeeded" if done else "Running", 0 if done else None)
            self.world.tick(400)
        assert self.status.get("phase") in FINAL, f"the job never ends: {self.status}"
        self.world.reap()
        self.world.settle()
        assert self.live() == []


TestTrainingJob = pytest.mark.slow(TrainingJobs.TestCase)
TestTrainingJob.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)


STAGES = ("new", "master", "pservers", "trainers", "scaling", "changing", "suspending")
"""How far a job is when something happens to it."""
EVENTS = ("nothing", "fails", "is killed", "is evicted", "is shut down", "is deleted", "vanishes")

BAD = EVENTS[1:5]


def at_stage(stage: str, *, ft: bool, begun: int | None = None, **more: Any) -> JobsNamespace:
    """A job at this stage. In the last stages, the controller died after `begun` parts of the first wave."""
    world = JobsNamespace()
    trainer = {"entrypoint": "train", "min-instance": 2, "max-instance": 3}
    spec = {"fault_tolerant": ft, "master": {}, "pserver": {"min-instance": 1}, "trainer": trainer} | more
    head = {"apiVersion": "paddlepaddle.org/v1", "kind": "TrainingJob", "metadata": {"name": NAME}}
    world.add(head | {"spec": spec})
    if stage == "new":
        return world
    rounds = {"master": 0, "pservers": 1, "trainers": 2}.get(stage, 4)
    for _ in range(rounds):
        advance(world, trainers="Running")
    world.settle()
    edits = {"scaling": {"trainer": {"parallelism": 3}}, "changing": {"pserver": {"min-instance": 2}}}
    if edit := {**edits, "suspending": {"suspend": True}}.get(stage):
        world.edit("TrainingJob", NAME, {"spec": edit})
        world.reconcile(begun)
    return world


def advance(world: JobsNamespace, trainers: str) -> None:
    """Waiting pods run, running trainers continue or succeed, and the controller acts."""
    world.reap()
    world.settle()
    for name in [name for kind, name in world.objects if kind == "Pod"]:
        pod = world.objects["Pod", name]
        phase = pod["status"]["phase"]
        if phase == "Pending":
            world.set_pod(name, "Running")
        elif phase == "Running" and "-trainer-" in name and trainers == "Succeeded":
            world.set_pod(name, "Succeeded", 0)
    world.tick(30)
    world.settle()


def happen(world: JobsNamespace, event: str, name: str) -> None:
    """Apply an event to a pod."""
    match event:
        case "fails":
            world.set_pod(name, "Failed", 1)
        case "is killed":
            world.set_pod(name, "Failed", 137)
        case "is evicted":
            world.set_pod(name, "Failed", reason="Evicted")
        case "is shut down":  # and its program says 0
            world.set_pod(name, "Failed", 0, reason="Terminated")
        case "is deleted":
            world.delete("Pod", name)
        case "vanishes":
            del world.objects["Pod", name]


@pytest.mark.slow
@given(
    stage=st.sampled_from(STAGES),
    ft=st.booleans(),
    event=st.sampled_from(EVENTS),
    which=st.integers(0, 10),
    begun=STEPS,
    steps=STEPS,
)
@settings(max_examples=150, deadline=None)
def test_after_any_single_event_a_job_ends_as_it_should(
    stage: str, ft: bool, event: str, which: int, begun: int, steps: int
) -> None:
    """A pod is lost, and the controller dies while it handles the loss. The job succeeds, unless it is not
    fault-tolerant and a trainer failed that was not being removed."""
    world = at_stage(stage, ft=ft, begun=begun)
    pods = [name for kind, name in world.objects if kind == "Pod"]
    fatal = False
    if pods:
        name = pods[which % len(pods)]
        going = "deletionTimestamp" in world.objects["Pod", name]["metadata"]
        to_go = going or stage in ("scaling", "changing", "suspending")
        fatal = not ft and "-trainer-" in name and event in BAD and not to_go
        happen(world, event, name)
    world.reconcile(steps)
    if stage == "suspending" and event in BAD:
        world.settle()  # seen before the job is resumed
    world.edit("TrainingJob", NAME, {"spec": {"suspend": False}})
    for _ in range(12):
        advance(world, trainers="Running")
    for _ in range(12):
        advance(world, trainers="Succeeded")
    status = world.objects["TrainingJob", NAME]["status"]
    assert status["phase"] == ("failed" if fatal else "succeeded"), status
    world.reap()
    world.settle()
    left = [world.objects[key]["status"]["phase"] for key in world.objects if key[0] == "Pod"]
    assert set(left) <= {"Succeeded", "Failed"}


@given(
    ft=st.booleans(),
    end=st.sampled_from([("Succeeded", 0), ("Failed", 1)]),
    autoclean=st.booleans(),
    steps=st.lists(STEPS, max_size=4),
)
@settings(max_examples=50, deadline=None)
def test_a_job_that_has_ended_stays_so_whenever_the_controller_dies(
    ft: bool, end: tuple[str, int], autoclean: bool, steps: list[int]
) -> None:
    """All trainers succeed, or all fail, and the phase is final. Then the controller may die between any two
    writes while pods disappear."""
    world = at_stage("trainers", ft=ft, autoclean=autoclean, failurePercent=0)
    for index in (0, 1):
        world.set_pod(f"{NAME}-trainer-{index}", *end)
    for count in steps:
        world.reconcile(count)
        world.reap()
    for _ in range(4):
        world.settle()
        world.reap()
    assert world.objects["TrainingJob", NAME]["status"]["phase"] == end[0].lower()
    left = [name for kind, name in world.objects if kind in ("Pod", "Service")]
    assert left == ([] if autoclean else [f"{NAME}-trainer-0", f"{NAME}-trainer-1"])
