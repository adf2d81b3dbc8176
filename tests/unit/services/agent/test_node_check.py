"""The check of nodes before training: what a node measures with its partners, and what it says when it
can't."""

import importlib.util
import json
import socket
import sys
import threading
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import CheckMember, CheckReport, CheckRound, NodeRef
from edl_workflows.services.agent import node_check
from edl_workflows.services.agent.node_check import run_node_check
from edl_workflows.training.environment import NodeEnvironment
from tests.unit.training.fake_master import eventually


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> int:
    """Where the first of a group listens, as in the embedded cluster; the work is made small."""
    free, services = _free_port(), tmp_path / "services.json"
    services.write_text(json.dumps({"first.demo.svc:3333": f"127.0.0.1:{free}"}))
    monkeypatch.setenv("EDL_SERVICE_MAP", str(services))
    monkeypatch.setenv(f"EDL_PORT_{names.NODE_PORTS['worker'][0]}", str(free))
    monkeypatch.setattr(node_check, "WORK_BLOCKS", 2)
    monkeypatch.setattr(node_check, "EXCHANGE_BLOCKS", 2)
    return free


def _round(nodes: int, seconds: float = 20.0) -> CheckRound:
    members = [CheckMember(node=f"worker-{index}", address="first.demo.svc:3333") for index in range(nodes)]
    return CheckRound(number=1, groups=[members], seconds=seconds)


def _measured(check: CheckRound, environments: list[NodeEnvironment]) -> list[CheckReport]:
    with ThreadPoolExecutor(len(environments)) as pool:
        futures: list[Future[CheckReport | None]] = [
            pool.submit(run_node_check, check, environment) for environment in environments
        ]
        reports = [future.result(timeout=240) for future in futures]
    assert all(report is not None for report in reports)
    return [report for report in reports if report is not None]


def _nodes(environment: NodeEnvironment, count: int) -> list[NodeEnvironment]:
    return [replace(environment, node=NodeRef(type="worker", id=index)) for index in range(count)]


@pytest.mark.parametrize("nodes", [1, 2, 3])
@pytest.mark.usefixtures("port")
def test_all_of_a_group_measure(environment: NodeEnvironment, nodes: int) -> None:
    """Alone, in a pair and in a group of three, each node reports its seconds."""
    reports = _measured(_round(nodes), _nodes(environment, nodes))
    assert [report.error for report in reports] == [""] * nodes
    assert all(report.seconds > 0 for report in reports)


ANSWERS = {
    "seconds": ("print('a warning'); print('{\"seconds\": 1.5}')", 1.5, ""),
    "an error": ('print(\'{"error": "cuda:1: a product of matrices is wrong"}\')', 0, "cuda:1: a product"),
    "a crash": ("import os, sys; sys.exit('the driver is too old')", 0, "code 1: the driver is too old"),
    "no number": ("print('{\"seconds\": NaN}')", 0, "code 0: nothing was printed"),
    "nothing in time": ("import time; time.sleep(600)", 0, "did not answer in time"),
}


@pytest.mark.parametrize("row", ANSWERS)
def test_what_the_process_with_pytorch_says(
    row: str, environment: NodeEnvironment, port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where PyTorch is installed, a separate process measures the node. Its seconds, or the reason of its
    failure, are reported, even if it dies or hangs."""
    code, seconds, error = ANSWERS[row]
    python = tmp_path / "python"
    python.write_text(f"#!{sys.executable}\n{code}\n")
    python.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: True)
    report = run_node_check(_round(2, seconds=1.0 if row == "nothing in time" else 200.0), environment)
    assert report is not None
    assert report.seconds == seconds
    assert error in report.error
    assert bool(error) == bool(report.error)


@pytest.mark.usefixtures("port")
def test_who_is_in_no_group_says_nothing(environment: NodeEnvironment) -> None:
    """A node that is in no group of the round reports nothing."""
    assert run_node_check(_round(1), replace(environment, node=NodeRef(type="worker", id=9))) is None


@pytest.mark.parametrize(("node", "why"), [(0, "none of its partners came"), (1, "no way to")])
@pytest.mark.usefixtures("port")
def test_a_missing_partner_is_an_error_in_time(environment: NodeEnvironment, node: int, why: str) -> None:
    """A node whose partner does not come reports that as an error before the round ends."""
    (report,) = _measured(_round(2, seconds=0.5), _nodes(environment, 2)[node : node + 1])
    assert why in report.error


def test_a_stranger_disturbs_nobody(environment: NodeEnvironment, port: int) -> None:
    """A connection that can't prove that it has the job's token is closed, and the partners still measure."""
    first, second = _nodes(environment, 2)
    stranger = replace(second, token="another")

    def intrude() -> None:
        with eventually(lambda: _connected(port)) as connection:
            connection.recv(32)
            connection.sendall(b"x" * 32)

    intruder = threading.Thread(target=intrude)
    intruder.start()
    with ThreadPoolExecutor(2) as pool:
        mine = pool.submit(run_node_check, _round(2), first)
        intruder.join(timeout=240)
        refused = pool.submit(run_node_check, _round(2, seconds=10.0), stranger).result(timeout=240)
        (theirs,) = _measured(_round(2), [second])
    report = mine.result(timeout=240)
    assert report is not None
    assert (report.error, theirs.error) == ("", "")
    assert refused is not None
    assert refused.error


def _connected(port: int) -> socket.socket | None:
    try:
        return socket.create_connection(("127.0.0.1", port), timeout=5)
    except ConnectionRefusedError:
        return None
