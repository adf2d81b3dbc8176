"""The processes of a ``torchrun`` script in one pod: how many, with which variables, and how they end."""

import os
import socket
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.elastic_job.separate_copies import ProgramText
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import TrainingCluster
from edl_workflows.services.agent.group_connections import GroupConnections
from edl_workflows.services.agent.local_group import (
    LocalGroup,
    count_processes,
    group_command,
    is_group_command,
    rank_environments,
)
from edl_workflows.training.job import Job

BASE = {
    names.ENV_RANK: "1",
    names.ENV_WORLD_SIZE: "3",
    names.ENV_LOCAL_RANK: "0",
    names.ENV_TORCH_MASTER_ADDR: "demo-edljob-worker-0",
    names.ENV_TORCH_MASTER_PORT: "3222",
    names.ENV_CLUSTER_VERSION: "4",
    names.ENV_JOB_NAME: "demo",
    names.ENV_JOB_UID: "1234",
    "HOME": "/home/me",
}


def test_each_process_has_torchruns_variables() -> None:
    """Each process has torchrun's variables, with ranks that count across the nodes. The rest of the
    environment is unchanged."""
    _, second = rank_environments(BASE, 2)

    assert {name: value for name, value in second.items() if BASE.get(name) != value} == {
        "RANK": "3",
        "LOCAL_RANK": "1",
        "WORLD_SIZE": "6",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "1",
        "GROUP_WORLD_SIZE": "3",
        "ROLE_NAME": "default",
        "ROLE_RANK": "3",
        "ROLE_WORLD_SIZE": "6",
        "TORCHELASTIC_RESTART_COUNT": "3",
        "TORCHELASTIC_MAX_RESTARTS": str(2**31 - 1),
        "TORCHELASTIC_RUN_ID": "1234",
        "TORCHELASTIC_USE_AGENT_STORE": "False",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
        "OMP_NUM_THREADS": "1",
    }
    assert second["MASTER_ADDR"] == "demo-edljob-worker-0"


def test_threads_are_left_alone_as_torchrun_does() -> None:
    """As with torchrun, a single process gets no OMP_NUM_THREADS, and a value that is set stays."""
    (alone,) = rank_environments(BASE, 1)
    limited, _ = rank_environments({**BASE, "OMP_NUM_THREADS": "4"}, 2)

    assert "OMP_NUM_THREADS" not in alone
    assert limited["OMP_NUM_THREADS"] == "4"


def test_only_collective_jobs_have_ranks() -> None:
    """In a job that is not collective, the error names the field that makes a job collective."""
    with pytest.raises(InvalidError, match="distributionStrategy: AllreduceStrategy"):
        rank_environments({names.ENV_CLUSTER_VERSION: "1"}, 2)


@pytest.mark.parametrize(
    ("wanted", "environ", "devices", "expected"),
    [
        ("3", {}, ["nvidia0"], 3),
        ("auto", {}, ["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], 2),
        ("gpu", {"CUDA_VISIBLE_DEVICES": "4,5,6"}, ["nvidia0"], 3),
        ("auto", {"CUDA_VISIBLE_DEVICES": ""}, ["nvidia0"], 0),
        ("cpu", {}, ["nvidia0"], 0),
        ("auto", {"CUDA_VISIBLE_DEVICES": "-1"}, ["nvidia0"], 0),
    ],
)
def test_the_number_of_processes(
    wanted: str,
    environ: dict[str, str],
    devices: list[str],
    expected: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A number is used as it is. ``gpu`` counts the GPUs of CUDA_VISIBLE_DEVICES or else the devices, ``cpu``
    counts the cores, and ``auto`` the GPUs or, without any, the cores."""
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(7))
    for name in devices:
        (tmp_path / name).touch()

    assert count_processes(wanted, environ, tmp_path) == (expected or 7)


def test_one_per_gpu_needs_a_gpu(tmp_path: Path) -> None:
    """Without a GPU, ``gpu`` raises InvalidError, which names the alternatives."""
    with pytest.raises(InvalidError, match="no GPU; write auto, cpu or a number"):
        count_processes("gpu", {}, tmp_path)


def test_a_script_is_run_by_python_and_a_program_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """A ``.py`` file is run by Python, anything else as a program. As with torchrun, PYTHON_EXEC sets the
    interpreter."""
    launcher = [sys.executable, "-P", "-m", "edl_workflows.services.agent.local_group", "2"]

    assert group_command("2", ["train.py", "--lr=1"]) == [
        *launcher,
        sys.executable,
        "-u",
        "train.py",
        "--lr=1",
    ]
    assert is_group_command(group_command("2", ["train.py"]))
    assert not is_group_command(["python", "-P", "-m", "train", "2"])
    assert group_command("2", ["python3", "train.py"]) == [*launcher, "python3", "train.py"]
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert group_command("2", ["train.py"]) == [*launcher, "/opt/python", "-u", "train.py"]


@pytest.mark.parametrize("wanted", ["0", "-1", "two", "1.5", "tpu", "99999"])
def test_another_number_is_refused(wanted: str) -> None:
    """A wrong --nproc-per-node is refused before anything starts; the error has the value."""
    with pytest.raises(InvalidError, match=f"--nproc-per-node {wanted}:"):
        group_command(wanted, ["train.py"])


MEETS = """
import pathlib, socket, sys, time
def wait_for(name):
    while not (pathlib.Path(sys.argv[2]) / name).exists():
        time.sleep(0.1)
wait_for("separate copies")
server = socket.create_server(("127.0.0.1", int(sys.argv[1])))
wait_for("one model")
"""
"""A script that opens its address after separate copies were declared, and ends when one model is."""


class GroupJob:
    """The part of a job that a group of scripts uses; it notes what the group declares, also as files in a
    folder."""

    version = 1
    terminated = drain_requested = False
    cluster = TrainingCluster(version=1)

    def __init__(self, folder: Path) -> None:
        self.declared: list[str] = []
        self._folder = folder
        self._woken = threading.Condition()

    def save_with(self, _: object) -> None: ...

    def wait_until_active(self) -> None: ...

    def report_step(self, _: int) -> None: ...

    def should_checkpoint(self) -> bool:
        return False

    def wake(self) -> None:
        with self._woken:
            self._woken.notify_all()

    def wait_until(self, true: Callable[[], bool]) -> None:
        with self._woken:
            assert self._woken.wait_for(true, 60)

    def declare_separate_copies(self) -> None:
        self._note("separate copies")

    def declare_one_model(self) -> None:
        self._note("one model")

    def _note(self, declaration: str) -> None:
        self.declared.append(declaration)
        (self._folder / declaration).touch()


@pytest.mark.parametrize(
    ("script", "text", "declared"),
    [
        ("pass", "import torch\nloss.backward()\n", ["separate copies"]),
        (
            MEETS,
            "import torch\nloss.backward()\n",
            ["separate copies", "one model"],
        ),
        ("pass", "import torch, os\nos.environ['RANK']\nloss.backward()\n", []),
    ],
)
def test_scripts_that_train_separate_copies(
    script: str, text: str, declared: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scripts that form no group are judged as a program without torchrun is: by their text, and by the
    connections of their processes. Without a sign nothing is declared."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    # The tests' own process, in which others may have loaded a framework, counts as the program's.
    monkeypatch.setattr(GroupConnections, "_has_framework", lambda *_: False)
    job = GroupJob(tmp_path)
    program = ProgramText(TrainingProgram.of_script("train.py", text))
    group = GroupConnections(os.getpid(), f"127.0.0.1:{port}", ["127.0.0.1:9"], program)
    command = [sys.executable, "-c", script, str(port), str(tmp_path)]
    try:
        assert LocalGroup(cast("Job", job), command, [dict(os.environ)], group).run() == 0
    finally:
        group.close()
    assert job.declared == declared


def test_reports_of_separate_copies_are_in_the_order_of_their_judgements(tmp_path: Path) -> None:
    """The thread that watches the scripts and the one that sees their end report one after the other: what
    was judged last is reported last."""

    class JudgedGroup:
        def trains_own_copy(self, code: int | None = None) -> bool:
            return code is None

    class InterruptedJob(GroupJob):
        def declare_separate_copies(self) -> None:
            ended.start()
            ended.join(0.5)
            super().declare_separate_copies()

    job = InterruptedJob(tmp_path)
    group = LocalGroup(cast("Job", job), [], [], cast("GroupConnections", JudgedGroup()))
    ended = threading.Thread(target=group.report_copies, args=(0,))
    group.report_copies()
    ended.join()
    assert job.declared == ["separate copies", "one model"]
