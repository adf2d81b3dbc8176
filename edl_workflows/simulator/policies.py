"""The schedulers by name: a new one is a module of this package and one row here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.first_fit import FirstFitPolicy
from edl_workflows.scaling.pollux.model import SHORTEST_FIRST
from edl_workflows.simulator.fulfilment import FulfilmentScheduler
from edl_workflows.simulator.optimus import OptimusScheduler
from edl_workflows.simulator.pollux import PolluxScheduler, SharedFits
from edl_workflows.simulator.scheduler import JobScheduler, PolicyScheduler
from edl_workflows.simulator.tiresias import TiresiasScheduler

_Make = Callable[[Mapping[str, int], SharedFits], JobScheduler]

POLICIES: Mapping[str, _Make] = MappingProxyType(
    {
        "pollux": lambda most_replicas, fits: PolluxScheduler(most_replicas=most_replicas, fits=fits),
        "shortest": lambda most_replicas, fits: PolluxScheduler(SHORTEST_FIRST, most_replicas, fits),
        "pollux-history": lambda most_replicas, fits: PolluxScheduler(
            None, most_replicas, fits, history=True
        ),
        "shortest-history": lambda most_replicas, fits: PolluxScheduler(
            SHORTEST_FIRST, most_replicas, fits, history=True
        ),
        "tiresias": lambda _most, _fits: TiresiasScheduler(),
        "optimus": lambda most_replicas, _fits: OptimusScheduler(most_replicas),
        "fulfilment": lambda _most, _fits: FulfilmentScheduler(),
        "fit": lambda _most, _fits: PolicyScheduler(FirstFitPolicy()),
    }
)
"""Policy → a new scheduler for one run, from what limits applications' replicas and from fits that runs share."""

RIGID = frozenset({"tiresias"})
"""Policies that give a job all the GPUs that it asks for, or none."""


def scheduler_of(name: str, most_replicas: Mapping[str, int], fits: SharedFits) -> JobScheduler:
    """A new scheduler for one run.

    Args:
        name: of the policy.
        most_replicas: application → the most replicas that its jobs get.
        fits: shared by the runs of a process, so that none fits what another has.

    Raises:
        InvalidError: there is no such policy.
    """
    make = POLICIES.get(name)
    if make is None:
        raise InvalidError(f"no policy {name!r} in the simulator; known are {', '.join(sorted(POLICIES))}")
    return make(most_replicas, fits)
