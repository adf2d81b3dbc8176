"""Laws of a DIJob's state machine under any sequence of edits, pod events, allocations and controller
deaths."""

import copy

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, invariant, rule

from edl_workflows.core.jobs.di_job import pods
from edl_workflows.core.jobs.di_job.model import DIJob
from tests.cases.kinds.di_job import make_di_job, task
from tests.property.job_machine import JobMachine
from tests.unit.core.jobs.di_jobs import NAME

FINAL = ("Succeeded", "Failed")
STEPS = st.integers(0, 8)
ENDS = st.sampled_from(
    [
        ("Running", None), ("Succeeded", 0), ("Failed", 1), ("Failed", 137), ("Failed", 143),
        ("Failed", None), ("Unknown", None),
    ]
)  # fmt: skip
COUNTERS = ("restarts", "reschedules", "generation")


class DIJobs(JobMachine):
    """A DIJob, to which any event may happen in any order."""

    kind, name = "DIJob", NAME

    def __init__(self) -> None:
        super().__init__()
        self.final: str | None = None
        self.counts = dict.fromkeys(COUNTERS, 0)
        self.failures = 0

    def limit(self) -> int | None:
        found: int | None = self.world.objects["DIJob", NAME]["spec"].get("backoffLimit")
        return found

    @initialize(
        preemptible=st.booleans(),
        limit=st.none() | st.integers(0, 3),
        policy=st.sampled_from(["Running", "All", "None"]),
    )
    def submit(self, preemptible: bool, limit: int | None, policy: str) -> None:
        tasks = (task("learner"), task("collector", 2), task("none", name="replay"))
        self.world.add(
            make_di_job(*tasks, preemptible=preemptible, backoffLimit=limit, cleanPodPolicy=policy)
        )

    @rule(suspend=st.booleans())
    def set_suspend(self, suspend: bool) -> None:
        self.world.edit("DIJob", NAME, {"spec": {"suspend": suspend}})

    @rule(index=st.integers(0, 2), replicas=st.integers(1, 3))
    def scale(self, index: int, replicas: int) -> None:
        tasks = copy.deepcopy(self.world.objects["DIJob", NAME]["spec"]["tasks"])
        tasks[index]["replicas"] = replicas
        self.world.edit("DIJob", NAME, {"spec": {"tasks": tasks}})

    @rule(nodes=st.lists(st.sampled_from("abc"), max_size=6))
    def allocate(self, nodes: list[str]) -> None:
        self.world.edit("DIJob", NAME, {"status": {"allocation": nodes}})

    @rule(which=st.integers(0, 10), end=ENDS)
    def pod_event(self, which: int, end: tuple[str, int | None]) -> None:
        if live := self.live():
            phase, code = end
            self.failures += phase == "Failed"
            self.world.set_pod(live[which % len(live)], phase, code)

    def verdict(self) -> str | None:
        """The final phase that the controller would write now."""
        phase = (self.world.decide("DIJob", NAME).status or {}).get("phase")
        return phase if phase in FINAL else None

    @rule(steps=STEPS)
    def controller_dies_at_it(self, steps: int) -> None:
        self.die_at_it(steps)

    def die_at_it(self, steps: int) -> None:
        """Wherever the controller dies, a job whose end it has seen comes to that end. Pods that were about
        to be removed never fail a job, and losing nodes never makes it succeed."""
        verdict, blamed, before = self.verdict(), self.blamed(), dict(self.status)
        if verdict == "Succeeded" and self.world.objects["DIJob", NAME]["spec"]["preemptible"]:
            assert before["phase"] == verdict or self.newly_succeeded()
        self.world.reconcile(steps)
        assert verdict in (None, self.status.get("phase"), self.verdict())
        if not blamed:
            assert self.status.get("restarts", 0) == before.get("restarts", 0)
            assert before.get("phase") == "Failed" or self.status.get("phase") != "Failed"

    def newly_succeeded(self) -> bool:
        """Whether a current pod has succeeded that the status does not mention yet."""
        return any(
            obj["status"]["phase"] == "Succeeded"
            and (labels := obj["metadata"]["labels"])[pods.GENERATION_LABEL] == str(self.status["generation"])
            and int(labels[pods.INDEX_LABEL])
            not in self.status["replicaStatuses"][labels[pods.TASK_LABEL]].get("completed", ())
            for (kind, _), obj in self.world.objects.items()
            if kind == "Pod"
        )

    def blamed(self) -> bool:
        """Whether a pod has failed that the job still wants at its place."""
        job = DIJob.parse(self.world.objects["DIJob", NAME])
        wanted = {replica.name: replica.place for replica in pods.list_replicas(job)}
        return not job.spec.suspend and any(
            obj["status"]["phase"] == "Failed"
            and obj["metadata"]["labels"][pods.GENERATION_LABEL] == str(job.status.generation)
            and obj["metadata"]["labels"][pods.PLACE_LABEL] == wanted.get(name)
            for (kind, name), obj in self.world.objects.items()
            if kind == "Pod"
        )

    @rule()
    def controller_settles(self) -> None:
        """There is a fixed point: when nothing more happens, the controller stops acting."""
        self.die_at_it(99)
        self.world.settle()

    @invariant()
    def an_end_is_an_end(self) -> None:
        """A final phase never changes, and the condition of at most one phase is True."""
        phase = self.status.get("phase") if ("DIJob", NAME) in self.world.objects else None
        assert self.final in (None, phase)
        self.final = phase if phase in FINAL else None

    @invariant()
    def one_condition_is_true(self) -> None:
        """Counts only the conditions of phases."""
        if ("DIJob", NAME) in self.world.objects:
            true = [c["type"] for c in self.status.get("conditions", ()) if c["status"] == "True"]
            assert len(true) <= 2
            assert self.status.get("phase") in (*true, None)

    @invariant()
    def nothing_is_counted_twice(self) -> None:
        """Counters never decrease, and there are never more restarts than failures or than the limit
        allows."""
        if ("DIJob", NAME) not in self.world.objects:
            return
        now = {name: self.status.get(name, 0) for name in COUNTERS}
        assert all(now[name] >= self.counts[name] for name in COUNTERS)
        self.counts = now
        limit = self.limit()
        assert now["restarts"] <= self.failures
        assert limit is None or now["restarts"] <= limit

    @invariant()
    def one_name_one_place(self) -> None:
        """A pod's name and labels contain its task and its index in the task; its rank is below the replicas
        of its time."""
        for name in self.pods():
            metadata = self.world.objects["Pod", name]["metadata"]
            labels, told = metadata["labels"], metadata["annotations"]
            assert name == f"{NAME}-{labels[pods.TASK_LABEL]}-{labels[pods.INDEX_LABEL]}"
            assert 0 <= int(told["diengine/rank"]) < int(told["diengine/replicas"])

    @invariant()
    def no_rank_twice_while_it_runs(self) -> None:
        """In a running job whose status is about the newest spec, the ranks are 0, 1, … without
        duplicates."""
        job = self.world.objects.get(("DIJob", NAME))
        if job is None or self.status.get("phase") != "Running" or self.world.reconcile(0):
            return
        wanted = {replica.name: replica.rank for replica in pods.list_replicas(DIJob.parse(job))}
        found = {
            n: int(self.world.objects["Pod", n]["metadata"]["annotations"]["diengine/rank"])
            for n in self.pods()
        }
        completed = {
            f"{NAME}-{t}-{i}"
            for t, c in self.status["replicaStatuses"].items()
            for i in c.get("completed", ())
        }
        assert {n: r for n, r in found.items() if n not in completed} == {
            n: r for n, r in wanted.items() if n not in completed
        }

    def teardown(self) -> None:
        """From every state the job can still be brought to an end."""
        if ("DIJob", NAME) not in self.world.objects:
            return
        self.world.edit("DIJob", NAME, {"spec": {"suspend": False}, "status": {"allocation": ["a"] * 9}})
        for _ in range(12):
            self.world.reap()
            self.world.tick(400)
            self.die_at_it(1)
            self.world.settle()
            if self.status.get("phase") in FINAL:
                self.the_end_is_right()
                return
            for name in self.pods():
                pod = self.world.objects["Pod", name]
                live = pod["status"]["phase"] in ("Pending", "Running")
                if live and "deletionTimestamp" not in pod["metadata"]:
                    self.world.set_pod(name, "Succeeded", 0)
        raise AssertionError(f"the job never ends: {self.status}")

    def the_end_is_right(self) -> None:
        """The job failed only if its restarts were used up, and succeeded only if every replica did."""
        if self.status["phase"] == "Failed":
            assert self.limit() == self.status["restarts"]
            assert self.failures > self.status["restarts"]
        else:
            counts = self.status["replicaStatuses"].values()
            assert all(count["succeeded"] == count["desired"] > 0 for count in counts)


TestDIJob = pytest.mark.slow(DIJobs.TestCase)
TestDIJob.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
