"""A whole adapter for collective training with another framework: NumPy, and sums over
plain sockets, in one file.

Run by the agent in each worker of a job with
``distributionStrategy: AllreduceStrategy``: ``edl agent run -- python
train_digits_sockets.py --checkpoint-dir DIR``. Rank 0 collects and sums; a real
framework brings an all-reduce that takes less time.
"""

import argparse
import contextlib
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from edl_workflows.core.exceptions import CheckpointError, UnavailableError
from edl_workflows.training import CheckpointStore, connect
from edl_workflows.training.collective import (
    Dataset,
    Place,
    Reduced,
    Saving,
    State,
    Wishes,
    training,
)

PIXELS, CLASSES, RATE = 64, 10, 0.1
CONNECT_SECONDS = 60.0


class Group:
    """The members of a cluster version. Rank 0 has a connection to each other member."""

    def __init__(self, place: Place) -> None:
        self.rank = place.rank
        host, _, port = place.addresses[0].rpartition(":")
        hello = np.array([place.version, place.rank], float)
        if self.rank == 0:
            with socket.create_server((host, int(port))) as server:
                server.settimeout(CONNECT_SECONDS)
                self.links = _accept_members(server, place)
        else:
            self.links = [_connect((host, int(port)))]
            self.links[0].sendall(hello.tobytes())

    def sum(self, array: np.ndarray) -> np.ndarray:
        """The sum of all members' arrays, added in the order of their ranks."""
        try:
            if self.rank == 0:
                total = sum((_receive(link, len(array)) for link in self.links), array)
                for link in self.links:
                    link.sendall(total.tobytes())
                return total
            self.links[0].sendall(array.tobytes())
            return _receive(self.links[0], len(array))
        except OSError as error:
            for link in self.links:  # the others must not wait for us
                link.close()
            raise UnavailableError(f"rank {self.rank} lost its group: {error}") from error


def _accept_members(server: socket.socket, place: Place) -> list[socket.socket]:
    links: dict[int, socket.socket] = {}
    while len(links) < place.size - 1:
        try:
            link, _ = server.accept()
            version, rank = _receive(link, 2)
        except OSError as error:
            raise UnavailableError(
                f"{len(links) + 1} of {place.size} members came: {error}"
            ) from error
        if version == place.version:
            links[int(rank)] = link
    return [links[rank] for rank in sorted(links)]


def _connect(address: tuple[str, int]) -> socket.socket:
    deadline = time.monotonic() + CONNECT_SECONDS
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):  # rank 0 does not listen yet
            link = socket.create_connection(address, timeout=CONNECT_SECONDS)
            link.settimeout(None)
            return link
        time.sleep(0.05)
    raise UnavailableError(f"nobody listens on {address[0]}:{address[1]}")


def _receive(link: socket.socket, count: int) -> np.ndarray:
    content = bytearray()
    while len(content) < count * 8:
        piece = link.recv(count * 8 - len(content))
        if not piece:
            raise ConnectionResetError("a member has closed its connection")
        content += piece
    return np.frombuffer(content)


class SoftmaxRegression:
    """The adapter, which implements `edl_workflows.training.collective.Framework`."""

    def __init__(self) -> None:
        self.weights = np.zeros(PIXELS * CLASSES)

    def join(self, place: Place) -> None:
        """Build the model, form the group, and rehearse."""
        self.group = Group(place)
        self.meet()

    def state(self, step: int, metadata: Mapping[str, str]) -> State:
        """All tensors by name."""
        return State.of(step, {"weights": self.weights}, metadata)

    def load(self, tensors: Mapping[str, Any]) -> None:
        """Load the saved tensors."""
        if "weights" not in tensors:
            raise CheckpointError("the checkpoint is of another model: it has no weights")
        self.weights = tensors["weights"].copy()

    def broadcast(self, numbers: Sequence[int]) -> list[int]:
        """Send rank 0's weights and numbers to all members, as a sum to which the
        others add zeros."""
        mine = np.concatenate([self.weights, np.array(numbers, float)])
        summed = self.group.sum(mine if self.group.rank == 0 else np.zeros_like(mine))
        self.weights = summed[: len(self.weights)].copy()
        return [int(number) for number in summed[len(self.weights) :]]

    def step(self, mini_batches: Sequence[Any], wishes: Wishes) -> Reduced:
        """Sum the gradients of all members, and with them the loss, the records and the
        wishes; update once."""
        mine = np.zeros(len(self.weights) + 4)
        for images, labels in mini_batches:
            gradient, loss = self.gradient(images, labels)
            mine += np.concatenate([gradient, [loss, len(labels), 0.0, 0.0]])
        mine[-2:] = wishes.drain, wishes.leave
        summed = self.group.sum(mine)
        loss, records, drain, leave = summed[-4:]
        self.weights = self.weights - RATE * summed[:-4] / records
        return Reduced(loss / records, Wishes(drain, leave))

    def meet(self) -> None:
        """Wait for all members: a sum is also a barrier."""
        self.group.sum(np.zeros(1))

    def gradient(self, images: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float]:
        """The gradient and the loss, each summed over the records."""
        scores = np.exp(images @ self.weights.reshape(PIXELS, CLASSES))
        likely = scores / scores.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(likely[rows, labels]).sum()
        likely[rows, labels] -= 1.0
        return (images.T @ likely).ravel(), float(loss)


def main() -> None:
    """Train for so many epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    parser.add_argument("--epochs", type=int, default=3, help="default %(default)s")
    options = parser.parse_args()
    job = connect()
    data = load_digits()
    dataset = Dataset(len(data.target), batch_size=32, num_epochs=options.epochs)
    saving = Saving(CheckpointStore(options.checkpoint_dir), every_seconds=60.0)
    with training(job, SoftmaxRegression(), dataset, saving) as world:
        for mini_batches in world:
            batches = [(data.data[list(i)] / 16.0, data.target[list(i)]) for i in mini_batches]
            step, loss = world.step(batches)
            if world.rank == 0:
                print(f"step {step} of {world.size} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
