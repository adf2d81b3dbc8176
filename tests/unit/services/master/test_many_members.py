"""A master with a thousand members: what it does once for all of them, not once for each."""

import asyncio

import pytest

from edl_workflows.core.protocol.nodes import NodeRef, Registration
from edl_workflows.services.master import master as module
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.paced_call import PacedCall
from edl_workflows.services.master.state import messages, views
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, RoleSettings
from edl_workflows.services.master.state.transitions import settle_job
from tests.call_counts import count_calls
from tests.unit.services.master.served_master import GatedStore

MEMBERS = 300
NOW = 1.0


def big_job(members: int) -> JobState:
    settings = JobSettings(
        "big",
        "default",
        {"worker": RoleSettings(replicas=members)},
        collective=True,
        rendezvous=RendezvousLimits(min_nodes=1, max_nodes=members),
    )
    return JobState(settings, watches_pods=True)


class LargeStore(GatedStore):
    capacity = 10**7


def register(state: JobState, node: int) -> None:
    ref = NodeRef(type="worker", id=node)
    messages.register_node(state, Registration(node=ref, rank=node, incarnation="a"), NOW)


async def end(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_consequences_of_many_messages_are_derived_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """All members register at once: their consequences are derived a few times, and each registration is
    answered when it and its consequences are stored."""
    settled: list[float] = []

    def count_settling(state: JobState, now: float) -> None:
        settled.append(now)
        settle_job(state, now)

    monkeypatch.setattr(module, "settle_job", count_settling)

    async def main() -> None:
        state = big_job(MEMBERS)
        master = Master(state, LargeStore(), lambda: NOW)
        running = asyncio.create_task(master.run())
        await master.durable(master.changed())
        before = len(settled)

        async def register_durably(node: int) -> None:
            register(state, node)
            await master.durable(master.entered(WriteUrgency.NOW))

        await asyncio.gather(*(register_durably(node) for node in range(MEMBERS)))
        assert len(settled) - before <= 3
        successor = master.published.directive.next
        assert successor is not None
        assert len(successor.workers) == MEMBERS
        await end(running)

    asyncio.run(main())


def test_a_commit_wakes_no_agent_to_whom_it_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An agent that waits for a directive does not look after each write of the state."""

    async def main() -> None:
        master = Master(big_job(1), LargeStore(), lambda: NOW)
        running = asyncio.create_task(master.run())
        await master.durable(master.changed())
        looks: list[NodeRef] = []
        look = master.directive

        def count_look(ref: NodeRef) -> object:
            looks.append(ref)
            return look(ref)

        monkeypatch.setattr(master, "directive", count_look)
        ref = NodeRef(type="worker", id=0)
        waiting = asyncio.create_task(master.next_directive(ref, master.published.directive.revision, 60.0))
        for _ in range(5):
            await asyncio.sleep(0)
            await master.durable(master.touched(WriteUrgency.NOW))
        assert len(looks) == 1
        register(master.state, 0)
        master.changed(WriteUrgency.NOW)
        assert (await waiting).next is not None
        await end(running)

    asyncio.run(main())


def test_a_worker_that_joins_changes_no_directive_of_a_collective_job() -> None:
    """Until the group is formed there is nothing to tell, so a thousand agents that wait are not answered a
    thousand times with the addresses of all others."""
    state = big_job(3)
    settle_job(state, NOW)
    register(state, 0)
    settle_job(state, NOW)
    state.said = views.next_announcement(state)
    register(state, 1)
    settle_job(state, NOW)
    assert views.next_announcement(state) is state.said


def test_consequences_cost_in_proportion_to_the_members() -> None:
    """Four times as many members, all ready: at most five times as many calls of functions."""

    def count_settling(members: int) -> int:
        state = big_job(members)
        settle_job(state, NOW)
        for node in range(members):
            register(state, node)

        def settle() -> None:
            settle_job(state, NOW)
            views.next_announcement(state)

        settle()
        return count_calls(settle)

    assert count_settling(400) <= 5 * count_settling(100)


def test_a_paced_call_is_made_once_for_all_requests() -> None:
    """Requests of one turn of the loop are one call, and the next request is another one."""

    async def main() -> None:
        calls: list[None] = []
        called = asyncio.Event()

        def call() -> None:
            calls.append(None)
            called.set()

        paced = PacedCall(call)
        for _ in range(10):
            paced.request()
        assert not calls
        await called.wait()
        paced.request()
        paced.make_requested()
        paced.make_requested()
        assert len(calls) == 2

    asyncio.run(main())


def test_a_paced_call_leaves_the_loop_half_of_its_time() -> None:
    """A call that takes long is not made again before as much time has passed."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        times = iter([10.0, 13.0])
        clock, due = loop.time, []
        paced = PacedCall(lambda: None)
        with pytest.MonkeyPatch.context() as patch:
            paced.request()
            patch.setattr(loop, "time", lambda: next(times))
            paced.make_requested()
            patch.setattr(loop, "time", lambda: 13.0)
            patch.setattr(loop, "call_at", lambda at, _call: due.append(at))
            paced.request()
            patch.setattr(loop, "time", clock)
        assert due == [16.0]

    asyncio.run(main())


@pytest.mark.parametrize("cause", ["message", "time"])
def test_a_master_that_cannot_derive_consequences_ends(cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A defect in what follows from messages, or from time that passes, ends the master, so that the next one
    derives it from the stored state. Otherwise requests would wait without an end, or time-outs stop."""
    monkeypatch.setattr(module, "TICK", 3600.0 if cause == "message" else 0.01)

    async def main() -> None:
        master = Master(big_job(2), LargeStore(), lambda: NOW)
        running = asyncio.create_task(master.run())
        await master.durable(master.entered(WriteUrgency.NOW))

        def fail(_state: JobState, _now: float) -> None:
            raise ZeroDivisionError

        monkeypatch.setattr(module, "settle_job", fail)
        if cause == "message":
            master.entered(WriteUrgency.NOW)
        with pytest.raises(ZeroDivisionError):
            await running

    asyncio.run(asyncio.wait_for(main(), 240))
