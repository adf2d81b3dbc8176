"""Leader election: one leader at a time, a prompt successor, and no writes after the lease has expired."""

import threading
from collections.abc import Callable
from typing import Any

import pytest
import structlog.testing

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import LEASES, Scope
from edl_workflows.runtime.process.leader import Election, Elector, LeadershipLostError
from edl_workflows.runtime.process.partition import Partition
from edl_workflows.runtime.process.partition_member import PartitionMember
from tests.unit.runtime.kube.support import Answer, ScriptedApi

pytestmark = pytest.mark.slow


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def elector(cluster: Cluster, identity: str, clock: Clock) -> Elector:
    return Elector(cluster, Election(cluster.namespace, identity=identity), clock)


def test_one_leads(cluster: Cluster) -> None:
    """Of two candidates one leads, even if both try again."""
    clock = Clock()
    one, two = elector(cluster, "one", clock), elector(cluster, "two", clock)

    assert (one.attempt(), two.attempt(), one.attempt(), two.attempt()) == (True, False, True, False)
    assert (one.leading, two.leading) == (True, False)


def test_leads_by_its_own_clock(cluster: Cluster) -> None:
    """A leader that cannot renew the lease stops leading before another candidate may start."""
    clock = Clock()
    one, two = elector(cluster, "one", clock), elector(cluster, "two", clock)
    one.attempt()
    two.attempt()
    clock.now += 11

    assert not one.leading
    assert not two.attempt()
    clock.now += 5
    assert two.attempt()
    assert not one.attempt()


def test_judges_by_what_it_saw(cluster: Cluster) -> None:
    """A candidate ignores the times in a lease and decides by the changes that it observes, so a lease that
    is being renewed stays valid."""
    clock = Clock()
    one, two = elector(cluster, "one", clock), elector(cluster, "two", clock)
    one.attempt()
    lease = client.get(cluster, LEASES, "edl-controller")
    lease["spec"]["renewTime"] = "2001-01-01T00:00:00.000000Z"
    client.replace(cluster, lease)

    assert not two.attempt()


def test_release_hands_over_at_once(cluster: Cluster) -> None:
    """When a leader ends normally, the next one starts without waiting."""
    clock = Clock()
    one, two = elector(cluster, "one", clock), elector(cluster, "two", clock)
    one.attempt()
    one.release()

    assert two.attempt()
    assert not one.leading
    assert client.get(cluster, LEASES, "edl-controller")["spec"]["leaseTransitions"] == 1


def test_restart_with_the_same_identity(cluster: Cluster) -> None:
    """A lease that has our own identity, from before a restart, is taken over."""
    clock = Clock()
    elector(cluster, "one", clock).attempt()

    assert elector(cluster, "one", clock).attempt()


def test_keep_ends_when_it_is_lost() -> None:
    """A leader that cannot reach the API for too long ends with an error instead of continuing to write."""
    scripted = ScriptedApi()
    scripted.answers = [
        Answer(404, {"kind": "Status", "reason": "NotFound", "details": {"name": "x"}}),
        Answer(201, {}),
        Answer(503, {"kind": "Status", "message": "down"}),
    ]
    election = Election("ns", lease_seconds=0.4, renew_seconds=0.3, retry_seconds=0.05)
    candidate = Elector(scripted.cluster(), election)
    assert candidate.acquire(threading.Event())

    with pytest.raises(LeadershipLostError, match="ns/edl-controller"):
        candidate.keep(threading.Event())
    scripted.close()
    assert not candidate.leading


def make_elector(cluster: Cluster) -> Elector:
    return Elector(cluster, Election("ns"))


def make_member(cluster: Cluster) -> Elector:
    return PartitionMember(cluster, Election("ns"), 2, Partition())


@pytest.mark.parametrize("make", [make_elector, make_member])
def test_missing_rights_are_an_error(make: Callable[[Cluster], Elector]) -> None:
    """A process whose account may not use the Leases never leads; its log says as an error what to apply."""
    scripted = ScriptedApi()
    scripted.answers = [Answer(403, {"kind": "Status", "reason": "Forbidden", "message": "no right"})]

    with structlog.testing.capture_logs() as logs:
        assert not make(scripted.cluster()).attempt()
    scripted.close()

    errors = [entry for entry in logs if entry["log_level"] == "error"]
    assert ["edl install" in entry["event"] for entry in errors] == [True]


def test_acquire_stops() -> None:
    """Waiting for leadership ends when the process is told to stop."""
    stop = threading.Event()
    stop.set()

    assert not Elector(Cluster(None, "ns", "key"), Election("ns")).acquire(stop)


def test_a_lease_without_an_answer_is_another_ones(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that does not know whether it got a slot goes on as another candidate: others may acknowledge
    the one that holds this slot, and so give up jobs that do not belong to the slot which it gets in the
    end."""
    member = PartitionMember(cluster, Election(cluster.namespace, identity="one"), 2, Partition())
    create = client.create

    def lose_answer(*arguments: Any) -> None:
        create(*arguments)
        raise UnavailableError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(client, "create", lose_answer)
        assert not member.attempt()
    member.attempt()

    leases = client.list_objects(cluster, Scope(LEASES, cluster.namespace)).items
    holders = {lease["metadata"]["name"]: lease["spec"]["holderIdentity"] for lease in leases}
    assert holders == {"edl-controller": "one", "edl-controller-1": "one+2"}
