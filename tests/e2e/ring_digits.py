"""A training program of a collective job without any framework: softmax regression in numpy, gradients summed
over a ring."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[2]))

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training import CheckpointStore, connect
from edl_workflows.training.checkpoints.tensors import State
from edl_workflows.training.collective.framework import Reduced, Saving, Wishes
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.collective.world import training
from edl_workflows.training.data.sampler import Dataset
from tests.e2e.noted_steps import make_parser, train_and_note
from tests.e2e.ring import Floats, Ring

PIXELS, CLASSES = 64, 10
RATE, MOMENTUM = 0.1, 0.9


@dataclass(frozen=True)
class Batch:
    """A mini-batch: images and their labels."""

    images: Floats
    labels: Any


def digits() -> Batch:
    """All of scikit-learn's bundled digits."""
    # Who only collects the tests does not wait for scikit-learn.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    return Batch(bunch.data / 16.0, bunch.target)


class SoftmaxRegression:
    """The adapter: model, momentum and the ring, all in numpy."""

    def __init__(self) -> None:
        self.weights = np.zeros((PIXELS + 1) * CLASSES)
        self.momentum = np.zeros_like(self.weights)

    def join(self, place: Place) -> None:
        """Form the ring."""
        self.ring = Ring(place)
        self.meet()

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        """Weights and momentum."""
        return State.of(step, {"weights": self.weights, "momentum": self.momentum}, metadata)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Take them over."""
        try:
            self.weights, self.momentum = tensors["weights"].copy(), tensors["momentum"].copy()
        except KeyError as error:
            raise CheckpointError(f"the checkpoint is of another model: it has no {error}") from error

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        """Rank 0's to all."""
        self.weights, self.momentum, sent = (
            self.ring.broadcast(array) for array in (self.weights, self.momentum, np.array(numbers, float))
        )
        return [int(number) for number in sent]

    def step(self, mini_batches: Sequence[Batch], wishes: Wishes) -> Reduced:
        """One step of stochastic gradient descent with momentum."""
        mine = np.zeros(len(self.weights) + 4)
        for batch in mini_batches:
            gradient, loss = gradients(self.weights, batch)
            mine += np.concatenate([gradient, [loss, len(batch.labels), 0.0, 0.0]])
        mine[-2:] = wishes.drain, wishes.leave
        *_, loss, records, drain, leave = reduced = self.ring.all_reduce(mine)
        self.momentum = MOMENTUM * self.momentum + reduced[:-4] / records
        self.weights = self.weights - RATE * self.momentum
        return Reduced(loss / records, Wishes(drain, leave))

    def meet(self) -> None:
        """Sum something."""
        self.ring.all_reduce(np.zeros(1))


def gradients(weights: Floats, batch: Batch) -> tuple[Floats, float]:
    """Sum over the records of the gradient and of the cross entropy."""
    images = np.hstack([batch.images, np.ones((len(batch.images), 1))])
    scores = images @ weights.reshape(PIXELS + 1, CLASSES)
    scores = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    likely = scores / scores.sum(axis=1, keepdims=True)
    rows = np.arange(len(batch.labels))
    loss = -np.log(likely[rows, batch.labels]).sum()
    likely[rows, batch.labels] -= 1.0
    return (images.T @ likely).ravel(), float(loss)


def main() -> None:
    """Train and note the records of each step."""
    parser = make_parser(__doc__)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--save-seconds", type=float, default=3.0)
    parser.add_argument("--memory-seconds", type=float)
    parser.add_argument("--replicate", action="store_true")
    options = parser.parse_args()
    job = connect()
    data = digits()
    saving = Saving(
        CheckpointStore(options.folder / "checkpoints"),
        options.save_seconds,
        options.memory_seconds,
        options.replicate,
    )
    dataset = Dataset(len(data.labels), options.batch_size, options.epochs)
    with training(job, SoftmaxRegression(), dataset, saving) as world:
        train_and_note(job, world, lambda i: Batch(data.images[i], data.labels[i]), options)


if __name__ == "__main__":
    main()
