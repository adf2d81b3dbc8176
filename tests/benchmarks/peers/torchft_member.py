"""A member of TorchFT's training, a replica group of one process:
``python -m tests.benchmarks.peers.torchft_member FOLDER NUMBER MEMBERS``.

As in TorchFT's example ``train_ddp.py``, with its ``DistributedSampler``. The place in the data is that of
the manager's step, so a member that comes back trains what the others train, and loses only the records that
the sampler gave it while it was away. The model counts records as ours does (`tests.e2e.torch_survivor`).
"""

import json
import os
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch.distributed import TCPStore
from torchft import DistributedDataParallel, DistributedSampler, Manager, Optimizer, ProcessGroupGloo

from tests.e2e.torch_survivor import Counted, data
from tests.e2e.turns import BATCH_SIZE, RECORDS

REST_SECONDS = 0.03
"""Between two steps."""


class Counting(Counted):
    """The loss of a batch; the gradient of `seen` counts its records."""

    def forward(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
        seen = self.seen[index]
        losses = torch.nn.functional.cross_entropy(self.layers(x), y, reduction="none")
        return (losses + seen - seen.detach()).mean()


class Member:
    """The model, with TorchFT around it.

    Args:
        number: of the member.
    """

    def __init__(self, number: int) -> None:
        torch.manual_seed(0)
        self.network = Counting()
        self.adam = torch.optim.Adam(self.network.layers.parameters(), 1e-4)
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        self.manager = Manager(
            pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
            load_state_dict=self._load,
            state_dict=self._state,
            min_replica_size=1,
            timeout=timedelta(seconds=20),
            rank=0,
            world_size=1,
            store_addr="127.0.0.1",
            store_port=self._store.port,
            replica_id=f"member_{number}_",
            hostname="127.0.0.1",
        )
        self._model = DistributedDataParallel(self.manager, self.network)
        self._optimizer = Optimizer(self.manager, self.adam)

    def step(self, x: torch.Tensor, y: torch.Tensor, index: torch.Tensor) -> tuple[bool, float]:
        """Whether the step was made, and its loss."""
        before = self.manager.current_step()
        self._optimizer.zero_grad()
        loss = self._model(x, y, index)
        loss.backward()
        self._optimizer.step()
        made = self.manager.current_step() > before
        if made:
            with torch.no_grad():
                self.network.seen += self.network.seen.grad * (BATCH_SIZE * self.manager.num_participants())
        self.network.seen.grad = None
        return made, float(loss.detach())

    def _state(self) -> dict[str, Any]:
        return {"network": self.network.state_dict(), "adam": self.adam.state_dict()}

    def _load(self, saved: dict[str, Any]) -> None:
        self.network.load_state_dict(saved["network"])
        self.adam.load_state_dict(saved["adam"])


def main() -> None:
    """Train, and note each step as `tests.e2e.torch_survivor` does."""
    folder, number, members = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_default_dtype(torch.float64)
    torch.set_num_threads(1)
    (x, y), member = data(), Member(number)
    steps = RECORDS // (BATCH_SIZE * members)
    records = range(steps * BATCH_SIZE * members)
    sampler = DistributedSampler(records, number, members, group_rank=0, num_replicas=1, shuffle=True)
    manager, last = member.manager, folder / "last"
    with (folder / f"turns-worker-{number}-{os.getpid()}").open("w") as file:
        while not last.exists() or manager.current_step() < int(last.read_text()):
            epoch, place = divmod(manager.current_step(), steps)
            sampler.set_epoch(epoch)
            index = torch.tensor(list(sampler)[place * BATCH_SIZE :][:BATCH_SIZE])
            made, loss = member.step(x[index], y[index], index)
            size = manager.num_participants()
            turn = [time.time(), 0, size, made, manager.current_step(), loss, REST_SECONDS]
            file.write(json.dumps(turn) + "\n")
            file.flush()
            time.sleep(REST_SECONDS)
        file.write(json.dumps({"seen": member.network.seen.tolist()}) + "\n")
    manager.shutdown(wait=False)
    os._exit(0)  # its threads may wait for a member that has left


if __name__ == "__main__":
    main()
