"""Laws of worlds under any interleaving of joins, losses, plans, timeouts, repetitions and master crashes."""

from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant, rule

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.jobs.scale_plan.model import NodeResource, PodMeta, ReplicaResourceSpec, ScalePlanSpec
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import NodeRef, ProcessReport, ProcessState
from edl_workflows.core.protocol.training import CheckpointBegin, StepReport
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages, model_messages
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits
from edl_workflows.services.master.state.versions.cluster_versions import cut_into_groups
from tests.property.simulated_machine import MAX_PLANS, STEP_TIMEOUT, SimulatedMachine
from tests.unit.services.master.simulated_collective_job import SimulatedCollectiveJob

JOB = "job"
MOST = 4


class Worlds(SimulatedMachine[SimulatedCollectiveJob]):
    """A collective job to which any event may happen. When events stop, it must end in the wanted world, with
    each step trained once."""

    @initialize(
        workers=st.integers(1, MOST),
        least=st.integers(1, 2),
        unit=st.integers(1, 2),
        hangs=st.booleans(),
        in_place=st.booleans(),
        replicas=st.booleans(),
    )
    def begin(self, workers: int, least: int, unit: int, hangs: bool, in_place: bool, replicas: bool) -> None:
        self.replica_size = unit if replicas and in_place else 1
        least = max(least, self.replica_size)
        self.least, self.unit = least, unit
        workers = -(-max(workers, least) // self.replica_size) * self.replica_size
        rendezvous = RendezvousLimits(least, MOST, unit, waiting_timeout=5.0, join_timeout=2_000.0)
        settings = JobSettings(
            JOB, "default", parse_nodes(f"worker={workers}"), collective=True, rendezvous=rendezvous
        )
        self.job = SimulatedCollectiveJob(
            settings, steps=150, hangs=hangs, in_place=in_place, replica_size=self.replica_size
        )
        self.groups_seen: dict[int, set[tuple[int, ...]]] = {}
        self.count = workers
        self.wanted: list[tuple[str, int | None]] = []
        self.job.calm(4)

    @rule(node=st.integers(0, 12), version=st.integers(1, 8), what=st.sampled_from(ProcessState))
    def somebody_speaks_out_of_turn(self, node: int, version: int, what: ProcessState) -> None:
        """A process of any version sends any message and asks to save. A process that is not a member changes
        nothing and is told so."""
        state, ref = self.job.state, NodeRef(type="worker", id=node)
        known = state.nodes.find("worker", node)
        versions, before = state.versions, state.to_json()
        members = {versions.active.number: versions.active.members} if versions.active else {}
        if versions.change is not None and versions.change.number:
            members[versions.change.number] = versions.change.target
        if known is None or not known.live or node in members.get(version, ()):
            return
        step = StepReport(node=ref, version=version, step=10**6, time=1.0, first_step_time=1.0)
        for say in (
            lambda: messages.record_process_report(
                state, ProcessReport(node=ref, version=version, state=what)
            ),
            lambda: messages.record_step_report(state, step),
            lambda: model_messages.begin_checkpoint(state, CheckpointBegin(node=ref, version=version), 0.0),
        ):
            try:
                say()
            except ConflictError:
                continue
            raise AssertionError(f"worker-{node} was heard in version {version}")
        assert state.to_json() == before

    @rule(workers=st.integers(0, MOST + 1), migrate=st.integers(0, 15), checkpoint=st.booleans())
    def plan_is_submitted(self, workers: int, migrate: int, checkpoint: bool) -> None:
        if len(self.wanted) >= MAX_PLANS:
            return
        wanted: dict[Any, ReplicaResourceSpec] = (
            {"worker": ReplicaResourceSpec(replicas=workers)} if workers else {}
        )
        spec = ScalePlanSpec(
            replica_resource_specs=wanted,
            migrate_pods=[
                PodMeta(name=names.node_name(JOB, *pod), resource=NodeResource(cpu="2"))
                for place, pod in enumerate(sorted(self.job.pods))
                if migrate & 1 << place
            ],
            checkpoint=checkpoint,
            step_timeout_seconds=STEP_TIMEOUT,
        )
        name = f"plan-{len(self.wanted)}"
        self.job.submit(name, spec)
        self.wanted.append((name, workers or None))

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
    def worlds_are_permutations_within_bounds(self) -> None:
        for world in self.job.published.directive.clusters:
            ids = [member.id for member in world.workers]
            assert [member.rank for member in world.workers] == list(range(len(ids)))
            assert len(set(ids)) == len(ids)
            assert self.least <= len(ids) <= world.max_workers == MOST
            assert world.chief_id == ids[0]

    @invariant()
    def processes_go_on_only_from_a_version_that_started_them(self) -> None:
        """A process that goes on was started for an earlier version with the same node in it, and no node has
        two."""
        for world in self.job.published.directive.clusters:
            for member in world.workers:
                assert member.process < world.version
                assert not member.process or member.id in self.job.versions_seen[member.process]
            if world.in_place:
                assert world.workers[0].process, "the first member holds the model"
        directive = self.job.published.directive
        assert not (directive.lost and directive.broken)

    @invariant()
    def replica_groups_go_on_as_a_whole(self) -> None:
        """A world has whole replica groups. The processes of each were started for one version, in which they
        were a group of the same members in the same order; a process that is lost takes its group out."""
        size = self.replica_size
        for world in self.job.published.directive.clusters:
            groups = cut_into_groups([member.id for member in world.workers], size)
            processes = cut_into_groups([member.process for member in world.workers], size)
            for group, started in zip(groups, processes, strict=True):
                assert len(group) == size
                assert len(set(started)) == 1
                if started[0]:
                    assert group in self.groups_seen[started[0]]
            self.groups_seen.setdefault(world.version, set()).update(groups)

    @invariant()
    def nobody_reports_into_a_world_that_does_not_name_it(self) -> None:
        versions = self.job.state.versions
        if versions.change is not None:
            assert set(versions.change.ready) <= {f"worker-{node}" for node in versions.change.target}
            members = versions.active.members if versions.active else ()
            assert set(versions.change.drained) <= {f"worker-{node}" for node in members}

    def teardown(self) -> None:
        if not hasattr(self, "job"):
            return
        self.job.calm(80)
        if self.job.state.outcome is None:
            self._check_world()
        for _ in range(500):
            if self.job.state.outcome is not None:
                break
            self.job.calm(1)
        self._check_model()

    def _check_world(self) -> None:
        job = self.job
        active = job.state.versions.active
        assert active is not None
        assert job.state.versions.settled, job.state.versions
        for name, workers in self.wanted:
            plan = job.plans.get(name)
            if plan is not None:
                assert plan.phase is not None, f"{name} was not begun"
                assert plan.phase.final, f"{name} hangs in {plan.phase}"
                if plan.phase == "Succeeded" and workers is not None:
                    self.count = workers
        assert {ref[1] for ref, pod in job.pods.items() if pod.runs} >= set(active.members)
        if not self.deleted:
            assert len(job.state.nodes.live("worker")) == self.count
            assert len(active.members) == max(self.count // self.unit * self.unit, self.least)

    def _check_model(self) -> None:
        outcome, active = self.job.state.outcome, self.job.state.versions.active
        assert outcome is not None, "the job hangs"
        assert outcome.succeeded, outcome
        assert active is not None
        assert self.job.models[active.number] == set(range(self.job.total)), (
            "the model has not seen each step"
        )


def test_a_group_that_recovers_with_too_many_members_shrinks() -> None:
    """A plan for one worker begins while the group has one member and the others are being replaced. If that
    member dies, the group recovers with all workers; the plan then takes the surplus ones out, and does not
    wait until its time-out."""
    worlds = Worlds()
    worlds.begin(workers=3, least=1, unit=1, hangs=False, in_place=False, replicas=False)
    worlds.plan_is_submitted(workers=0, migrate=11, checkpoint=False)
    for pick in (85, 38):
        worlds.pod_dies(pick=pick)
        worlds.chief_saves()
    worlds.plan_is_submitted(workers=1, migrate=0, checkpoint=False)
    worlds.all_goes_well_for_a_while(rounds=2)
    worlds.pod_dies(pick=0)

    worlds.job.calm(20)

    assert worlds.job.plans["plan-1"].phase == "Succeeded"
    assert len(worlds.job.state.nodes.live("worker")) == 1
    worlds.teardown()


TestWorlds = pytest.mark.slow(Worlds.TestCase)
TestWorlds.settings = settings(
    max_examples=20, stateful_step_count=30, deadline=None, suppress_health_check=list(HealthCheck)
)
