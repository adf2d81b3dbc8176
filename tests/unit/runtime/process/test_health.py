"""The endpoints for probes and Prometheus."""

import urllib.error
import urllib.request

import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.monitoring.controller import LEADING
from edl_workflows.runtime.kube.connect import RequestRecord
from edl_workflows.runtime.process.health import HealthServer
from edl_workflows.runtime.process.metrics import ProcessMetrics


def fetch(port: int, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def test_endpoints() -> None:
    """Health, readiness with what the process waits for, and metrics are served, and nothing else."""
    waits: list[str] = ["not listed yet: pods"]
    metrics = ProcessMetrics(LEADING)
    metrics.led(True)
    metrics.requested(RequestRecord("list", "pods", 200, 0.01))
    server = HealthServer("127.0.0.1", 0, list, lambda: waits, metrics.registry)
    try:
        assert fetch(server.port, "/healthz") == (200, "ok\n")
        assert fetch(server.port, "/readyz") == (503, "not listed yet: pods\n")
        waits.clear()
        assert fetch(server.port, "/readyz")[0] == 200
        assert fetch(server.port, "/secrets")[0] == 404
        code, text = fetch(server.port, "/metrics")
    finally:
        server.close()

    assert code == 200
    assert 'edl_api_requests_total{code="200",resource="pods",verb="list"} 1.0' in text
    assert 'edl_api_request_seconds_count{verb="list"} 1.0' in text
    assert "edl_controller_leading 1.0" in text


def test_port_taken() -> None:
    """The error for a port in use names it and the option."""
    server = HealthServer("127.0.0.1", 0, list, list, ProcessMetrics(LEADING).registry)
    try:
        with pytest.raises(UnavailableError, match=f"{server.port}.*--metrics-port"):
            HealthServer("127.0.0.1", server.port, list, list, ProcessMetrics(LEADING).registry)
    finally:
        server.close()
