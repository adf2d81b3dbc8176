"""Laws of cluster versions under any interleaving of plans, node deaths, timeouts, repetitions and master
crashes."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from edl_workflows.jobs import names
from edl_workflows.jobs.scale_plan.model import NodeResource, PodMeta, ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.master.standalone import parse_nodes
from edl_workflows.master.state.settings import JobSettings
from edl_workflows.master.state.stored_state import StoredState
from tests.unit.master.simulated_job import SimulatedJob

JOB = "job"
STEP_TIMEOUT = 100
MAX_PLANS = 4
MAX_KILLS = 6
MAX_PASSED = 4
"""So many step time-outs do not add up to a heartbeat's: nodes that nobody moves are no silent ones."""


class Versions(RuleBasedStateMachine):
    """A job to which any event may happen. When events stop, it must end in the old or the new cluster,
    trained with all data."""

    job: SimulatedJob

    @initialize(ps=st.integers(1, 3), workers=st.integers(1, 3))
    def begin(self, ps: int, workers: int) -> None:
        self.job = SimulatedJob(
            JobSettings(JOB, "default", parse_nodes(f"ps={ps},worker={workers}")), shards=600
        )
        self.counts = {"ps": ps, "worker": workers}
        self.wanted: list[tuple[str, dict[str, int]]] = []
        self.kills = 0
        self.passed = 0
        self.deleted = False
        self.job.calm(4)

    @rule()
    def master_crashes(self) -> None:
        self.job.crash()

    @rule()
    def master_commits(self) -> None:
        self.job.commit()

    @rule()
    def cluster_is_seen(self) -> None:
        self.job.observe()

    @rule()
    def plan_is_recorded(self) -> None:
        self.job.record()

    @rule()
    def controller_acts(self) -> None:
        self.job.control()

    @rule()
    def pods_start(self) -> None:
        self.job.start_pods()

    @rule(pick=st.integers(0, 100))
    def node_acts(self, pick: int) -> None:
        pods = sorted(self.job.pods)
        self.job.act(pods[pick % len(pods)])

    @rule()
    def chief_saves(self) -> None:
        self.job.save_periodically()

    @rule(rounds=st.integers(1, 3))
    def all_goes_well_for_a_while(self, rounds: int) -> None:
        self.job.calm(rounds)

    @rule()
    def time_passes(self) -> None:
        if self.passed < MAX_PASSED:
            self.passed += 1
            self.job.now += STEP_TIMEOUT + 20
            self.job.settle()

    @rule(pick=st.integers(0, 100))
    def pod_dies(self, pick: int) -> None:
        pods = sorted(self.job.pods)
        if self.kills < MAX_KILLS:
            self.kills += 1
            self.job.kill(pods[pick % len(pods)])

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

    @invariant()
    def restoring_the_stored_state_changes_nothing(self) -> None:
        assert StoredState.from_json(self.job.stored).to_json() == self.job.stored

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
