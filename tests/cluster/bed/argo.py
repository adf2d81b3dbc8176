"""Argo's workflow controller on the bed: what it needs in the cluster, and its switch for agent pods."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.bed import images
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.components import Site
from tests.cluster.bed.process import Daemon
from tests.cluster.bed.wait import until

NAMESPACE = "argo"
_CONFIG = "workflow-controller-configmap"


def daemon(site: Site, enter: tuple[str, ...]) -> Daemon:
    """The controller; it watches all namespaces. Its port 6060 is fixed: one in a network namespace."""
    command = (
        str(site.bin / "workflow-controller"),
        f"--kubeconfig={site.kubeconfig}",
        f"--namespace={NAMESPACE}",
        f"--executor-image={images.HOST}",
        "--executor-plugins",
    )
    env = {
        "LEADER_ELECTION_DISABLE": "true",
        "DEFAULT_REQUEUE_TIME": "1s",
        # Workflows have a trace; nobody takes its spans.
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9",
    }
    return Daemon("argo", command, site.folder, env, enter)


def install(bed: Bed, site: Site) -> None:
    """Apply Argo's definitions and its configuration, without agent pods."""
    definitions = sorted((site.bin / "crds").glob("argoproj.io_*.yaml"))
    files = [flag for path in definitions for flag in ("-f", str(path))]
    bed.kubectl("apply", "--server-side", *files)  # client-side, they are too large for the annotation
    for path in definitions:
        plural = path.stem.removeprefix("argoproj.io_")
        served = ("get", "--raw", f"/apis/argoproj.io/v1alpha1/{plural}")
        until(lambda served=served: bed.succeeds(*served), f"{plural} are served")  # type: ignore[misc]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}
    for manifest in (namespace, _configuration(agent_pods=False)):
        bed.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))


@contextmanager
def agent_pods(bed: Bed) -> Iterator[None]:
    """Let the controller make an agent pod for each workflow with plugin steps, as a stock one does."""
    _configure(bed, agent_pods=True)
    try:
        yield
    finally:
        _configure(bed, agent_pods=False)


def _configure(bed: Bed, *, agent_pods: bool) -> None:
    bed.kubectl("apply", "-f", "-", stdin=json.dumps(_configuration(agent_pods=agent_pods)))
    bed.restart_argo()


def _configuration(*, agent_pods: bool) -> dict[str, Any]:
    """Nested values are YAML texts of their own."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": _CONFIG, "namespace": NAMESPACE},
        "data": {
            "disableAgentPodCreation": "false" if agent_pods else "true",
            "executor": "imagePullPolicy: Never\n",
        },
    }
