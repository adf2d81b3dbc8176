"""The policies by name: a new one is a module of this package and one row here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.first_fit import FirstFitPolicy
from edl_workflows.scaling.policy import Policy


def _pollux() -> Policy:
    # Imported where it is chosen: it brings numpy, which a controller with another policy need not hold in memory.
    from edl_workflows.scaling.pollux.policy import PolluxPolicy

    return PolluxPolicy()


def _shortest() -> Policy:
    from edl_workflows.scaling.pollux.model import SHORTEST_FIRST
    from edl_workflows.scaling.pollux.policy import PolluxPolicy

    return PolluxPolicy(SHORTEST_FIRST)


POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType(
    {"fit": FirstFitPolicy, "pollux": _pollux, "shortest": _shortest}
)


def policy_of(name: str) -> Policy:
    """The policy of this name.

    Raises:
        InvalidError: there is none.
    """
    make = POLICIES.get(name)
    if make is None:
        raise InvalidError(f"no allocation policy {name!r}; known are {', '.join(sorted(POLICIES))}")
    return make()
