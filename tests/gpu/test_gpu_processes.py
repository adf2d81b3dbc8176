"""Processes on a GPU that are no members of a job: the node check, and a group whose process ends."""

import socket
import subprocess
from pathlib import Path

import pytest

from edl_workflows.services.agent.node_check import CheckAnswer
from tests.e2e.turns import torch_python

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]

SECONDS = 240.0
_CHECK = """
import os, sys
os.environ["NCCL_HOSTID"] = str(os.getpid())  # else NCCL refuses two members on one GPU
from edl_workflows.services.agent.torch_check import CheckPlace, check_node
print(check_node(CheckPlace(number=1, rank=int(sys.argv[1]), addresses=sys.argv[2:])).model_dump_json())
"""


_INTERRUPTED = """
import os, sys
os.environ["NCCL_HOSTID"] = str(os.getpid())
import torch
from edl_workflows.training.collective.nccl_group import choose_group
from edl_workflows.training.collective.world import Place
group = choose_group(Place(1, int(sys.argv[1]), tuple(sys.argv[2:])), torch.device("cuda"))
group.form()
print(group.gather(1))
group.interrupt("a member was lost")
group.leave()
"""


def run_together(program: str, members: int) -> list[tuple[int, str]]:
    """Exit code and output of each of some processes that meet at a free port."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        addresses = [f"127.0.0.1:{free.getsockname()[1]}"] * members
    start, root = [str(torch_python()), "-c", program], Path(__file__).parents[2]
    started = [
        subprocess.Popen([*start, str(rank), *addresses], cwd=root, stdout=subprocess.PIPE, text=True)
        for rank in range(members)
    ]
    outputs = [one.communicate(timeout=SECONDS)[0] for one in started]
    return [(one.returncode, output) for one, output in zip(started, outputs, strict=True)]


def test_a_process_ends_while_its_group_is_aborted() -> None:
    """It ends without an error. Without the wait for NCCL it ended with SIGABRT."""
    assert run_together(_INTERRUPTED, 2) == [(0, "[1, 1]\n")] * 2


@pytest.mark.parametrize("partners", [1, 2])
def test_devices_are_measured(partners: int) -> None:
    """A node alone, and a pair, report their seconds and no error."""
    answers = [CheckAnswer.model_validate_json(said) for _, said in run_together(_CHECK, partners)]

    assert [answer.error for answer in answers] == [""] * partners
    assert all(answer.seconds for answer in answers)


@pytest.mark.parametrize("check", ["saves", "restore", "mini-batches", "graphs", "checksum"])
def test_copies_and_graphs(check: str) -> None:
    """What `tests.gpu.copies` checks on the GPU."""
    program = [str(torch_python()), "-m", "tests.gpu.copies", check]
    done = subprocess.run(
        program, cwd=Path(__file__).parents[2], capture_output=True, text=True, timeout=SECONDS, check=False
    )

    assert done.returncode == 0, done.stderr[-4000:]
