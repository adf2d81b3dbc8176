"""The node check where PyTorch is installed: matrix products and all-gathers with partners, as in DLRover's
node check, on the devices that training would use.

The agent (`edl_workflows.services.agent.node_check`) starts ``python -m
edl_workflows.services.agent.torch_check``, which reads one line of JSON (`CheckPlace`) and prints one line
(`CheckAnswer`). It is a separate process, because the agent does not import PyTorch, and because a device
that hangs must not make the agent hang.

Partners trust each other as members of a training group do: whoever reaches their addresses can join.
"""

import datetime as dt
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from edl_workflows.core.exceptions import EdlError
from edl_workflows.services.agent.node_check import CheckAnswer, CheckPlace
from edl_workflows.training.collective.gloo_group import GlooGroup
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.signals import die_with_parent

PRODUCTS = {"cpu": 10, "cuda": 200}
"""Matrix products that are measured, by type of device."""
WIDTHS = {"cpu": 1024, "cuda": 8192}
"""Width of the matrices, by type of device."""
GATHERS = 4
GATHER_BYTES = 8 * 2**20
"""Bytes that each partner contributes to a gather."""
FORM_SECONDS = 600
"""Time limit for forming a group on GPUs; the agent ends this process earlier."""

Gather = Callable[[torch.Tensor], Any]


def find_devices() -> list[torch.device]:
    """The devices that training would use: all GPUs of this node, else the CPU."""
    if torch.cuda.is_available():
        return [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return [torch.device("cpu")]


def measure_products(device: torch.device) -> float:
    """Seconds that the matrix products take on a device, after a warm-up that does not count.

    Raises:
        RuntimeError: the device fails, or computes a wrong product.
    """
    width = WIDTHS[device.type]
    kind = torch.float32 if device.type == "cpu" else torch.bfloat16
    matrix = torch.ones(width, width, dtype=kind, device=device)

    def multiply() -> torch.Tensor:
        product = matrix @ matrix
        _finish(device)
        return product

    if not bool((multiply() == width).all()):
        raise RuntimeError(f"{device}: a product of matrices is wrong")
    start = time.monotonic()
    for _ in range(PRODUCTS[device.type]):
        multiply()
    return time.monotonic() - start


def measure_gathers(place: Place, device: torch.device) -> float:
    """Seconds that the all-gathers with the partners take, after a warm-up that does not count; 0 without
    partners.

    Raises:
        RuntimeError, UnavailableError: the group breaks, or the gathered values are wrong.
    """
    if place.size == 1:
        return 0.0
    gather = form_group(place, device)
    mine = torch.full((GATHER_BYTES,), place.rank, dtype=torch.uint8, device=device)
    total = place.size * (place.size - 1) // 2 * GATHER_BYTES
    if int(gather(mine).sum(dtype=torch.int64)) != total:
        raise RuntimeError("gathered values are wrong")
    start = time.monotonic()
    for _ in range(GATHERS):
        gather(mine)
        _finish(device)
    return time.monotonic() - start


def form_group(place: Place, device: torch.device) -> Gather:
    """Form the partners' group, over NCCL on GPUs, else over Gloo. Returns a function that all-gathers a
    tensor.
    """
    if device.type == "cpu":
        group = GlooGroup(place)
        group.form()
        # A broadcast writes the received values into the tensor that is passed.
        return lambda mine: torch.stack([group.broadcast(mine.clone(), root) for root in range(place.size)])
    host, _, port = place.addresses[0].rpartition(":")
    limit = dt.timedelta(seconds=FORM_SECONDS)
    store = distributed.TCPStore(host, int(port), place.size, is_master=place.rank == 0, timeout=limit)
    distributed.init_process_group(
        "nccl", store=store, rank=place.rank, world_size=place.size, timeout=limit, device_id=device
    )

    def gather(tensor: torch.Tensor) -> torch.Tensor:
        gathered = tensor.new_empty(place.size * tensor.numel())
        distributed.all_gather_into_tensor(gathered, tensor)
        return gathered

    return gather


def _finish(device: torch.device) -> None:
    """Wait for the device, which computes asynchronously."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def check_node(given: CheckPlace) -> CheckAnswer:
    """Check this node: the answer has the seconds that it took, on the slowest device, or the error."""
    try:
        devices = find_devices()
        work = max(measure_products(device) for device in devices)
        place = Place(given.number, given.rank, tuple(given.addresses))
        return CheckAnswer(seconds=work + measure_gathers(place, devices[0]))
    except (RuntimeError, EdlError) as error:
        return CheckAnswer(error=" ".join(str(error).split())[:500] or repr(error))


def main() -> None:
    """Check this node."""
    die_with_parent()
    answer = check_node(CheckPlace.model_validate_json(sys.stdin.readline()))
    print(answer.model_dump_json(), flush=True)  # noqa: T201 - for the agent


if __name__ == "__main__":
    main()
