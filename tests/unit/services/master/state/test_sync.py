"""Sync groups: who is waited for, and how little is remembered of it."""

from edl_workflows.services.master.state import sync
from edl_workflows.services.master.state.stored_state import StoredState

WORKERS = [f"worker-{number}" for number in range(64)]


def test_a_group_is_finished_when_all_have_joined_and_stays_so() -> None:
    """Joining twice counts once, and a worker that comes later changes nothing."""
    present = sync.SyncGroups()
    for worker in ("worker-0", "worker-0"):
        present = sync.join_group(present, "start", worker, WORKERS[:2])
    assert sync.group_state(present, "start", WORKERS[:2]).missing == ["worker-1"]
    present = sync.join_group(present, "start", "worker-1", WORKERS[:2])
    assert sync.group_state(present, "start", WORKERS[:2]).finished
    assert sync.join_group(present, "start", "worker-9", WORKERS) is present
    assert sync.group_state(present, "start", WORKERS).finished


def test_a_worker_that_ended_is_not_waited_for() -> None:
    """A sync group is finished without a worker that has ended."""
    present = sync.join_group(sync.SyncGroups(), "start", "worker-0", WORKERS[:2])
    assert sync.group_state(present, "start", ["worker-0"]).finished


def test_a_thousand_groups_of_many_workers_fit_into_the_stored_state() -> None:
    """The stored state of a thousand sync groups of many workers fits into the job's ConfigMap."""
    present = sync.SyncGroups()
    for number in range(sync.MAX_NAMES):
        for worker in WORKERS:
            present = sync.join_group(present, f"epoch-{number}", worker, WORKERS)
    assert len(StoredState(counts={}, sync=present).to_json()) < 50_000
