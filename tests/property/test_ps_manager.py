"""Laws of cluster versions under any interleaving of plans, node deaths, timeouts, repetitions and master
crashes."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from edl_workflows.core.jobs.scale_plan.model import NodeResource, PodMeta, ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.settings import JobSettings
from tests.property.simulated_machine import MAX_PLANS, STEP_TIMEOUT, SimulatedMachine
from tests.unit.services.master.simulated_job import SimulatedJob

JOB = "job"


class Versions(SimulatedMachine[SimulatedJob]):
    """A job to which any event may happen. When events stop, it must end in the old or the new cluster,
    trained with all data."""

    @initialize(ps=st.integers(1, 3), workers=st.integers(1, 3))
    def begin(self, ps: int, workers: int) -> None:
        self.job = SimulatedJob(
            JobSettings(JOB, "default", parse_nodes(f"ps={ps},worker={workers}")), shards=600
        )
        self.counts = {"ps": ps, "worker": workers}
        self.wanted: list[tuple[str, dict[str, int]]] = []
        self.job.calm(4)

    @rule(
        ps=st.integers(0, 3), workers=st.integers(0, 3), migrate=st.integers(0, 7), checkpoint=st.booleans()
    )
    def plan_is_submitted(self, ps: int, workers: int, migrate: int, checkpoint: bool) -> None:
        if len(self.wanted) >= MAX_PLANS:
            return
        counts = {role: count for role, count in (("ps", ps), ("worker", workers)) if count}
        wanted: dict[Any, ReplicaResourceSpec] = {
            role: ReplicaResourceSpec(replicas=count) for role, count in counts.items()
        }
        servers = sorted(pod for pod in self.job.pods if pod[0] == "ps")
        spec = ScalePlanSpec(
            replica_resource_specs=wanted,
            migrate_pods=[
                PodMeta(name=names.node_name(JOB, *server), resource=NodeResource(cpu="2"))
                for place, server in enumerate(servers)
                if migrate & 1 << place
            ],
            checkpoint=checkpoint,
            step_timeout_seconds=STEP_TIMEOUT,
        )
        name = f"plan-{len(self.wanted)}"
        self.job.submit(name, spec)
        self.wanted.append((name, counts))

    @rule(pick=st.integers(0, 100))
    def plan_is_deleted(self, pick: int) -> None:
        if self.wanted:
            self.deleted = True
            self.job.delete_plan(self.wanted[pick % len(self.wanted)][0])

    @invariant()
    def numbers_of_versions_grow_and_ports_differ(self) -> None:
        directive = self.job.published.directive
        if directive.active and directive.next:
            assert directive.next.version > directive.active.version
            assert (directive.next.version - directive.active.version) % 2 == 1
        assert directive.trained <= (directive.active.version if directive.active else 0)

    @invariant()
    def versions_have_ranks_without_gaps(self) -> None:
        for cluster in (self.job.published.directive.active, self.job.published.directive.next):
            if cluster is not None:
                assert [member.rank for member in cluster.ps] == list(range(len(cluster.ps)))
                assert len({member.id for member in cluster.ps}) == len(cluster.ps)

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        self.job.calm(45)
        if self.job.state.outcome is None:
            self._check_cluster()
        for _ in range(400):
            if self.job.state.outcome is not None:
                break
            self.job.calm(1)
        self._check_data()

    def _check_cluster(self) -> None:
        job = self.job
        active = job.state.versions.active
        assert active is not None
        assert job.state.versions.settled, job.state.versions
        assert {ref[1] for ref, pod in job.pods.items() if ref[0] == "ps" and pod.runs} == set(active.members)
        for name, counts in self.wanted:
            plan = job.plans.get(name)
            if plan is not None:
                assert plan.phase is not None, f"{name} was not begun"
                assert plan.phase.final, f"{name} hangs in {plan.phase}"
                if plan.phase == "Succeeded":
                    self.counts.update(counts)
        if not self.deleted:
            assert len(active.members) == self.counts["ps"]
            assert len(job.state.nodes.live("worker")) == self.counts["worker"]

    def _check_data(self) -> None:
        outcome, active = self.job.state.outcome, self.job.state.versions.active
        assert outcome is not None, "the job hangs"
        assert outcome.succeeded, outcome
        assert active is not None
        assert self.job.models[active.number] == set(range(self.job.shards)), (
            "the model has not seen all data"
        )


TestVersions = pytest.mark.slow(Versions.TestCase)
TestVersions.settings = settings(
    max_examples=25, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
