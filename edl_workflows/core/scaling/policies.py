"""The registry of live policies. The controller, the simulator, the command line and the reference pages read
it. Policies that only the simulator has are in `edl_workflows.simulator.schedulers.catalog`.

A new policy is one module and one row of `POLICIES`. Rows name their class as ``module:class``, so that
reading the registry imports no policy: a controller with first-fit does not need numpy in memory.
"""

import pkgutil
from collections.abc import Iterable
from dataclasses import dataclass

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policy import Policy


@dataclass(frozen=True)
class PolicyEntry:
    """A row of a registry.

    Attributes:
        name: as users write it.
        summary: what the policy does, for help texts and the reference: a clause without a full stop.
    """

    name: str
    summary: str


@dataclass(frozen=True)
class LivePolicy(PolicyEntry):
    """A policy for live clusters.

    Attributes:
        location: the class of the `Policy`, as ``module:class``.
    """

    location: str

    def load(self) -> Policy:
        """A new policy."""
        policy: Policy = pkgutil.resolve_name(self.location)()
        return policy


POLICIES = (
    LivePolicy(
        "fit",
        "first-fit, looks at requests alone and changes as little as possible",
        "edl_workflows.core.scaling.first_fit:FirstFitPolicy",
    ),
    LivePolicy(
        "pollux",
        "the highest goodput of all jobs together, shared fairly, by what jobs report",
        "edl_workflows.core.scaling.pollux.policy:PolluxPolicy",
    ),
    LivePolicy(
        "shortest",
        "like pollux, but jobs with the least work left are preferred, for a shorter mean completion time",
        "edl_workflows.core.scaling.pollux.policy:ShortestFirstPolicy",
    ),
)


def policy_of(name: str) -> Policy:
    """A new policy for a live cluster.

    Raises:
        InvalidError: there is none of this name.
    """
    for entry in POLICIES:
        if entry.name == name:
            return entry.load()
    raise InvalidError(f"live clusters have no policy {name!r}; use one of {policy_names(POLICIES)}")


def policy_help(entries: Iterable[PolicyEntry]) -> str:
    """The entries as sentences of a help text."""
    return " ".join(f"{entry.name}: {entry.summary}." for entry in entries)


def policy_names(entries: Iterable[PolicyEntry]) -> str:
    """The names of the entries, for error messages."""
    return ", ".join(entry.name for entry in entries)
