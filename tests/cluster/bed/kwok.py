"""Fake nodes and pods by KWOK, for load on controllers: nothing runs in such pods, but all of them become
Ready."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.cluster.bed.bed import Bed
from tests.cluster.bed.build import KWOK_STAGES
from tests.cluster.bed.components import Site
from tests.cluster.bed.process import Daemon
from tests.cluster.bed.wait import until

NAME = "kwok"
TAINT = "kwok.x-k8s.io/node"
"""Fake nodes carry this taint (and a label of the same name) with value ``fake``: real pods stay away."""


def daemon(site: Site, enter: tuple[str, ...]) -> Daemon:
    """KWOK's controller for the nodes that ask for it; runs within `fake_nodes` only."""
    stages = sorted(KWOK_STAGES.glob("*.yaml"))
    command = (
        str(site.bin / "kwok"),
        f"--kubeconfig={site.kubeconfig}",
        "--node-lease-duration-seconds=40",
        "--manage-all-nodes=false",
        f"--manage-nodes-with-annotation-selector={TAINT}=fake",
        *(f"--config={path}" for path in stages),
    )
    return Daemon(NAME, command, site.folder, {}, enter)


@contextmanager
def fake_nodes(bed: Bed, count: int, pods_each: int = 500) -> Iterator[dict[str, Any]]:
    """Run with fake nodes; they and what was bound to them are gone afterwards.

    Args:
        bed: where.
        count: how many nodes.
        pods_each: how many pods a node takes.

    Yields:
        What a pod's spec needs to go there: a nodeSelector and a toleration.
    """
    controller = bed.daemon(NAME)
    controller.start()
    try:
        nodes = [_node(f"kwok-{number}", pods_each) for number in range(count)]
        bed.kubectl(
            "apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": nodes})
        )
        until(lambda: _ready(bed) == count, f"{count} fake nodes are ready", 120)
        toleration = {"key": TAINT, "operator": "Exists", "effect": "NoSchedule"}
        yield {"nodeSelector": {TAINT: "fake"}, "tolerations": [toleration]}
    finally:
        bed.kubectl("delete", "nodes", "-l", f"{TAINT}=fake")
        controller.stop()


def _ready(bed: Bed) -> int:
    path = 'jsonpath={.items[*].status.conditions[?(@.type=="Ready")].status}'
    return bed.kubectl("get", "nodes", "-l", f"{TAINT}=fake", "-o", path).split().count("True")


def _node(name: str, pods: int) -> dict[str, Any]:
    capacity = {"cpu": "1000", "memory": "4Ti", "pods": str(pods)}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {TAINT: "fake"}, "annotations": {TAINT: "fake"}},
        "spec": {"taints": [{"key": TAINT, "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": capacity, "capacity": capacity},
    }
