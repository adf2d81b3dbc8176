"""Which namespaces of a cluster a process or an installation serves: some by name, those with labels, or
all."""

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes.label_selector import LabelRequirement, parse_selector

MAX_NAMES = 16
"""Most namespaces that are served by name. Each has watches of its own, ten or more, each with a thread and a
connection."""
NAME_LABEL = "kubernetes.io/metadata.name"
"""The label with a namespace's name, which the API server sets."""

_NAME = re.compile(r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_LABEL_KEY = re.compile(
    r"^([a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?\Z"
)
_LABEL_VALUE = re.compile(r"^([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")
_COMPARISONS = frozenset({"Gt", "Lt"})


def is_namespace(name: str) -> bool:
    """Whether a name can be that of a namespace."""
    return _NAME.match(name) is not None


def check_labels(option: str, labels: Mapping[str, str]) -> None:
    """Check that pods or namespaces can have these labels.

    Args:
        option: where they come from, for the message.
        labels: the labels.

    Raises:
        InvalidError: they can't.
    """
    for key, value in labels.items():
        if not _LABEL_KEY.match(key):
            raise InvalidError(f"{option}: {key!r} is not a label")
        if not _LABEL_VALUE.match(value):
            raise InvalidError(f"{option}: {value!r} can't be the value of a label")


def check_namespace(option: str, name: str) -> None:
    """Check that a name can be that of a namespace.

    Args:
        option: where the name comes from, for the message.
        name: the name.

    Raises:
        InvalidError: it can't.
    """
    if not is_namespace(name):
        raise InvalidError(
            f"{option} {name!r} is not a valid namespace: use lower-case letters, digits and '-'"
        )


@dataclass(frozen=True)
class NamespaceSelection:
    """The namespaces. Without names and selector, all.

    Attributes:
        names: these namespaces only.
        selector: only the namespaces whose labels it selects, while it does, as kubectl's ``-l``.

    Raises:
        InvalidError: a name or the selector is invalid, a name is repeated, there are too many names, or
            both are given.
    """

    names: tuple[str, ...] = ()
    selector: str = ""

    def __post_init__(self) -> None:
        if self.names and self.selector:
            raise InvalidError(
                f"namespaces by name ({', '.join(self.names)}) and by labels ({self.selector}): choose one "
                "of the two, or label the named ones"
            )
        for name in self.names:
            check_namespace("jobs namespace", name)
        if repeated := [name for name, count in Counter(self.names).items() if count > 1]:
            raise InvalidError(f"jobs namespace {repeated[0]!r} is given twice: name each namespace once")
        if len(self.names) > MAX_NAMES:
            raise InvalidError(
                f"{len(self.names)} jobs namespaces: at most {MAX_NAMES} can be served by name. Label them, "
                "and select them by the label"
            )
        if self.selector:
            _parse(self.selector)

    @classmethod
    def of(cls, name: str) -> "NamespaceSelection":
        """The namespace of this name, or all for ""."""
        return cls((name,) if name else ())

    @property
    def is_everything(self) -> bool:
        """Whether all namespaces are served."""
        return not self.names and not self.selector

    @property
    def scopes(self) -> tuple[str, ...]:
        """The namespaces to list and to watch; "" stands for all. With a selector it is all, because
        permissions and requests can't name namespaces by their labels."""
        return self.names or ("",)

    @property
    def match(self) -> dict[str, Any]:
        """The same as a selector of namespaces in a manifest; {} for all."""
        if len(self.names) == 1:
            return {"matchLabels": {NAME_LABEL: self.names[0]}}
        requirements = _parse(self.selector) if self.selector else []
        if self.names:
            requirements = [LabelRequirement(NAME_LABEL, "In", tuple(sorted(self.names)))]
        expressions = [requirement.manifest for requirement in requirements]
        return {"matchExpressions": expressions} if expressions else {}

    def __str__(self) -> str:
        return ", ".join(self.names) or self.selector or "(all)"


def _parse(selector: str) -> list[LabelRequirement]:
    try:
        requirements = parse_selector(selector)
    except InvalidError as error:
        raise InvalidError(f"jobs namespace selector {selector!r}: {error}") from None
    problem = "" if requirements else "it selects every namespace: leave it out"
    for requirement in requirements:
        if requirement.operator in _COMPARISONS:
            problem = "namespaces can't be selected by a comparison: use =, !=, in, notin or the key alone"
        elif not _LABEL_KEY.match(requirement.key):
            problem = f"{requirement.key!r} is not a label"
        elif invalid := [value for value in requirement.values if not _LABEL_VALUE.match(value)]:
            problem = f"{invalid[0]!r} can't be the value of a label"
    if problem:
        raise InvalidError(f"jobs namespace selector {selector!r}: {problem}")
    return requirements
