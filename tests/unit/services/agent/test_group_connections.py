"""What the agent sees of a program that should meet the other members of its version."""

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from edl_workflows.core.jobs.elastic_job.program import TrainingProgram
from edl_workflows.core.jobs.elastic_job.separate_copies import ProgramText
from edl_workflows.core.kubernetes import names
from edl_workflows.services.agent.group_connections import (
    MEET_SECONDS,
    MIN_LOOKS,
    GroupConnections,
    TcpConnection,
    read_connections,
    read_text,
)

PLAIN = "import torch\nloss.backward()\n"
GUARDED = "import torch\nif ranks: torch.distributed.init_process_group()\nx.backward()\n"
RANKED = 'import os\nimport torch\nprint(os.environ["RANK"])\nloss.backward()\n'
PREDICTS = 'import os\nimport torch\nprint(os.environ["RANK"])\n'
LIBRARY = """
import torch
from edl_workflows.training import connect
with connect() as job:
    for batch in job.batches("d", size=1):
        loss.backward()
"""
CHILD = """
import mmap, socket, sys
framework, action, host, port = sys.argv[1:]
if framework:
    with open(framework, "rb") as library:
        mapped = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
kept = []
if action == "listen":
    kept.append(socket.create_server((host, int(port))))
elif action == "connect":
    kept.append(socket.create_connection((host, int(port))))
print("ready", flush=True)
sys.stdin.read()
"""


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def framework(tmp_path: Path) -> Path:
    """A file that stands for PyTorch's library."""
    library = tmp_path / "lib" / "libtorch_cpu.so"
    library.parent.mkdir()
    library.write_bytes(bytes(4096))
    return library


@contextlib.contextmanager
def program(
    framework: object = "", action: str = "", host: str = "127.0.0.1", port: int = 0
) -> Iterator[int]:
    """A process that has loaded a framework, and opened an address or a connection."""
    command = [sys.executable, "-c", CHILD, str(framework), action, host, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def text(source: str) -> ProgramText:
    return ProgramText(TrainingProgram.of_script("train.py", source))


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
def test_rank_0_opens_its_address(framework: Path, host: str) -> None:
    """Who listens at the address of its version meets the others, whatever the text says."""
    own = free_port()
    with program(framework, "listen", host, own) as pid:
        group = GroupConnections(pid, f"127.0.0.1:{own}", [f"127.0.0.1:{free_port()}"], text(PLAIN))
        assert group.trains_own_copy() is True
        assert group.look() is False
    assert group.trains_own_copy() is False
    assert group.trains_own_copy(0) is False


def test_the_others_connect_to_rank_0(framework: Path) -> None:
    """A connection to another member is one with the group; one to anybody else, such as the master, is
    not."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with program(framework, "connect", port=port) as pid:
            meets = GroupConnections(pid, f"127.0.0.1:{free_port()}", [f"localhost:{port}"], text(GUARDED))
            alone = GroupConnections(pid, f"127.0.0.1:{free_port()}", ["127.0.0.1:9", "none.invalid:1"], None)
            assert (meets.look(), alone.look()) == (False, True)
    assert (meets.met, alone.met) == (True, False)


@pytest.mark.parametrize("source", [GUARDED, RANKED, None])
def test_a_program_that_never_meets_anybody(framework: Path, source: str | None) -> None:
    """What the text leaves open is decided when the program has long had its framework, or has ended."""
    clock = Clock()
    with program(framework) as pid:
        own, others = f"127.0.0.1:{free_port()}", [f"127.0.0.1:{free_port()}"]
        group = GroupConnections(pid, own, others, text(source) if source else None, clock=clock)
        for _ in range(MIN_LOOKS - 1):
            assert group.look() is True
        assert group.trains_own_copy() is None
        assert group.trains_own_copy(0) is None
        group.look()
        assert group.trains_own_copy(0) is True
        assert group.trains_own_copy(1) is None
        clock.now = MEET_SECONDS + 1
        assert group.trains_own_copy() is True
    assert group.look() is False


def test_a_short_program_is_seen(framework: Path) -> None:
    """Looks are frequent at first: a program that has its framework for two seconds trains alone."""
    with program(framework) as pid:
        group = GroupConnections(pid, "127.0.0.1:1", ["127.0.0.1:2"], None).start()
        time.sleep(2)
    assert group.trains_own_copy(0) is True


@pytest.mark.parametrize("side", ["own", "other"])
def test_a_group_between_two_looks(framework: Path, side: str) -> None:
    """A group that was formed and closed between two looks has left its connections in the kernel's tables,
    on the side that closed first. The last look finds them there."""
    with program(framework) as pid:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            addresses = [f"127.0.0.1:{port}", f"127.0.0.1:{free_port()}"]
            own, other = addresses if side == "own" else addresses[::-1]
            group = GroupConnections(pid, own, [other], None)
            for _ in range(MIN_LOOKS):
                group.look()
            client = socket.create_connection(("127.0.0.1", port))
            accepted, _ = server.accept()
            for end in (accepted, client) if side == "own" else (client, accepted):
                end.close()
        assert not group.met
    assert group.trains_own_copy(0) is False


@pytest.mark.parametrize("source", [PREDICTS, LIBRARY])
def test_programs_that_are_not_judged(framework: Path, source: str) -> None:
    """A program that trains nothing has no copy, and one that uses the library reports by itself."""
    clock = Clock()
    with program(framework) as pid:
        group = GroupConnections(pid, "127.0.0.1:1", ["127.0.0.1:2"], text(source), clock=clock)
        group.look()
        clock.now = MEET_SECONDS + 1
        assert group.trains_own_copy() is None


def test_a_program_without_a_framework() -> None:
    """Whether it trains at all is not known."""
    clock = Clock()
    with program() as pid:
        group = GroupConnections(pid, "127.0.0.1:1", ["127.0.0.1:2"], None, clock=clock)
        for _ in range(MIN_LOOKS):
            group.look()
        clock.now = MEET_SECONDS + 1
        assert group.trains_own_copy(0) is None


def test_addresses_of_both_families(tmp_path: Path) -> None:
    """The kernel's tables are read for IPv4, IPv6 and IPv4 within IPv6; other processes' sockets are not."""
    folder = tmp_path / "7"
    (folder / "fd").mkdir(parents=True)
    (folder / "net").mkdir()
    for number in (3, 4):
        (folder / "fd" / str(number)).symlink_to(f"socket:[{number}]")
    (folder / "fd" / "5").symlink_to("/dev/null")
    row = " 0: {}:08AE {}:01BB 01 0:0 00:0 0 0 0 {} 1\n"
    (folder / "net" / "tcp").write_text(
        "head\n" + row.format("0100007F", "0105A8C0", 3) + row.format("0100007F", "0100007F", 99)
    )
    mapped = "0000000000000000FFFF00000105A8C0"
    (folder / "net" / "tcp6").write_text("head\n" + row.format("0" * 32, mapped, 4))
    assert list(read_connections([7], tmp_path)) == 2 * [TcpConnection(2222, "192.168.5.1", 443)]
    assert list(read_connections([8], tmp_path)) == []


def test_the_text_of_a_program(tmp_path: Path) -> None:
    """It travels with the job, or is a script in the image; of other commands it is not known."""
    script = tmp_path / "train.py"
    script.write_text(PLAIN)
    travelling = TrainingProgram.of_script("a.py", PLAIN)
    environ = {names.ENV_PROGRAM: travelling.text, names.ENV_PROGRAM_DIGEST: travelling.digest}
    for command, variables in ((["python", str(script)], {}), (["python", "-m", "edl_workflows"], environ)):
        known = read_text(command, variables)
        assert known is not None
        assert known.warning
    broken = {names.ENV_PROGRAM: json.dumps({}), names.ENV_PROGRAM_DIGEST: "0"}
    for command, variables in (
        (["bash", "-c", "x"], {}),
        (["python", "none.py"], {}),
        (["x"], broken),
        ([], {}),
    ):
        assert read_text(command, variables) is None
