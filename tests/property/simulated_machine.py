"""What the state machines of simulated jobs have in common: steps of the simulation, deaths and time-outs."""

from typing import Generic, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from edl_workflows.services.master.state.stored_state import StoredState
from tests.unit.services.master.simulated_job import SimulatedJob

STEP_TIMEOUT = 100
MAX_PLANS = 4
MAX_KILLS = 6
MAX_PASSED = 4
"""So many step time-outs do not add up to a heartbeat's, so that no node counts as silent."""

J = TypeVar("J", bound=SimulatedJob)


class SimulatedMachine(RuleBasedStateMachine, Generic[J]):
    """A simulated job to which any event may happen. Subclasses create `job` in an initializing rule."""

    job: J

    def __init__(self) -> None:
        super().__init__()
        self.kills = 0
        self.passed = 0
        self.deleted = False

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
        if pods := sorted(self.job.pods):
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
        if pods and self.kills < MAX_KILLS:
            self.kills += 1
            self.job.kill(pods[pick % len(pods)])

    @invariant()
    def restoring_the_stored_state_changes_nothing(self) -> None:
        assert StoredState.from_json(self.job.stored).to_json() == self.job.stored
