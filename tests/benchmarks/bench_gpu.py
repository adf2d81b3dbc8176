"""PyTorch on one GPU: how long a save delays a step, how fast a restore is, and a step of the adapter beside
``DistributedDataParallel``'s. At most four minutes.

    python -m tests.benchmarks.bench_gpu [--gib 9.4] [--device cuda:0] [--folder .]

It needs an interpreter with ``edl-workflows[torch]`` and this repository, and nothing else. Storage is not
part of a save: another process writes the copy, as a job's agent does. Each part is a process of its own; one
that does not fit in the time left is left out, and so says its line.
"""

import argparse
import datetime as dt
import importlib.util
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SECONDS = 235.0
"""Of all parts together."""
GB = 1e9
GPU = Path("/dev/nvidia0")
INSTEAD = """No NVIDIA GPU here, so nothing was measured. What can be shown without one:
  the update waits for the copies, all bytes are those of the step, the memory is registered and released:
    tests/torch/test_torch_device.py; of shards: tests/torch/test_torch_replica.py
  a restore through registered memory, and the checksum on the device: tests/torch/test_torch_transfer.py
Both have a fake device, which copies as late as it may (tests/torch/fake_device.py): make test-torch.
The copies, streams and events of CUDA itself: make test-gpu and this benchmark, on a machine with a GPU."""
Figures = dict[str, Any]


def main(arguments: Sequence[str] | None = None) -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gib", type=float, default=9.4, help="size of the state (default %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="default %(default)s; cpu only tries the program")
    parser.add_argument("--folder", default=".", help="on the disk to measure (default: here)")
    options = parser.parse_args(arguments)
    if missing := [name for name in ("torch", "pydantic", "ml_dtypes") if not importlib.util.find_spec(name)]:
        parser.error(f"{sys.executable} lacks {', '.join(missing)}: install edl-workflows[torch] there")
    if options.device != "cpu" and not GPU.exists():
        print(INSTEAD)
        return
    end = time.monotonic() + SECONDS
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        for part, lines in (("bus", of_bus), ("saves", of_saves), ("steps", of_steps), ("dcp", of_dcp)):
            words = [part, options.device, str(options.gib), folder]
            figures = measure(words, end - time.monotonic())
            print(
                "\n".join(lines(figures)) if isinstance(figures, dict) else f"{part}: {figures}", flush=True
            )


def measure(words: list[str], seconds: float) -> Figures | str:
    """What a part has measured, or why there is nothing."""
    if seconds < 1:
        return "left out, since there is no time left"
    program = [sys.executable, "-m", "tests.benchmarks.gpu_parts", *words]
    try:
        done = subprocess.run(program, capture_output=True, text=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return f"not done within the {seconds:.0f} s that were left"
    if done.returncode:
        return "failed: " + (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    figures: Figures = json.loads(done.stdout.splitlines()[-1])
    return figures


def of_bus(figures: Figures) -> list[str]:
    """Card and date, and the limits of the bus."""
    day = dt.datetime.now(dt.UTC).date()
    speeds = ", ".join(f"{name} {figures[name] / GB:.1f} GB/s" for name in figures if name != "card")
    return [f"{figures['card']}, {day}, PyTorch {torch_version()}", f"bus: {speeds}"]


def torch_version() -> str:
    """The version of PyTorch, read without importing it."""
    from importlib import metadata

    return metadata.version("torch")


def of_saves(figures: Figures) -> list[str]:
    """Saves and restore."""
    size, checked = figures["size"], figures["restore"] + figures["check"]
    copies = ", ".join(f"{size / save['copy'] / GB:.1f}" for save in figures["saves"])
    return [
        f"save of {size / GB:.2f} GB beside a step of {figures['step']:.3f} s (goal: at most 0.06 s later)",
        *of_stalls(figures),
        f"  copied at {copies} GB/s (goal: at least 50)",
        f"  memory ready after {figures['prepare']:.1f} s; steps meanwhile {figures['beside_prepare']:.3f} s",
        f"  stored after {figures['store']:.1f} s; steps meanwhile {figures['beside_store']:.3f} s",
        f"restore from the page cache: {size / figures['restore'] / GB:.1f} GB/s (goal: at least 5)",
        f"  with its check {size / checked / GB:.1f} GB/s; the disk reads {figures['disk'] / GB:.1f} GB/s",
    ]


def of_stalls(figures: Figures) -> list[str]:
    """How much later the steps after each save were."""
    stalls = ", ".join(f"{save['stall']:.3f}" for save in figures["saves"])
    calls, later = (max(save[name] for save in figures["saves"]) for name in ("call", "later"))
    return [
        f"  the next step {stalls} s later, of which the call took at most {calls:.3f} s",
        f"  the steps after that at most {later:+.3f} s",
    ]


def of_steps(figures: Figures) -> list[str]:
    """The step beside ``DistributedDataParallel``'s."""
    ours, theirs = (statistics.median(figures[name]) for name in ("ours", "theirs"))
    ratios = [one / other for one, other in zip(figures["ours"], figures["theirs"], strict=True)]
    spread = f"{len(ratios)} rounds in turn: {min(ratios):.3f} to {max(ratios):.3f}"
    return [
        f"step: {1000 * ours:.2f} ms, of DistributedDataParallel {1000 * theirs:.2f} ms",
        f"  {ours / theirs:.3f} times as long (goal: at most 1.03; {spread})",
    ]


def of_dcp(figures: Figures) -> list[str]:
    """PyTorch's own way."""
    return [
        f"dcp.async_save, pinned and shared staging, beside a step of {figures['step']:.3f} s",
        *of_stalls(figures),
    ]


if __name__ == "__main__":
    main()
