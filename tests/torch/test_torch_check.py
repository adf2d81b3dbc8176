"""The node check with PyTorch: matrix products and all-gathers on the devices that training uses."""

import json
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed

from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import CheckMember, CheckReport, CheckRound, NodeRef
from edl_workflows.services.agent import torch_check
from edl_workflows.services.agent.node_check import CheckPlace, run_node_check
from edl_workflows.training.collective.regrouping import Place
from edl_workflows.training.environment import NodeEnvironment

PAIR = 2
ROOT = Path(__file__).resolve().parents[2]


def environment(index: int) -> NodeEnvironment:
    """Of a worker."""
    node = NodeRef(type="worker", id=index)
    return NodeEnvironment("http://127.0.0.1:1", "token", "demo", "default", f"worker-{index}", node, index)


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CheckRound:
    """A round for a pair that meets at a free port of this machine."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    services = tmp_path / "services.json"
    services.write_text(json.dumps({"first.demo.svc:3333": f"127.0.0.1:{port}"}))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # PyTorch's environment has no installation of the package
    monkeypatch.setenv("EDL_SERVICE_MAP", str(services))
    monkeypatch.setenv(f"EDL_PORT_{names.NODE_PORTS['worker'][0]}", str(port))
    members = [CheckMember(node=f"worker-{index}", address="first.demo.svc:3333") for index in range(PAIR)]
    return CheckRound(number=1, groups=[members], seconds=240)


def test_pair_measures_products_and_gathers(check: CheckRound) -> None:
    """Both partners report their seconds, each measured in a process of its own."""
    with ThreadPoolExecutor(PAIR) as pool:
        reports = list(pool.map(lambda index: run_node_check(check, environment(index)), range(PAIR)))

    found = [report for report in reports if isinstance(report, CheckReport)]
    assert [report.error for report in found] == [""] * PAIR
    assert all(report.seconds > 0 for report in found)


def test_missing_partner_is_an_error_in_time(check: CheckRound) -> None:
    """A node whose partner does not come says so before the round ends."""
    report = run_node_check(check.model_copy(update={"seconds": 15.0}), environment(1))
    assert report is not None
    assert "did not answer in time" in report.error


def test_wrong_product_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """A device that computes wrong values does not pass because it is fast."""
    monkeypatch.setattr(torch_check, "WIDTHS", {"cpu": 16})
    right = torch.ones
    monkeypatch.setattr(torch, "ones", lambda *shape, **kind: right(*shape, **kind) * 1.5)
    answer = torch_check.check_node(CheckPlace(number=1, rank=0, addresses=["127.0.0.1:1"]))
    assert answer.error == "cpu: a product of matrices is wrong"


def test_gpus_are_used_where_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """All GPUs of a node are measured, and the slowest counts. The partners gather over NCCL. GPUs and NCCL
    are simulated here."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: PAIR)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda _device: None)
    seconds = {torch.device("cuda", 0): 1.0, torch.device("cuda", 1): 3.0}
    monkeypatch.setattr(torch_check, "measure_products", seconds.__getitem__)
    formed: list[tuple[Any, ...]] = []

    def init(backend: str, **named: Any) -> None:
        formed.append((backend, named["rank"], named["world_size"], named["device_id"], named["store"]))

    def gather(into: torch.Tensor, mine: torch.Tensor) -> None:
        into.copy_(torch.cat([torch.zeros_like(mine), mine]))  # of rank 0, and rank 1

    monkeypatch.setattr(distributed, "init_process_group", init)
    monkeypatch.setattr(distributed, "all_gather_into_tensor", gather)
    monkeypatch.setattr(distributed, "TCPStore", lambda host, port, size, **_: (host, port, size))
    on_cpu = torch.full
    monkeypatch.setattr(torch, "full", lambda *shape, device, dtype: on_cpu(*shape, dtype=dtype))

    answer = torch_check.check_node(
        CheckPlace(number=1, rank=1, addresses=["10.0.0.1:3333", "10.0.0.2:3333"])
    )

    assert answer.error == ""
    assert answer.seconds >= max(seconds.values())
    assert formed == [("nccl", 1, PAIR, torch.device("cuda", 0), ("10.0.0.1", 3333, PAIR))]


def test_node_without_partners_gathers_nothing() -> None:
    """The last node of an odd number has no partner and gathers nothing."""
    assert torch_check.measure_gathers(Place(1, 0, ("127.0.0.1:1",)), torch.device("cpu")) == 0.0
