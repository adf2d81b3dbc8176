"""These tests need an NVIDIA GPU; one is enough, since the members of a job share it: `make test-gpu`."""

from pathlib import Path

import pytest

collect_ignore_glob = [] if Path("/dev/nvidia0").exists() else ["test_*.py"]


@pytest.fixture(autouse=True)
def loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """NCCL connects the members over loopback, as if each were on a host of its own."""
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("NCCL_IB_DISABLE", "1")
