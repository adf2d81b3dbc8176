"""Train on the digits with NumPy in several workers:
``edl run own_script_workers.py --max-workers 2``."""

import socket
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.training import connect, open_store
from edl_workflows.training.collective import (
    Dataset,
    Place,
    Reduced,
    Saving,
    State,
    Wishes,
    training,
)

EPOCHS, RATE, PAUSE, SIZE = 40, 0.1, 0.05, 64 * 10
data = load_digits()
images, labels = data.data / 16.0, data.target


class Digits:
    """The model, and how the workers train it together: rank 0 sums what all have computed."""

    def join(self, place: Place) -> None:
        """Build the model, and connect the other workers to rank 0."""
        self.rank, self.weights = place.rank, np.zeros(SIZE)
        host, _, port = place.addresses[0].rpartition(":")
        links: list[socket.socket] = []
        if self.rank == 0:
            with socket.create_server((host, int(port))) as server:
                links = [server.accept()[0] for _ in range(place.size - 1)]
        while self.rank > 0 and not links:
            try:
                links = [socket.create_connection((host, int(port)))]
            except OSError:  # rank 0 does not listen yet
                time.sleep(0.1)
        self.links = [(link, link.makefile("rb")) for link in links]

    def sum(self, mine: np.ndarray) -> np.ndarray:
        """The sum of what all workers give: they send it to rank 0, which sends them the sum."""
        try:
            if self.rank > 0:
                self.links[0][0].sendall(mine.tobytes())
            others = [
                np.frombuffer(stream.read(mine.nbytes), count=len(mine)) for _, stream in self.links
            ]
            if self.rank > 0:
                return others[0]
            total = sum(others, mine)
            for link, _ in self.links:
                link.sendall(total.tobytes())
        except (OSError, ValueError) as error:  # a worker is gone
            for link, stream in self.links:  # the others must not wait for this one
                stream.close()
                link.close()
            raise UnavailableError(f"rank {self.rank} lost a worker: {error}") from error
        return total

    def step(self, mini_batches: Sequence[Any], wishes: Wishes) -> Reduced:
        """Sum the gradients of all workers, with losses, records and wishes; then update once."""
        mine = np.zeros(SIZE + 4)
        for x, y in mini_batches:
            likely = np.exp(x @ self.weights.reshape(64, 10))
            likely /= likely.sum(axis=1, keepdims=True)
            loss = -np.log(likely[np.arange(len(y)), y]).sum()
            mine += [*(x.T @ (likely - np.eye(10)[y])).ravel(), loss, len(y), 0, 0]
        mine[-2:] = wishes.drain, wishes.leave
        *gradient, loss, records, drain, leave = self.sum(mine)
        self.weights = self.weights - RATE * np.array(gradient) / records
        return Reduced(loss / records, Wishes(drain, leave))

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        """Give rank 0's weights and numbers to all: their sum with zeros."""
        total = self.sum(np.append(self.weights, numbers) * (self.rank == 0))
        self.weights = total[:SIZE]
        return [int(number) for number in total[SIZE:]]

    def meet(self) -> None:
        """Wait for all workers."""
        self.sum(np.zeros(1))

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        """What is saved."""
        return State.of(step, {"weights": self.weights}, metadata)

    def load(self, tensors: Mapping[str, np.ndarray]) -> None:
        """Continue from what was saved."""
        self.weights = tensors["weights"].copy()


job = connect()
dataset = Dataset(len(labels), batch_size=32, num_epochs=EPOCHS)
with training(job, Digits(), dataset, Saving(open_store(job.checkpoint_dir), 10)) as world:
    for mini_batches in world:
        step, loss = world.step([(images[list(i)], labels[list(i)]) for i in mini_batches])
        if world.rank == 0 and step % 50 == 0:
            print(f"step {step}, {world.size} workers, loss {loss:.3f}", flush=True)
        time.sleep(PAUSE)
