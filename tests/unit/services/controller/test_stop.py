"""How a controller ends: `edl_workflows.services.controller.manager.Manager.stop`, and its lease
meanwhile."""

from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from edl_workflows.core.kubernetes.namespaces import NamespaceSelection
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import LEASES
from edl_workflows.runtime.process.leader import Election
from edl_workflows.services.controller import manager as manager_module
from edl_workflows.services.controller.manager import STOP_SECONDS, Manager, ManagerOptions
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.run import RunOptions
from tests.controller_thread import run_in_thread
from tests.unit.runtime.kube.support import eventually


@dataclass
class Clock:
    """Time that passes only while somebody waits."""

    now: float = 0.0

    def monotonic(self) -> float:
        return self.now


@dataclass
class Stuck:
    """Something that never ends: whoever waits for it waits as long as he would at most."""

    clock: Clock
    ident: int = 1
    asked: list[float] = field(default_factory=list)

    def stop(self, seconds: float = 5.0 * 14) -> None:
        self.asked.append(seconds)
        self.clock.now += seconds

    def join(self, seconds: float) -> None:
        self.stop(seconds)


def test_an_end_takes_no_longer_than_it_may(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """If loops, workers and watches hang, the controller waits for all of them together only as long as for
    one, within the pod's grace period."""
    clock = Clock()
    monkeypatch.setattr(manager_module, "time", SimpleNamespace(monotonic=clock.monotonic), raising=False)
    manager = Manager(
        cluster,
        ManagerOptions(NamespaceSelection.of(cluster.namespace), workers=4),
        ControllerMetrics(),
        lambda: None,
    )
    parts = [Stuck(clock) for _ in range(7)]
    hung: Any = manager
    hung._loops, hung._threads, hung.world = parts[:2], parts[2:6], parts[6]
    manager.stop()

    assert clock.now <= STOP_SECONDS < 30
    assert all(part.asked for part in parts), "every part is told to end"


def test_the_lease_is_kept_while_work_in_hand_is_finished(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A controller that stops finishes the decisions in progress before it releases the lease."""
    election = Election(cluster.namespace, identity="first", retry_seconds=0.1)
    options = RunOptions(manager=ManagerOptions(NamespaceSelection.of(cluster.namespace)), election=election)
    running = run_in_thread(cluster, options)
    assert running.wait_ready(240)

    def lease() -> dict[str, Any]:
        found: dict[str, Any] = client.get(cluster, LEASES, "edl-controller")["spec"]
        return found

    finish, renewed = running.controller.manager.stop, []

    def slow_stop() -> None:
        before = lease()["renewTime"]
        eventually(lambda: lease()["renewTime"] != before)
        renewed.append(lease()["holderIdentity"])
        finish()

    monkeypatch.setattr(running.controller.manager, "stop", slow_stop)
    running.stop()

    assert renewed == ["first"]
    assert not lease().get("holderIdentity")
    successor = run_in_thread(cluster, replace(options, election=replace(election, identity="second")))
    assert successor.wait_ready(240)
    successor.stop()
