"""A training program of a collective job without any framework: all members count the records of all, summed
over a ring."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edl_workflows.core.kubernetes import names
from edl_workflows.training import Job, addresses, connect
from edl_workflows.training.checkpoints.tensors import State, TensorSpec
from edl_workflows.training.collective.framework import Reduced, Saving, Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.collective.world import training
from edl_workflows.training.data.sampler import Dataset
from tests.e2e.counting import COUNTS, EPOCHS, RECORDS, SAVE_SECONDS, Program, key, nothing
from tests.e2e.ring import Ring

BATCH = 5


class Counting:
    """The adapter. A mini-batch is the places of its records in the model."""

    def __init__(self, program: Program, job: Job) -> None:
        self._program, self._job = program, job
        self.counts = nothing().astype(np.float64)

    def join(self, place: Place) -> None:
        """Form the ring."""
        self._program.prepares(self._job)
        host, port = addresses.listen(names.NODE_PORTS[names.WORKER_TYPE][place.version % 2])
        members = list(place.addresses)
        members[place.rank] = (
            f"{host}:{port}"  # in a pod: any interface, whatever its name resolves to by now
        )
        self.ring = Ring(replace(place, addresses=tuple(members)))
        self.meet()

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        """The counts; the copy may be held when half of it is made."""

        def fill(into: Mapping[str, Any]) -> None:
            half = len(self.counts) // 2
            into[COUNTS][:half] = self.counts[:half]
            self._program.at("save", self._job)
            into[COUNTS][half:] = self.counts[half:]

        return State(step, {COUNTS: TensorSpec(self.counts.dtype, self.counts.shape)}, fill, metadata)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Take them over."""
        self.counts = tensors[COUNTS].copy()

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        """Rank 0's to all."""
        self.counts = self.ring.broadcast(self.counts)
        return [int(number) for number in self.ring.broadcast(np.array(numbers, float))]

    def step(self, mini_batches: Sequence[Sequence[int]], wishes: Wishes) -> Reduced:
        """Count the records of all members."""
        mine = np.zeros(len(self.counts) + 2)
        for keys in mini_batches:
            np.add.at(mine, list(keys), 1.0)
        mine[-2:] = wishes.drain, wishes.leave
        *_, drain, leave = reduced = self.ring.all_reduce(mine)
        self.counts = self.counts + reduced[:-2]
        return Reduced(0.0, Wishes(drain, leave))

    def meet(self) -> None:
        """Sum something."""
        self.ring.all_reduce(np.zeros(1))


def main() -> None:
    """Train."""
    program, job = Program(), connect()
    saving = Saving(program.store, SAVE_SECONDS)
    dataset = Dataset(RECORDS, BATCH, EPOCHS)
    with training(job, Counting(program, job), dataset, saving) as world:
        for mini_batches in world:
            world.step([[key(world.epoch, record) for record in batch] for batch in mini_batches])
            program.pace.rest()
        program.at("end", job)


if __name__ == "__main__":
    main()
