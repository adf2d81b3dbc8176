"""The peer: ``torchrun``, which restarts all members when one is lost.

    python -m tests.benchmarks.peers.torchrun_restarts FOLDER   # one of its members

Each member restores the checkpoint of the newest step. The environment has
``TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1``: without it PyTorch 2.15 shares the agent's store with the members,
keys outlive a restart, and with Gloo the restarted members read addresses of dead ones and don't come back.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SECONDS = 180.0
STEPS = 20
"""Steps between two kills."""


def measure_torchrun(folder: Path, kills: int, members: int) -> list[float]:
    """Seconds from the last step before each kill to the first after it, of those that it came back from."""
    from tests.clients.environments import python_environment

    options = [
        "--standalone",
        f"--nproc-per-node={members}",
        f"--max-restarts={kills}",
        "--monitor-interval=0.1",
    ]
    process = subprocess.Popen(
        [
            str(python_environment("torch")),
            *("-m", "torch.distributed.run", *options, "-m", "tests.benchmarks.peers.torchrun_restarts"),
            str(folder),
        ],
        env={**os.environ, "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "GLOO_SOCKET_IFNAME": "lo"},
        stderr=subprocess.DEVNULL,
    )
    gaps: list[float] = []
    try:
        for attempt in range(kills):
            if not _wait_for_steps(folder, attempt, STEPS):
                break
            os.kill(int((folder / f"pid{members - 1}").read_text()), signal.SIGKILL)
            if not _wait_for_steps(folder, attempt + 1, 1):
                break
            before = max(at for at, of in _steps(folder) if of == attempt)
            gaps.append(min(at for at, of in _steps(folder) if of == attempt + 1) - before)
    finally:
        process.terminate()  # it ends its members, each of which leads a session of its own
        process.wait(SECONDS)
    return gaps


def _steps(folder: Path) -> list[tuple[float, int]]:
    """Time and attempt of each step of rank 0."""
    log = folder / "log"
    lines = log.read_text().splitlines() if log.exists() else []
    return [tuple(json.loads(line)) for line in lines if line.endswith("]")]


def _wait_for_steps(folder: Path, attempt: int, steps: int) -> bool:
    """Whether an attempt has made so many steps in time."""
    end = time.monotonic() + SECONDS
    while sum(of == attempt for _, of in _steps(folder)) < steps:
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def main() -> None:
    """Train, as PyTorch's tutorial on torchrun does, with a checkpoint of each step."""
    import torch
    from torch import distributed
    from torch.nn.parallel import DistributedDataParallel

    from tests.e2e import torch_survivor, turns

    folder = Path(sys.argv[1])
    distributed.init_process_group("gloo")
    rank, attempt = distributed.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    (folder / f"pid{rank}").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    network = torch_survivor.Counted().layers
    model, optimizer = DistributedDataParallel(network), torch.optim.Adam(network.parameters())
    checkpoint = folder / "checkpoint"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        network.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    x, y = torch_survivor.data()
    while True:
        time.sleep(0.03)
        records = torch.randint(len(x), (turns.BATCH_SIZE,))
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(x[records]), y[records]).backward()
        optimizer.step()
        if rank == 0:
            torch.save({"model": network.state_dict(), "optimizer": optimizer.state_dict()}, folder / "new")
            (folder / "new").rename(checkpoint)
            with (folder / "log").open("a") as log:
                log.write(json.dumps([time.time(), attempt]) + "\n")


if __name__ == "__main__":
    main()
