"""Laws of a TFJob's state machine under any sequence of edits, pod events and controller deaths."""

from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, settings
from hypothesis.stateful import initialize, invariant, rule

from tests.property.job_machine import JobMachine

NAME = "mnist"
FINAL = ("Succeeded", "Failed")
TYPES = ("Chief", "PS", "Worker")
POLICIES = st.sampled_from(["Always", "OnFailure", "Never", "ExitCode"])
STEPS = st.integers(0, 8)


class TFJobs(JobMachine):
    """A TFJob, to which any event may happen in any order."""

    kind, name = "TFJob", NAME

    def __init__(self) -> None:
        super().__init__()
        self.final: str | None = None
        self.counts: dict[str, int] = {}
        self.done: set[str] = set()

    def set_pod(self, name: str, phase: str, exit_code: int | None) -> None:
        if phase == "Succeeded" and "deletionTimestamp" not in self.world.objects["Pod", name]["metadata"]:
            self.done.add(name)
        self.world.set_pod(name, phase, exit_code)

    @initialize(
        policy=POLICIES,
        chief=st.booleans(),
        dynamic=st.booleans(),
        limit=st.none() | st.integers(0, 3),
        gang=st.booleans(),
    )
    def submit(self, policy: str, chief: bool, dynamic: bool, limit: int | None, gang: bool) -> None:
        template = {"spec": {"containers": [{"name": "tensorflow", "image": "train:1"}]}}
        role = {"restartPolicy": policy, "template": template}
        types = {"PS": role | {"replicas": 1}, "Worker": role | {"replicas": 2}}
        types |= {"Chief": role | {"replicas": 1}} if chief else {}
        run: dict[str, Any] = {} if limit is None else {"backoffLimit": limit}
        run |= {"schedulingPolicy": {}} if gang else {}
        spec = {"tfReplicaSpecs": types, "enableDynamicWorker": dynamic, "runPolicy": run}
        metadata = {"name": NAME}
        self.world.add({"apiVersion": "kubeflow.org/v1", "kind": "TFJob", "metadata": metadata, "spec": spec})

    @rule(suspend=st.booleans())
    def set_suspend(self, suspend: bool) -> None:
        self.world.edit("TFJob", NAME, {"spec": {"runPolicy": {"suspend": suspend}}})

    @rule(kind=st.sampled_from(["PS", "Worker"]), replicas=st.integers(1, 3))
    def scale(self, kind: str, replicas: int) -> None:
        self.world.edit("TFJob", NAME, {"spec": {"tfReplicaSpecs": {kind: {"replicas": replicas}}}})

    @rule(
        which=st.integers(0, 10),
        phase=st.sampled_from(["Running", "Succeeded", "Failed"]),
        code=st.sampled_from([1, 137, None]),
    )
    def pod_event(self, which: int, phase: str, code: int | None) -> None:
        if live := self.live():
            exit_code = 0 if phase == "Succeeded" else code if phase == "Failed" else None
            self.set_pod(live[which % len(live)], phase, exit_code)

    @rule(steps=STEPS)
    def controller_dies_at_it(self, steps: int) -> None:
        self.world.reconcile(steps)

    @rule()
    def controller_settles(self) -> None:
        """When nothing more happens, the controller stops acting, and a gang is as large as its job."""
        self.world.settle()
        spec = self.world.objects["TFJob", NAME]["spec"]
        group = self.world.objects.get(("PodGroup", NAME))
        if group and self.status.get("phase") not in FINAL and not spec["runPolicy"].get("suspend"):
            replicas = sum(role["replicas"] for role in spec["tfReplicaSpecs"].values())
            assert group["spec"]["minMember"] == replicas

    @invariant()
    def an_end_is_an_end(self) -> None:
        """A final phase never changes, and Succeeded and Failed exclude each other."""
        if ("TFJob", NAME) not in self.world.objects:
            return
        phase = self.status.get("phase")
        assert self.final in (None, phase)
        self.final = phase if phase in FINAL else None
        true = {c["type"] for c in self.status.get("conditions", ()) if c["status"] == "True"}
        assert len(true & {"Running", "Restarting", "Suspended", "Succeeded", "Failed"}) <= 1

    @invariant()
    def the_end_is_written_first(self) -> None:
        """A decision that ends the job deletes nothing: the pods show the end until the status does."""
        if ("TFJob", NAME) in self.world.objects and self.status.get("phase") not in FINAL:
            actions = self.world.decide("TFJob", NAME)
            if (actions.status or {}).get("phase") in FINAL:
                assert not actions.delete

    @invariant()
    def pods_that_are_to_go_cost_nothing(self) -> None:
        """While a job is being suspended, failures of its pods neither end it nor count as restarts."""
        if ("TFJob", NAME) not in self.world.objects or self.status.get("phase") in FINAL:
            return
        if self.world.objects["TFJob", NAME]["spec"]["runPolicy"].get("suspend"):
            status = self.world.decide("TFJob", NAME).status or {}
            assert status.get("phase") != "Failed"
            assert not any("count" in (r or {}) for r in (status.get("restarts") or {}).values())

    @invariant()
    def only_its_own_end_is_a_success(self) -> None:
        """A replica whose pod ended only because it was told to has not succeeded."""
        if ("TFJob", NAME) in self.world.objects:
            for kind, counts in self.status.get("replicaStatuses", {}).items():
                said = {f"{NAME}-{kind.lower()}-{index}" for index in counts.get("completed", ())}
                assert said <= self.done

    @invariant()
    def counts_of_restarts_never_fall(self) -> None:
        """Restarts stay counted, whichever process dies in between."""
        if ("TFJob", NAME) in self.world.objects:
            now = {name: r["count"] for name, r in self.status.get("restarts", {}).items()}
            assert all(now.get(name, 0) >= count for name, count in self.counts.items())
            self.counts = now

    @invariant()
    def one_pod_a_place(self) -> None:
        """The name and the labels of a pod contain its replica type and index."""
        for name in self.pods():
            labels = self.world.objects["Pod", name]["metadata"]["labels"]
            kind, index = (
                labels["training.kubeflow.org/replica-type"],
                labels["training.kubeflow.org/replica-index"],
            )
            assert name == f"{NAME}-{kind}-{index}"

    def teardown(self) -> None:
        """From every state the job can still be brought to an end."""
        if ("TFJob", NAME) not in self.world.objects:
            return
        self.world.edit("TFJob", NAME, {"spec": {"runPolicy": {"suspend": False}}})
        for _ in range(12):
            self.world.reap()
            self.world.settle()
            if self.status.get("phase") in FINAL:
                return
            for name in self.pods():
                pod = self.world.objects["Pod", name]
                if (
                    pod["status"]["phase"] in ("Pending", "Running")
                    and "deletionTimestamp" not in pod["metadata"]
                ):
                    self.set_pod(name, "Succeeded", 0)
            self.world.tick(400)
        raise AssertionError(f"the job never ends: {self.status}")


TestTFJob = pytest.mark.slow(TFJobs.TestCase)
TestTFJob.settings = settings(
    max_examples=60, stateful_step_count=25, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
