"""The TensorFlow server of a process that is reached by a Service's name, as on a real cluster."""

import socket
from types import SimpleNamespace
from typing import Any

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]  # the import alone takes long


@pytest.fixture(scope="module")
def adapter() -> Any:
    """The adapter's module, where TensorFlow is installed."""
    pytest.importorskip("tensorflow")
    from edl_workflows.training.frameworks import tensorflow

    return tensorflow


def free_port() -> int:
    """A TCP port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def test_session_finds_itself_in_the_cluster_by_the_name_that_others_dial(adapter: Any) -> None:
    """The server listens on all interfaces whatever its name is, and a session over a cluster that lists it
    by its Service's name runs on it, without asking any name server."""
    port = free_port()
    address = f"digits-edljob-worker-3.training.svc:{port}"
    worker = SimpleNamespace(version=1, environment=SimpleNamespace(listen_address=lambda _version: address))
    options = adapter.TrainingOptions(None, threads=1)
    server = adapter._boot(worker, options)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()

    tf1 = adapter.tf1
    config = adapter._session_config(options)
    config.cluster_def.CopyFrom(tf1.train.ClusterSpec({"worker": {3: address}}).as_cluster_def())
    with adapter.tf.Graph().as_default() as graph, tf1.device("/job:worker/task:3"):
        total = tf1.constant(3) + 1
    with tf1.Session(server.target, graph=graph, config=config) as session:
        assert session.run(total) == 4
