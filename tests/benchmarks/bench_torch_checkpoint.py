"""How long a PyTorch training waits for a checkpoint of 500 MB: ours against its peers, in one run.

    python -m tests.benchmarks.bench_torch_checkpoint [--mib 477] [--saves 4] [--ways ours,dcp,…]

Peers: ``torch.distributed.checkpoint.async_save``, also with a stager that keeps its memory, and DLRover's
``DdpCheckpointer`` under ``dlrover-run``. Ours has a real master and agent. Each way is a process of its own,
one after the other, and saves a model with Adam's averages, in one process on the CPU. The first save counts:
ours allocates its memory before it, while training goes on.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any

from tests.clients.environments import HERE, python_environment
from tests.e2e.collective_standalone import CollectiveStandalone

PROGRAM = Path(__file__).parent / "torch_saves.py"
SECONDS = 1800.0
NAMES = {
    "ours": "edl-workflows",
    "dcp": "dcp.async_save",
    "dcp-kept": "dcp.async_save, memory kept",
    "dlrover": "dlrover DdpCheckpointer",
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--mib", type=int, default=477, help="size of the state (default %(default)s: 500 MB)"
    )
    parser.add_argument("--saves", type=int, default=4, help="of each way (default %(default)s)")
    parser.add_argument("--ways", default=",".join(NAMES))
    options = parser.parse_args()
    waits: dict[str, list[float]] = {}
    for way in options.ways.split(","):
        with tempfile.TemporaryDirectory() as folder:
            found = measure(way, Path(folder), options.mib, options.saves)
        if not found:
            print(f"{NAMES[way]} did not come back")
            continue
        waits[way] = [one["call"] + one["waited"] for one in found]
        print(in_words(way, found, waits[way]), flush=True)
    ours = waits.pop("ours", [])
    for way, theirs in waits.items():
        if ours:
            first, mean = ours[0] / theirs[0], statistics.mean(ours) / statistics.mean(theirs)
            print(
                f"ours over {NAMES[way]}: first save {first:.3f}   all saves {mean:.3f}   (goal: at most 1)"
            )


def measure(way: str, folder: Path, mib: int, saves: int) -> list[dict[str, Any]]:
    """What was noted of each save; empty if the way did not come back."""
    python = str(python_environment("dlrover" if way == "dlrover" else "torch"))
    arguments = [way, str(folder), str(mib), str(saves)]
    if way == "ours":
        with CollectiveStandalone(
            folder, 1, [python, "-m", "tests.benchmarks.torch_saves", *arguments]
        ) as job:
            job.wait(lambda: job.master.poll() is not None, SECONDS, "the job ends")
            if job.master.returncode:
                print(job.pods.logs(), file=sys.stderr)
    else:
        words = [python, str(PROGRAM)]
        if way == "dlrover":
            run = Path(python).with_name("dlrover-run")
            words = [str(run), "--standalone", "--nnodes=1", "--nproc_per_node=1", str(PROGRAM)]
        path = f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"
        with (folder / "log").open("w") as log:
            try:
                subprocess.run(
                    [*words, *arguments],
                    stdout=log,
                    stderr=log,
                    check=False,
                    timeout=SECONDS,
                    env={**os.environ, "PATH": path},
                )
            except subprocess.TimeoutExpired:
                print(f"{NAMES[way]}: not within {SECONDS:.0f} s")
        print("\n".join((folder / "log").read_text().splitlines()[-15:]), file=sys.stderr)
    file = folder / "measured"
    return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []


def in_words(way: str, found: list[dict[str, Any]], waits: list[float]) -> str:
    """A line of the table."""
    call, cpu = (statistics.mean(one[field] for one in found) for field in ("call", "cpu"))
    step = statistics.median(one["step"] for one in found)
    slower = statistics.median(one["next_step"] - one["waited"] - one["step"] for one in found)
    listed, mean = ", ".join(f"{wait:.3f}" for wait in waits), statistics.mean(waits)
    return (
        f"{NAMES[way]} {version(way)} (torch {found[0]['torch']}): waits {listed} s, mean {mean:.3f} s "
        f"(of it in the call {call:.3f} s, {cpu:.3f} s of CPU); a step takes {step:.2f} s, the next one "
        f"{slower:+.2f} s more"
    )


def version(way: str) -> str:
    """Of what is measured."""
    if way == "ours":
        return metadata.version("edl-workflows")
    if way == "dlrover":
        pins = (HERE / "requirements" / "dlrover.txt").read_text().splitlines()
        return next(pin.partition("==")[2] for pin in pins if pin.startswith("dlrover=="))
    return ""


if __name__ == "__main__":
    main()
