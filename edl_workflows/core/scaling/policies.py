"""The registry of policies. The controller, the simulator, the command line and the reference pages read it.

A new policy is one module and one row of `POLICIES`. Rows name their code as ``module:attribute``, so that
reading the registry imports no policy: a controller with another policy does not need numpy in memory.
"""

import pkgutil
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policy import Policy


@dataclass(frozen=True)
class PolicyEntry:
    """A row of the registry.

    Attributes:
        name: as users write it. summary: what the policy does, for help texts and the reference: a clause
        without a full stop. policy: names what makes the `Policy` for a live cluster; "" for a policy that
        only the simulator has. scheduler: names what makes the simulator's scheduler
        (`edl_workflows.simulator.schedulers.scheduler`); if it is "", the simulator runs `policy` itself.
        rigid: whether the simulator's scheduler gives a job all the GPUs that it asks for, or none.
    """

    name: str
    summary: str
    policy: str = ""
    scheduler: str = ""
    rigid: bool = False

    def load_policy(self) -> Policy:
        """A new policy, for an entry that has one."""
        made: Policy = pkgutil.resolve_name(self.policy)()
        return made

    def load_scheduler(self) -> Any:
        """What makes the simulator's scheduler, for an entry that has one."""
        return pkgutil.resolve_name(self.scheduler)


_SCALING, _SIMULATOR = "edl_workflows.core.scaling", "edl_workflows.simulator.schedulers"

POLICIES = (
    PolicyEntry(
        "fit",
        "first-fit, looks at requests alone and changes as little as possible",
        policy=f"{_SCALING}.first_fit:FirstFitPolicy",
    ),
    PolicyEntry(
        "pollux",
        "the highest goodput of all jobs together, shared fairly, by what jobs report",
        policy=f"{_SCALING}.pollux.policy:PolluxPolicy",
        scheduler=f"{_SIMULATOR}.pollux:PolluxScheduler",
    ),
    PolicyEntry(
        "shortest",
        "like pollux, but jobs with the least work left are preferred, for a shorter mean completion time",
        policy=f"{_SCALING}.pollux.policy:ShortestFirstPolicy",
        scheduler=f"{_SIMULATOR}.pollux:ShortestFirstScheduler",
    ),
    PolicyEntry(
        "pollux-history",
        "like pollux, but a job knows from earlier jobs of its application how its steps scale",
        scheduler=f"{_SIMULATOR}.pollux:PolluxHistoryScheduler",
    ),
    PolicyEntry(
        "shortest-history",
        "like shortest, with the knowledge of pollux-history",
        scheduler=f"{_SIMULATOR}.pollux:ShortestFirstHistoryScheduler",
    ),
    PolicyEntry(
        "fulfilment",
        "the cluster autoscaler's planner: free GPUs go to the least fulfilled job",
        scheduler=f"{_SIMULATOR}.scheduler:FulfilmentScheduler",
    ),
    PolicyEntry(
        "tiresias",
        "all GPUs that a job asks for, or none; the jobs with the least GPU time so far come first",
        scheduler=f"{_SIMULATOR}.tiresias:TiresiasScheduler",
        rigid=True,
    ),
    PolicyEntry(
        "optimus",
        "the next GPU goes to the job that it saves the most time, by an oracle that knows all durations",
        scheduler=f"{_SIMULATOR}.optimus:OptimusScheduler",
    ),
)


def live_policies() -> tuple[PolicyEntry, ...]:
    """The policies that a controller can use."""
    return tuple(entry for entry in POLICIES if entry.policy)


def policy_entry(name: str) -> PolicyEntry:
    """The row of this name.

    Raises:
        InvalidError: there is none.
    """
    for entry in POLICIES:
        if entry.name == name:
            return entry
    raise InvalidError(f"there is no policy {name!r}; use one of {_names(POLICIES)}")


def policy_of(name: str) -> Policy:
    """A new policy for a live cluster.

    Raises:
        InvalidError: there is none of this name, or only the simulator has it.
    """
    entry = policy_entry(name)
    if not entry.policy:
        raise InvalidError(
            f"policy {name} exists in the simulator only; use one of {_names(live_policies())}"
        )
    return entry.load_policy()


def policy_help(entries: tuple[PolicyEntry, ...]) -> str:
    """The entries as sentences of a help text."""
    return " ".join(f"{entry.name}: {entry.summary}." for entry in entries)


def _names(entries: tuple[PolicyEntry, ...]) -> str:
    return ", ".join(entry.name for entry in entries)
