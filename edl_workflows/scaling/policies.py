"""The policies by name: a new one is a module of this package and one row here."""

from collections.abc import Callable, Mapping
from types import MappingProxyType

from edl_workflows.exceptions import InvalidError
from edl_workflows.scaling.fit import FitPolicy
from edl_workflows.scaling.policy import Policy

POLICIES: Mapping[str, Callable[[], Policy]] = MappingProxyType({"fit": FitPolicy})


def policy_of(name: str) -> Policy:
    """The policy of this name.

    Raises:
        InvalidError: there is none.
    """
    make = POLICIES.get(name)
    if make is None:
        raise InvalidError(f"no allocation policy {name!r}; known are {', '.join(sorted(POLICIES))}")
    return make()
