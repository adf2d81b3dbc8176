"""The processes of a ``torchrun`` script in one pod: how many, with which variables, and how they end."""

import sys
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.services.agent.local_group import count_processes, group_command, rank_environments

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
    assert group_command("2", ["python3", "train.py"]) == [*launcher, "python3", "train.py"]
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    assert group_command("2", ["train.py"]) == [*launcher, "/opt/python", "-u", "train.py"]


@pytest.mark.parametrize("wanted", ["0", "-1", "two", "1.5", "tpu", "99999"])
def test_another_number_is_refused(wanted: str) -> None:
    """A wrong --nproc-per-node is refused before anything starts; the error has the value."""
    with pytest.raises(InvalidError, match=f"--nproc-per-node {wanted}:"):
        group_command(wanted, ["train.py"])
