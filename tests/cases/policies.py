"""What the tests of all scaling policies read of one policy: `POLICY_CASES` has an entry for each."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from edl_workflows.simulator.application import Application
from edl_workflows.simulator.job import TrainingMeasurement
from edl_workflows.simulator.schedulers.catalog import simulated_policy
from edl_workflows.simulator.schedulers.scheduler import ActiveJob, SchedulerInputs
from edl_workflows.simulator.schedulers.tiresias import QUEUE_THRESHOLD
from edl_workflows.simulator.workload import WorkloadJob
from tests.unit.simulator.builders import application

SHORT, LONG = application(epochs=2), application("long", epochs=20)
NODES = {"n0": 4, "n1": 4}
"""Node → its GPUs."""


def make_active(
    name: str,
    replicas: int = 1,
    *,
    held: tuple[str, ...] = (),
    trains: Application = SHORT,
    service: float = 0.0,
) -> ActiveJob:
    """A job whose user asks for this number of replicas. Two replicas make the best use of its batch."""
    spec = WorkloadJob(name, 0.0, trains.name, replicas, 40)
    return ActiveJob(spec, trains, epoch=0, age=60.0, attained_service=service, restarts=0, held=held)


@dataclass(frozen=True)
class Decision:
    """What a policy gives to jobs, in the simulator.

    Attributes:
        promise: what the decision shows, as a sentence.
        jobs: in the order of the workload.
        gives: job → the nodes of its replicas; without jobs that get nothing.
        nodes: node → GPUs.
    """

    promise: str
    jobs: tuple[ActiveJob, ...]
    gives: Mapping[str, list[str]]
    nodes: Mapping[str, int] = field(default_factory=lambda: NODES)

    def ask(self, policy: str) -> dict[str, list[str]]:
        """The policy's answer. Jobs that run have measured one step."""
        scheduler = simulated_policy(policy).make(SchedulerInputs())
        for job in self.jobs:
            agent, placement = scheduler.agent(job.spec, job.application), tuple(Counter(job.held).values())
            if placement:
                split = agent.split(placement)
                step = job.application.step_time(placement, split.local_bsz)
                gradient = job.application.gradient(split.batch_size(sum(placement)), job.epoch)
                agent.observe(TrainingMeasurement(placement, split, step, gradient))
        answer = scheduler.schedule(self.jobs, self.nodes)
        return {name: list(places) for name, places in answer.items() if places}


@dataclass(frozen=True)
class PolicyCases:
    """The cases of one policy.

    Attributes:
        digest: of the simulated day; ``python -m tests.unit.simulator.fixed_day <policy>`` prints it.
        decisions: whom the policy prefers.
    """

    digest: str
    decisions: tuple[Decision, ...]


NEW_JOB_OF_A_KNOWN_APPLICATION = (
    make_active("a", 4, held=("n0", "n0"), trains=LONG),
    make_active("b", 4, trains=LONG),
)
LONG_AND_SHORT = (make_active("a", 4, held=("n0",), trains=LONG), make_active("b", 4, held=("n0",)))
SHORTEST_FIRST = Decision(
    "The GPU that is left goes to the job with less work left.",
    LONG_AND_SHORT,
    {"a": ["n0"], "b": ["n0", "n0"]},
    {"n0": 3},
)

POLICY_CASES: dict[str, PolicyCases] = {
    "fit": PolicyCases(
        digest="da7897a1e5d63b9f",
        decisions=(
            Decision(
                "Free GPUs go to the jobs in turn, up to what each of them asks for.",
                (make_active("a", 8, held=("n0",)), make_active("b", 2)),
                {"a": ["n0", "n0", "n1", "n1", "n1", "n1"], "b": ["n0", "n0"]},
            ),
        ),
    ),
    "pollux": PolicyCases(
        digest="281876efce4fd970",
        decisions=(
            Decision(
                "A job starts with one GPU, whatever others of its application have measured.",
                NEW_JOB_OF_A_KNOWN_APPLICATION,
                {"a": ["n0", "n0", "n0", "n0"], "b": ["n1"]},
            ),
            Decision(
                "The work left does not count.",
                LONG_AND_SHORT,
                {"a": ["n0", "n0"], "b": ["n0"]},
                {"n0": 3},
            ),
        ),
    ),
    "shortest": PolicyCases(digest="8e540928824a4845", decisions=(SHORTEST_FIRST,)),
    "pollux-history": PolicyCases(
        digest="979f4489667a9986",
        decisions=(
            Decision(
                "A new job gets as many GPUs as the measurements of its application justify.",
                NEW_JOB_OF_A_KNOWN_APPLICATION,
                {"a": ["n0", "n0", "n0", "n0"], "b": ["n1", "n1"]},
            ),
        ),
    ),
    "shortest-history": PolicyCases(
        digest="ef76a7dcedc202a9",
        decisions=(
            SHORTEST_FIRST,
            Decision(
                "A new job gets as many GPUs as the measurements of its application justify.",
                NEW_JOB_OF_A_KNOWN_APPLICATION,
                {"a": ["n0", "n0", "n0", "n0"], "b": ["n1", "n1"]},
            ),
        ),
    ),
    "fulfilment": PolicyCases(
        digest="331f2e719b0836a7",
        decisions=(
            Decision(
                "Free GPUs go to the job that has the smallest share of what it asks for.",
                (make_active("a", 8, held=("n0", "n0")), make_active("b", 4)),
                {"a": ["n0", "n0", "n1", "n1", "n1"], "b": ["n0", "n0", "n1"]},
            ),
        ),
    ),
    "tiresias": PolicyCases(
        digest="9eb776938e570d5a",
        decisions=(
            Decision(
                "Jobs at the head of the queue get all that they ask for; one that does not fit is skipped.",
                (make_active("a", 4), make_active("b", 5), make_active("c", 2)),
                {"a": ["n0"] * 4, "c": ["n1"] * 2},
            ),
            Decision(
                "Running jobs keep their nodes, and new jobs get the emptiest ones.",
                (make_active("a", 2, held=("n0", "n0")), make_active("b", 5)),
                {"a": ["n0", "n0"], "b": ["n1"] * 4 + ["n0"]},
            ),
            Decision(
                "A job with 16 GPU hours moves to the second queue, and is preempted if there is no room.",
                (
                    make_active("a", 8, held=("n0",) * 4 + ("n1",) * 4, service=QUEUE_THRESHOLD),
                    make_active("b", 1),
                ),
                {"b": ["n0"]},
            ),
        ),
    ),
    "optimus": PolicyCases(
        digest="22739a82555db886",
        decisions=(
            Decision(
                "The remaining GPU goes to the job with more work left.",
                (make_active("a"), make_active("b", trains=LONG)),
                {"a": ["n0"], "b": ["n0", "n0"]},
                {"n0": 3},
            ),
            Decision(
                "A job gets no more GPUs than make it faster.",
                (make_active("a"),),
                {"a": ["n0", "n0"]},
            ),
            Decision(
                "A job whose number of replicas does not change keeps its nodes.",
                (make_active("a", held=("n1", "n1")),),
                {"a": ["n1", "n1"]},
            ),
            Decision(
                "Of more jobs than GPUs, the first jobs in the workload get one GPU each.",
                tuple(make_active(str(number)) for number in range(10)),
                {str(number): [f"n{number % 2}"] for number in range(8)},
            ),
        ),
    ),
}
