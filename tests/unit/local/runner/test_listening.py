"""Servers in containers stay on the loopback interface, whatever address they ask for."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.local import cluster
from edl_workflows.local.capacity import Capacity
from edl_workflows.local.runner.attempts import Attempt, Launch
from tests.local_cluster import LocalCluster, servers
from tests.unit.local.support import Pods, container, eventually

ELSEWHERE = """
import errno, socket
server = socket.socket()
server.setsockopt(socket.IPPROTO_IP, 15, 1)  # IP_FREEBIND: no interface needs to have the address
server.bind(("192.0.2.1", 0))
try:
    server.listen()
except OSError as error:
    assert error.errno == errno.EADDRNOTAVAIL, error
else:
    raise SystemExit("it listens where nobody can reach it")
"""
SERVERS = """
import json, os, socket, sys, threading

def device(server):
    return server.getsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, 16).rstrip(bytes(1)).decode()

def listen(family, address):
    server = socket.socket(family)
    if address:
        server.bind(address)
    server.listen()
    for host in ("127.0.0.1", "127.64.0.3") if family == socket.AF_INET else ():
        if not address or address[0] in ("", host):
            socket.create_connection((host, server.getsockname()[1])).close()
    found.append(device(server))

found = []
listen(socket.AF_INET, ("", 0))
listen(socket.AF_INET, ("127.0.0.1", 0))
listen(socket.AF_INET, None)
listen(socket.AF_INET6, ("::", 0))
thread = threading.Thread(target=listen, args=(socket.AF_INET, ("", 0)))
thread.start()
thread.join()
if os.fork() == 0:
    listen(socket.AF_INET, ("", 0))
    json.dump(found, open(sys.argv[1], "w"))
    os._exit(0)
os.wait()
local = socket.socket(socket.AF_UNIX)
local.bind(sys.argv[1] + ".socket")
local.listen()
"""

TWICE = """
import ctypes, os, socket, sys
from edl_workflows.local.runner import listening

listening._process_of(os.getpid())  # loads what another user may not be able to
if os.getuid() == 0:
    os.setuid(65534)
    ctypes.CDLL(None).prctl(4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as a process that had this user from the start
ours, theirs = listening.make_channel()
child = os.fork()
if child == 0:
    listening.confine_process(theirs)
    server = socket.socket()
    server.listen(1)
    server.listen(2)
    os._exit(0 if listening.on_loopback(server) else 1)
theirs.close()
listening.supervise_in_thread(ours)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
UNTOLD = """
import sys, time
from edl_workflows.local.runner import listening

supervise = listening.supervise

def supervise_for_ever(confined):
    supervise(confined)
    time.sleep(3600)

listening.supervise = supervise_for_ever
sys.exit(listening._try() or 0)
"""


def run(folder: Path, script: str, *, loopback_only: bool) -> None:
    """Run a Python script, told the file for its answer, as a container that must succeed."""

    async def main() -> None:
        attempt = Attempt(folder, 0, "uid/main")
        argv = [sys.executable, "-c", script, str(folder / "answer")]
        env = {"PATH": os.environ["PATH"]}
        attempt.start(Launch(argv, env, str(folder), loopback_only=loopback_only), crashes=0)
        ended = await attempt.wait("Lost")
        assert ended.code == 0, attempt.log.read_text()

    asyncio.run(main())


@pytest.mark.parametrize(("loopback_only", "interface"), [(True, "lo"), (False, "")])
def test_servers_of_a_container_stay_on_loopback(tmp_path: Path, loopback_only: bool, interface: str) -> None:
    """Whatever address a server binds (any, none or IPv6), in whatever thread or process, it listens on `lo`
    only, unless the option allows more."""
    run(tmp_path, SERVERS, loopback_only=loopback_only)

    assert json.loads((tmp_path / "answer").read_text()) == [interface] * 6


def test_an_address_of_another_interface_is_refused(tmp_path: Path) -> None:
    """A server on such an address fails to start, instead of listening on loopback or on a network."""
    run(tmp_path, ELSEWHERE, loopback_only=True)


def test_what_a_probe_or_hook_starts_stays_on_loopback(tmp_path: Path) -> None:
    """A command that runs in a container later, such as a probe, may listen on loopback only, too. Its exit
    code is returned."""
    run(tmp_path, "", loopback_only=True)

    command = Attempt(tmp_path, 0, "uid/main").command(
        [sys.executable, "-c", SERVERS, str(tmp_path / "answer")]
    )
    failing = Attempt(tmp_path, 0, "uid/main").command(["sh", "-c", "exit 3"])

    assert subprocess.run(command, check=False, timeout=240).returncode == 0
    assert set(json.loads((tmp_path / "answer").read_text())) == {"lo"}
    assert subprocess.run(failing, check=False, timeout=240).returncode == 3


def test_a_server_may_listen_again() -> None:
    """A server may call `listen` on a socket that listens already, as those of asyncio and of several
    processes do, even if its user is not root."""
    assert subprocess.run([sys.executable, "-c", TWICE], check=False, timeout=240).returncode == 0


def test_the_check_of_the_machine_needs_no_word_of_the_end() -> None:
    """Before Linux 6.11, the end of the last process under a filter is known only once it has been waited
    for. The check of the machine works without that."""
    assert subprocess.run([sys.executable, "-c", UNTOLD], check=False, timeout=240).returncode == 0


def test_servers_of_a_pod_stay_on_loopback(local: LocalCluster, pods: Pods) -> None:
    """With default settings, servers in pods listen on the loopback interface only, and Gloo, a transport of
    PyTorch, is configured for it."""
    script = f"echo $GLOO_SOCKET_IFNAME; {sys.executable} -m http.server 0 --bind 0.0.0.0"
    pods.create("server", container(script))

    def seen() -> dict[str, bool]:
        return {name: tied for name, tied in servers(local.folder).items() if "http.server" in name}

    assert list(eventually(seen).values()) == [True]
    assert "0.0.0.0" in next(iter(seen()))
    assert pods.prints("server", "lo")


def test_a_cluster_that_cannot_keep_ports_closed_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says why the cluster does not start and which option starts it nevertheless."""
    monkeypatch.setattr(cluster, "loopback_obstacle", lambda: "Operation not permitted")
    options = cluster.ClusterOptions(tmp_path / "state", Capacity.of_machine("1", "1Gi", 10))

    async def start() -> None:
        async with cluster.running_cluster(options):
            pass

    with pytest.raises(UnavailableError, match=r"\(Operation not permitted\).*--allow-open-ports"):
        asyncio.run(start())
    assert not options.folder.exists()
