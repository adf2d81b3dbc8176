"""Speed-up tables: the speed of a job by its number of replicas, on one node and on several."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import isfinite

import numpy as np

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.pollux.goodput import GoodputModel


@dataclass(frozen=True)
class SpeedupTable:
    """The speed of a job by its number of replicas, in any unit, since only ratios matter.

    Attributes:
        local: index is replicas, all on one node; [0] is 0.
        spread: the same on several nodes; as long as `local`.

    Raises:
        InvalidError: a value is negative or not a number, or the lists differ in length.
    """

    local: tuple[float, ...]
    spread: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.local) != len(self.spread) or len(self.local) < 2:
            raise InvalidError(
                "a speed-up table has a value for 0, 1, … replicas, on one node and on several"
            )
        if any(not isfinite(value) or value < 0 for value in (*self.local, *self.spread)):
            raise InvalidError("a speed-up table has numbers from 0 up; fit the job's parameters again")

    @property
    def max_replicas(self) -> int:
        """The most replicas that the table has."""
        return len(self.local) - 1

    @classmethod
    def linear(cls, max_replicas: int) -> "SpeedupTable":
        """The table of a job that scales linearly, as is assumed without reports."""
        values = tuple(float(count) for count in range(max(max_replicas, 1) + 1))
        return cls(values, values)

    @classmethod
    def of(cls, model: GoodputModel, max_replicas: int) -> "SpeedupTable":
        """Goodput with the best batch for each number of replicas, relative to one replica.

        If no batch is allowed with one replica, the values are useful samples per second.
        """
        replicas = np.arange(1, max(max_replicas, 1) + 1)
        nodes = np.stack([np.ones_like(replicas), np.minimum(replicas, 2)])  # one node or several
        goodput = model.best(nodes, replicas).goodput
        base = goodput[0, 0] if goodput[0, 0] > 0 else 1.0
        local, spread = ((0.0, *speedups) for speedups in (goodput / base).tolist())
        return cls(local, spread)


class SpeedupTables:
    """A cache of the jobs' tables; a table is made again only if its model has changed."""

    def __init__(self) -> None:
        self._tables: dict[str, tuple[GoodputModel, int, SpeedupTable]] = {}

    def tables(self, models: Mapping[str, tuple[GoodputModel, int]]) -> dict[str, SpeedupTable]:
        """A table for each job; tables of other jobs are dropped.

        Args:
            models: job → its goodput model, and its most replicas.
        """
        kept = {key: self._tables[key] for key in models if key in self._tables}
        for key, (model, most) in models.items():
            if key not in kept or kept[key][:2] != (model, most):
                kept[key] = (model, most, SpeedupTable.of(model, most))
        self._tables = kept
        return {key: table for key, (_, _, table) in kept.items()}
