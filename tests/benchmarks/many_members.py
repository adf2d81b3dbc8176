"""Nodes of a large collective job of PyTorch, as processes that share one import, for
`tests.benchmarks.bench_members`.

    python -m tests.benchmarks.many_members FOLDER < ORDERS

An order is a line of JSON: a node's environment, the file for its output, and how many training processes it
may need. What runs is the product's agent and library. Only the agent's training processes are forks that
wait until it starts them, because importing PyTorch costs 200 MB and two CPU seconds a process.
"""

import gc
import json
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import torch

from edl_workflows.services.agent import command, processes
from edl_workflows.training import connect
from edl_workflows.training.frameworks.torch_collective import (
    Dataset,
    TorchModel,
    TrainingOptions,
    training,
)
from edl_workflows.training.signals import die_with_parent

INPUTS, HIDDEN, CLASSES = 64, 256, 10
BATCH_SIZE, STEPS_PER_EPOCH = 4, 64


class Spare:
    """A training process that waits until its agent starts it; then it looks like a `subprocess.Popen`.

    Args:
        program: what it runs.
    """

    def __init__(self, program: Callable[[], None]) -> None:
        orders, self._orders = os.pipe()
        output, written = os.pipe()
        self.returncode: int | None = None
        self.pid = os.fork()
        if not self.pid:
            os.close(self._orders)
            os.close(output)
            _become(program, orders, written)
        os.close(orders)
        os.close(written)
        self.stdout = os.fdopen(output, "rb")

    def start(self, env: Mapping[str, str]) -> None:
        """Run the program with an environment."""
        with os.fdopen(self._orders, "w") as orders:
            orders.write(json.dumps(dict(env)) + "\n")

    def wait(self) -> int:
        """Reap it; returns the code as `subprocess.Popen` does."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def _become(program: Callable[[], None], orders: int, output: int) -> NoReturn:
    """Wait for the order, and run the program, as the launcher of an agent does."""
    os.setpgid(0, 0)
    die_with_parent()
    with os.fdopen(orders) as pipe:
        env = pipe.readline()  # later spares have the other end of the pipe, too, so it is not closed
    if not env:
        os._exit(0)
    os.environ.clear()
    os.environ.update(json.loads(env))
    os.dup2(output, 1)
    os.dup2(output, 2)
    _finish(program)


def _finish(program: Callable[[], object]) -> NoReturn:
    """Run the rest of this process."""
    code = 1
    try:
        code = int(program() or 0)  # type: ignore[call-overload]
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    except BaseException:  # noqa: BLE001 - the process ends with it
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run_node(order: Mapping[str, Any], program: Callable[[], None]) -> int:
    """A node: the product's agent, with spare processes in place of new ones."""
    os.setsid()
    log = os.open(order["log"], os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order["env"])
    spares = [Spare(program) for _ in range(order["spares"])]

    def start(_command: Sequence[str], env: Mapping[str, str], **_options: object) -> Spare:
        spare = spares.pop(0)
        spare.start(env)
        return spare

    launcher = SimpleNamespace(Popen=start, DEVNULL=-3, PIPE=-1, STDOUT=-2)
    vars(processes)["subprocess"] = launcher
    return command.main(["run", "--", "member"])


def train(folder: Path) -> None:
    """Train as a member of a job; each turn is a line of JSON, as in `tests.e2e.turns`, and the CPU seconds
    of this process so far."""
    torch.set_num_threads(1)
    job = connect()
    most = job.cluster.max_workers
    source = torch.Generator().manual_seed(3)
    x = torch.randn(BATCH_SIZE * most * STEPS_PER_EPOCH, INPUTS, generator=source)
    y = torch.randint(CLASSES, (len(x),), generator=source)
    delay, hurry = float((folder / "delay").read_text()), folder / "hurry"
    notes = folder / f"turns-{job.node}-{os.getpid()}"
    settings = TrainingOptions(folder / "checkpoints", threads=1)
    with (
        notes.open("w") as file,
        training(job, lambda: _build(x, y), Dataset(len(x), BATCH_SIZE, 0), settings) as run,
    ):
        for batches in run:
            version, size = job.version, run.size
            step, loss = run.step([{"x": x[list(batch)], "y": y[list(batch)]} for batch in batches])
            rest = delay if run.step_made and not hurry.exists() else 0.0
            turn = [time.time(), version, size, run.step_made, step, loss, rest, time.process_time()]
            file.write(json.dumps(turn) + "\n")
            file.flush()
            time.sleep(rest)


def _build(x: torch.Tensor, y: torch.Tensor) -> TorchModel:
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(INPUTS, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, HIDDEN),
        torch.nn.ReLU(),
        torch.nn.Linear(HIDDEN, CLASSES),
    )
    optimizer = torch.optim.Adam(model.parameters(), 1e-4)

    def losses(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(model(x), y, reduction="none")

    return TorchModel(model, optimizer, losses, {"x": x[:2], "y": y[:2]})


def main() -> None:
    """Fork nodes as ordered; they end with this process."""
    folder = Path(sys.argv[1])
    gc.collect()
    gc.freeze()  # so that the garbage collector writes to no shared page
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        process = os.fork()
        if not process:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            die_with_parent()
            os.close(0)
            os.open(os.devnull, os.O_RDONLY)
            _finish(lambda order=order: run_node(order, lambda: train(folder)))  # type: ignore[misc]
        print(process, flush=True)


if __name__ == "__main__":
    main()
