"""A master that was restored from a snapshot older than the newest leases, and workers that report to it."""

from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    HeldShard,
    LeaseRequest,
    LeaseState,
    ReleasedShard,
    Shard,
)
from edl_workflows.core.protocol.nodes import NodeRef
from edl_workflows.services.master.shards import ShardManager
from edl_workflows.services.master.shards.keepers import REPORT_SECONDS
from tests.unit.services.master.shards.managers import (
    NOW,
    A,
    B,
    done,
    lease,
    manager_of,
    ranges,
    restarted,
    table,
)


def _report(manager: ShardManager, node: NodeRef, *held: Shard) -> AckReply:
    shards = [HeldShard.model_validate(shard.model_dump()) for shard in held]
    return manager.acknowledge("train", AckRequest(node=node, keeps=True, held=shards), NOW)


def _keep(manager: ShardManager, node: NodeRef, count: int = 1) -> list[Shard]:
    return manager.lease("train", LeaseRequest(node=node, max_shards=count, keeps=True), NOW).shards


def _release(manager: ShardManager, shard: Shard, records: int) -> AckReply:
    fields = shard.model_dump() | {"records_done": records}
    released = [ReleasedShard.model_validate(fields)]
    return manager.acknowledge("train", AckRequest(node=A, released=released), NOW)


def test_no_shard_is_leased_before_all_have_reported() -> None:
    """Workers that kept acknowledgements for the previous master report first. Then their leases continue,
    and only other shards are leased, under new numbers."""
    before = manager_of(table(15, 3))
    _keep(before, A)
    _keep(before, B)
    stored = restarted(before)
    (lost,) = _keep(before, B)

    assert lease(stored, A).state is LeaseState.WAIT
    _report(stored, B, lost)
    granted = lease(stored, A, count=9)

    assert ranges(granted) == [(9, 12), (12, 15)]
    assert granted.shards[0].lease > lost.lease
    assert done(stored, lost, node=B).accepted == 1


def test_a_silent_worker_is_not_waited_for_longer() -> None:
    """After some seconds the shards of a worker that does not report are leased to others, and its late
    acknowledgement counts once."""
    before = manager_of(table(6, 3))
    _keep(before, A)
    _keep(before, B)
    stored = restarted(before)
    assert lease(stored, A).state is LeaseState.WAIT

    stored.expire(NOW + REPORT_SECONDS, listening_since=NOW)

    assert lease(stored, A).state is LeaseState.WAIT, "all shards are leased"
    assert stored.release_node(B) == 1
    assert ranges(lease(stored, A)) == [(3, 6)]


def test_a_lost_process_is_not_waited_for() -> None:
    """The end of a node's process, or the first lease of its next one, takes the place of its report."""
    before = manager_of(table(9, 3))
    _keep(before, A)
    _keep(before, B)
    stored = restarted(before)

    stored.release_node(B)

    assert ranges(lease(stored, A, count=9)) == [(6, 9), (3, 6)]


def test_records_of_a_returned_shard_count_once() -> None:
    """A shard is returned under a lease that the new master does not know: its records count. If the message
    or the report of the shard is repeated, nothing is counted again, so that no record is left out."""
    before = manager_of(table(6, 6))
    stored = restarted(before)
    (shard,) = lease(before, A).shards

    assert _release(stored, shard, 2).accepted == 1
    assert _release(stored, shard, 2).stale == 1
    _report(stored, A, shard)
    assert _release(stored, shard, 2).stale == 1

    assert ranges(lease(stored, B)) == [(2, 6)]


def test_a_newer_lease_replaces_an_older_one() -> None:
    """If the previous master had leased a shard of a lost worker again, the new master continues the newer
    lease, although it has stored the older one."""
    before = manager_of(table(3, 3))
    lease(before, A)
    stored = restarted(before)
    before.release_node(A)
    (again,) = lease(before, B).shards

    _report(stored, B, again)

    assert stored.release_node(A) == 0
    assert stored.release_node(B) == 1


def test_leases_of_before_a_rollback_are_not_continued() -> None:
    """A rollback voids what workers hold or have kept, also of leases that were never stored."""
    before = manager_of(table(6, 3))
    stored = restarted(before)
    begun = stored.position()
    first, second = lease(before, A, count=2).shards
    stored.rollback(begun)

    assert done(stored, first).stale == 1
    _report(stored, A, second)

    assert ranges(lease(stored, B, count=9)) == [(0, 3), (3, 6)]
