"""The registry of policies that can be simulated. `edl simulate` and the reference page read it.

Live policies come first. They run unchanged, unless `_ADAPTIVE` has a scheduler for them, whose jobs also
choose their batches. A policy for the simulator only is one module and one row of `SCHEDULERS`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policies import POLICIES, LivePolicy, PolicyEntry, policy_names
from edl_workflows.simulator.schedulers.optimus import OptimusScheduler
from edl_workflows.simulator.schedulers.pollux import (
    PolluxHistoryScheduler,
    PolluxScheduler,
    ShortestFirstHistoryScheduler,
    ShortestFirstScheduler,
)
from edl_workflows.simulator.schedulers.scheduler import (
    FulfilmentScheduler,
    JobScheduler,
    PolicyScheduler,
    SchedulerInputs,
)
from edl_workflows.simulator.schedulers.tiresias import TiresiasScheduler

SchedulerFactory = Callable[[SchedulerInputs], JobScheduler]


@dataclass(frozen=True)
class SimulatedPolicy(PolicyEntry):
    """A policy that can be simulated.

    Attributes:
        make: makes the scheduler of a run.
        rigid: whether a job gets all the GPUs that it asks for, or none.
    """

    make: SchedulerFactory
    rigid: bool = False


_ADAPTIVE: Mapping[str, SchedulerFactory] = {"pollux": PolluxScheduler, "shortest": ShortestFirstScheduler}


def _simulate_live(policy: LivePolicy) -> SimulatedPolicy:
    make = _ADAPTIVE.get(policy.name) or (lambda _: PolicyScheduler(policy.load()))
    return SimulatedPolicy(policy.name, policy.summary, make)


SCHEDULERS = (
    *map(_simulate_live, POLICIES),
    SimulatedPolicy(
        "pollux-history",
        "like pollux, but a job knows from earlier jobs of its application how its steps scale",
        PolluxHistoryScheduler,
    ),
    SimulatedPolicy(
        "shortest-history",
        "like shortest, with the knowledge of pollux-history",
        ShortestFirstHistoryScheduler,
    ),
    SimulatedPolicy(
        "fulfilment",
        "the cluster autoscaler's planner: free GPUs go to the least fulfilled job",
        FulfilmentScheduler,
    ),
    SimulatedPolicy(
        "tiresias",
        "all GPUs that a job asks for, or none; the jobs with the least GPU time so far come first",
        TiresiasScheduler,
        rigid=True,
    ),
    SimulatedPolicy(
        "optimus",
        "the next GPU goes to the job that it saves the most time, by an oracle that knows all durations",
        OptimusScheduler,
    ),
)


def simulated_policy(name: str) -> SimulatedPolicy:
    """The row of this name.

    Raises:
        InvalidError: there is none.
    """
    for entry in SCHEDULERS:
        if entry.name == name:
            return entry
    raise InvalidError(f"there is no policy {name!r}; use one of {policy_names(SCHEDULERS)}")
