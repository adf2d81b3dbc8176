"""Laws of the kinds' state machines under any sequence of edits, pod events, plans and controller deaths."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from edl_workflows.core.kubernetes import lost_pods
from tests.jobs_namespace import JobsNamespace

FINAL = ("Succeeded", "Failed")
LIMIT = 2
ROLES = st.sampled_from(["ps", "worker"])
COUNTS = st.integers(0, 3)
STEPS = st.integers(0, 12)


def make_job() -> dict[str, Any]:
    container = {"name": "main", "image": "train:1"}
    role = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ElasticJob",
        "metadata": {"name": "digits"},
        "spec": {
            "replicaSpecs": {
                "ps": dict(role),
                "worker": dict(role),
                "dlrover-master": {"restartCount": LIMIT},
            }
        },
    }


def make_plan(name: str, scale_type: str, **spec: Any) -> dict[str, Any]:
    labels = {"elasticjob.dlrover/name": "digits", "scale-type": scale_type}
    return {
        "apiVersion": "elastic.iml.github.io/v1alpha1",
        "kind": "ScalePlan",
        "metadata": {"name": name, "labels": labels},
        "spec": {"ownerJob": "digits"} | spec,
    }


class Controller(RuleBasedStateMachine):
    """One job, to which any event may happen in any order. The controller may die while it acts."""

    def __init__(self) -> None:
        super().__init__()
        self.world = JobsNamespace()
        self.plans = 0
        self.ids = {"ps": 0, "worker": 0}
        self.final: str | None = None
        self.restarts = 0

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = self.world.objects["ElasticJob", "digits"].get("status", {})
        return found

    def live(self, *types: str) -> list[str]:
        """The pods of these types that have not ended and do not count as gone."""
        return [
            name
            for (kind, name), obj in self.world.objects.items()
            if kind == "Pod"
            and obj["metadata"]["labels"]["elasticjob.dlrover/replica-type"] in types
            and obj["status"]["phase"] in ("Pending", "Running")
            and not lost_pods.is_gone(obj, self.world.now)
        ]

    @initialize()
    def submit(self) -> None:
        self.world.add(make_job())

    # What users do.

    @rule(suspend=st.booleans())
    def set_suspend(self, suspend: bool) -> None:
        self.world.edit("ElasticJob", "digits", {"spec": {"suspend": suspend}})

    @rule(role=ROLES, replicas=COUNTS)
    def set_replicas(self, role: str, replicas: int) -> None:
        self.world.edit("ElasticJob", "digits", {"spec": {"replicaSpecs": {role: {"replicas": replicas}}}})

    @rule(role=ROLES, replicas=COUNTS)
    def plan_by_hand(self, role: str, replicas: int) -> None:
        self.plans += 1
        self.world.add(
            make_plan(f"hand-{self.plans}", "manual", replicaResourceSpecs={role: {"replicas": replicas}})
        )

    # What the master does.

    @rule(role=ROLES)
    def ask_for_node(self, role: str) -> None:
        number, self.plans = self.ids[role], self.plans + 1
        self.ids[role] += 1
        node = {"name": f"digits-edljob-{role}-{number}", "type": role, "id": number}
        self.world.add(make_plan(f"digits-scaleplan-{self.plans}", "auto", createPods=[node]))

    @precondition(lambda self: self.ids["worker"])
    @rule(data=st.data())
    def release_worker(self, data: st.DataObject) -> None:
        number = data.draw(st.integers(0, self.ids["worker"] - 1))
        self.plans += 1
        node = {"name": f"digits-edljob-worker-{number}"}
        self.world.add(make_plan(f"digits-scaleplan-{self.plans}", "auto", removePods=[node]))

    @rule(phase=st.sampled_from(["Migrating", "Scaling", "Succeeded", "Failed"]), data=st.data())
    def carry_out_a_plan(self, phase: str, data: st.DataObject) -> None:
        open_plans = [
            name
            for (kind, name), obj in self.world.objects.items()
            if kind == "ScalePlan"
            and obj["metadata"]["labels"]["scale-type"] == "manual"
            and obj.get("status", {}).get("phase") not in FINAL
        ]
        if open_plans:
            name = data.draw(st.sampled_from(open_plans))
            self.world.edit("ScalePlan", name, {"status": {"phase": phase}})

    # What happens to pods.

    @rule(
        data=st.data(), code=st.sampled_from([None, 0, 1, 2, 137]), phase=st.sampled_from(["Running", "end"])
    )
    def pod_event(self, data: st.DataObject, code: int | None, phase: str) -> None:
        pods = self.live("ps", "worker", "dlrover-master")
        if not pods:
            return
        name = data.draw(st.sampled_from(pods))
        if phase == "Running":
            self.world.set_pod(name, "Running")
        else:
            self.world.set_pod(
                name, "Succeeded" if code == 0 else "Failed", code, "" if code is not None else "Evicted"
            )

    @rule(data=st.data())
    def pod_is_deleted(self, data: st.DataObject) -> None:
        pods = self.live("ps", "worker", "dlrover-master")
        if pods:
            self.world.delete("Pod", data.draw(st.sampled_from(pods)))

    @rule()
    def deleted_pods_go(self) -> None:
        self.world.reap()

    @rule(seconds=st.integers(1, 60))
    def time_passes(self, seconds: int) -> None:
        self.world.tick(seconds)

    # What the controller does.

    @rule(steps=STEPS)
    def controller_dies_at_work(self, steps: int) -> None:
        self.world.reconcile(steps)

    @rule()
    def controller_works(self) -> None:
        """Its decisions come to rest: each is a fixed point after its own actions."""
        self.world.settle()
        phase = self.status["phase"]
        running = self.live("ps", "worker", "dlrover-master")
        if phase == "Suspended":
            assert not running, "a suspended job has no pods but lost ones"
        if phase in FINAL:
            assert not self.world.pods("dlrover-master") or not set(running) & set(
                self.world.pods("dlrover-master")
            )
            assert self.status["completionTime"]
        auto = [o for (kind, n), o in self.world.objects.items() if kind == "ScalePlan" and "scaleplan" in n]
        assert all(o["status"]["phase"] in FINAL for o in auto), "no auto plan is left waiting"

    @invariant()
    def one_master_at_most(self) -> None:
        """Two masters would write the same state. One that counts as gone can't, since the next has claimed
        the state."""
        assert len(self.live("dlrover-master")) <= 1

    @invariant()
    def ends_are_final(self) -> None:
        """A final phase never changes."""
        if ("ElasticJob", "digits") not in self.world.objects:
            return
        phase = self.status.get("phase")
        assert self.final in (None, phase)
        self.final = phase if phase in FINAL else None

    @invariant()
    def budget_is_kept(self) -> None:
        """Restarts are counted up to the limit and never forgotten."""
        if ("ElasticJob", "digits") not in self.world.objects:
            return
        restarts = self.status.get("masterRestarts", 0)
        assert self.restarts <= restarts <= LIMIT
        self.restarts = restarts

    @invariant()
    def every_pod_has_its_owner(self) -> None:
        """Every pod is deleted with its job."""
        for (kind, _), obj in self.world.objects.items():
            if kind in ("Pod", "Service", "Secret", "ConfigMap"):
                owners = [o["uid"] for o in obj["metadata"]["ownerReferences"]]
                assert owners == [self.world.objects["ElasticJob", "digits"]["metadata"]["uid"]]


class DyingController(Controller):
    """The same history ends in the same state with a controller that dies and with one that does not."""

    def __init__(self) -> None:
        super().__init__()
        self.deaths = 0

    @rule(steps=st.lists(STEPS, min_size=1, max_size=4))
    def deaths_change_nothing(self, steps: list[int]) -> None:
        import copy

        undisturbed = copy.deepcopy(self.world)
        undisturbed.settle()
        for count in steps:
            self.world.reconcile(count)
        self.world.settle()
        assert summary(self.world) == summary(undisturbed)


def summary(world: JobsNamespace) -> dict[str, Any]:
    """The state of a namespace as a user sees it. An object that is being deleted counts as gone."""
    found: dict[str, Any] = {}
    for (kind, name), obj in world.objects.items():
        status = obj.get("status", {})
        if not obj["metadata"].get("deletionTimestamp"):
            found[f"{kind}/{name}"] = (status.get("phase"), status.get("masterRestarts"))
    return found


def test_a_node_that_is_asked_for_as_the_master_ends_does_not_stay() -> None:
    """If the controller dies between the master's end and the job's final status, the plan of that moment may
    still create its pod. The pod is deleted with the job's others, and the plan fails."""
    job = DyingController()
    job.submit()
    job.ask_for_node("ps")
    job.controller_works()
    job.ask_for_node("ps")
    job.world.set_pod("elasticjob-digits-dlrover-master-0", "Succeeded", 0, "")

    job.world.reconcile(1)
    assert "digits-edljob-ps-1" in job.live("ps"), "the plan comes before the job's final status"
    job.world.settle()

    left = summary(job.world)
    assert left["ElasticJob/digits"] == ("Succeeded", 0)
    assert left["ScalePlan/digits-scaleplan-2"] == ("Failed", None)
    assert [name for name in left if name.startswith("Pod/digits")] == []


limits = settings(
    max_examples=40, stateful_step_count=30, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
TestController = Controller.TestCase
TestController.settings = limits
TestDyingController = pytest.mark.slow(DyingController.TestCase)
TestDyingController.settings = limits
