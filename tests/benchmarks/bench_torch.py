"""The PyTorch adapter's step against DistributedDataParallel's: two members, the same model, data, updates.

    python -m tests.benchmarks.bench_torch [--rounds 5] [--steps 40]

The two take turns, so that what else the machine does hits both.
"""

import argparse
import json
import socket
import statistics
import subprocess

from tests.clients.environments import python_environment

SIZE = 2
SECONDS = 600.0


def measure(mode: str, steps: int) -> tuple[list[float], float]:
    """Seconds of rank 0's steps, and its last loss."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    command = [str(python_environment("torch")), "-m", "tests.benchmarks.torch_step", mode]
    members = [
        subprocess.Popen([*command, str(rank), port, str(steps)], stdout=subprocess.PIPE, text=True)
        for rank in range(SIZE)
    ]
    try:
        said = [member.communicate(timeout=SECONDS)[0] for member in members]
    finally:
        for member in members:
            member.kill()
            member.communicate()
    result = json.loads(said[0])
    return result["seconds"], result["loss"]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--steps", type=int, default=40, help="of a round (default %(default)s)")
    options = parser.parse_args()
    seconds: dict[str, list[float]] = {"ddp": [], "ours": []}
    losses: dict[str, float] = {}
    for _ in range(options.rounds):
        for mode in seconds:
            measured, losses[mode] = measure(mode, options.steps)
            seconds[mode] += measured
    medians = {mode: statistics.median(made) * 1000 for mode, made in seconds.items()}
    for mode, name in (("ddp", "DistributedDataParallel"), ("ours", "edl_workflows adapter")):
        tail = statistics.quantiles(seconds[mode], n=20)[-1] * 1000
        print(f"{name:24} median {medians[mode]:7.1f} ms   p95 {tail:7.1f} ms   last loss {losses[mode]:.6f}")
    print(f"step overhead            {medians['ours'] / medians['ddp'] - 1:+7.1%}   (goal: at most +3 %)")


if __name__ == "__main__":
    main()
