"""The master's loop: one write at a time, not too many of them, an end in time, and clocks that jump."""

import asyncio
import threading
import time

import httpx
import pytest

from edl_workflows.core.exceptions import ForbiddenError, UnavailableError
from edl_workflows.core.protocol.nodes import NodeRef, Registration
from edl_workflows.services.master import master as module
from edl_workflows.services.master.app import create_app
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings, RendezvousLimits, Timeouts
from edl_workflows.services.master.state.stored_state import StepProgress, StoredState
from edl_workflows.services.master.state.transitions import settle_job

SETTINGS = JobSettings("job", "default", parse_nodes("worker=1"), timeouts=Timeouts(heartbeat=60.0))
WORKER = NodeRef(type="worker", id=0)


class SlowStore:
    """Takes its time, and sees whether it is called while it works."""

    place = "memory"
    capacity = 10**6

    def __init__(self, seconds: float, interval: float = 0.0) -> None:
        self.interval = interval
        self.seconds = seconds
        self.document = b""
        self.begun: list[float] = []
        self.overlaps = 0
        self.writing = threading.Event()
        self._alone = threading.Lock()

    def load(self) -> bytes | None:
        return None

    def save(self, document: bytes) -> None:
        self.begun.append(time.monotonic())
        self.overlaps += not self._alone.acquire(blocking=False)
        self.writing.set()
        time.sleep(self.seconds)
        self.document = document
        self._alone.release()


class AbsentStore(SlowStore):
    """Never takes anything."""

    def save(self, document: bytes) -> None:
        raise UnavailableError("nobody there")


class RefusingStore(SlowStore):
    """Refuses the first writes, as an API server does that has not read the Roles yet."""

    def save(self, document: bytes) -> None:
        if len(self.begun) < 2:
            self.begun.append(time.monotonic())
            raise ForbiddenError("cannot patch ConfigMap")
        super().save(document)


async def _end(running: asyncio.Task[None]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def test_a_refused_write_is_repeated() -> None:
    """A restarted API server refuses everybody for a moment; that is not the end of the master."""

    async def main() -> None:
        store = RefusingStore(0.0)
        master = Master(JobState(SETTINGS), store)
        running = asyncio.create_task(master.run())
        assert await asyncio.to_thread(store.writing.wait, 30)
        assert not running.done()
        await _end(running)
        assert store.document

    asyncio.run(main())


def test_a_master_that_ends_lets_its_write_end_before_the_last_one() -> None:
    """The running write ends before the last one starts, since two writes at once would mix two documents.
    The last one holds the changes made during the first."""

    async def main() -> None:
        store = SlowStore(0.2)
        master = Master(JobState(SETTINGS), store)
        running = asyncio.create_task(master.run())
        assert await asyncio.to_thread(store.writing.wait, 5)
        master.state.steps = StepProgress(step=7)
        await _end(running)
        assert store.overlaps == 0
        assert StoredState.from_json(store.document).steps.step == 7

    asyncio.run(main())


def test_a_master_that_ends_does_not_wait_for_an_absent_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the API server stops first, the master ends by itself, without SIGKILL."""
    monkeypatch.setattr(module, "LAST_WRITE", 0.2)

    async def main() -> None:
        running = asyncio.create_task(Master(JobState(SETTINGS), AbsentStore(0.0)).run())
        await asyncio.sleep(0)
        async with asyncio.timeout(240):
            await _end(running)

    asyncio.run(main())


def test_changes_during_a_write_wait_their_time() -> None:
    """Ordinary writes start at least an interval apart, however many changes there are: no more than fit in
    the time that has passed."""

    async def main() -> None:
        store = SlowStore(0.05, interval=0.3)
        master = Master(JobState(SETTINGS), store)
        start = time.monotonic()
        running = asyncio.create_task(master.run())
        await master.durable(master.touched(WriteUrgency.NOW))
        for step in range(100):
            master.state.steps = StepProgress(step=step)
            master.touched(WriteUrgency.GROUPED)
            await asyncio.sleep(0.01)
        regular, passed = len(store.begun), time.monotonic() - start
        await _end(running)
        assert 2 <= regular <= passed / 0.3 + 1

    asyncio.run(main())


@pytest.mark.parametrize("gap", [3600.0, -3600.0])
def test_a_clock_that_jumps_is_no_silence_of_the_nodes(gap: float) -> None:
    """After a sleep of the machine or a change of the clock, each node has its full heartbeat time-out
    again."""
    now = 1000.0
    master = Master(JobState(SETTINGS), SlowStore(0.0), clock=lambda: now)
    master.changed()
    messages.register_node(master.state, Registration(node=WORKER, rank=0, incarnation="a"), now)
    master.changed()
    now += gap
    master.changed()
    assert _lives(master)
    for _ in range(7):
        now += 9
        master.changed()
    assert not _lives(master)


@pytest.mark.parametrize("gap", [3600.0, -3600.0])
def test_who_is_heard_of_first_after_a_jump_is_excused_once(gap: float) -> None:
    """After a jump of the clock, the first heartbeat may come before the master has noticed the jump. That
    node has as much time as the others."""
    now = 10_000.0
    master = Master(JobState(SETTINGS), SlowStore(0.0), clock=lambda: now)
    master.changed()
    messages.register_node(master.state, Registration(node=WORKER, rank=0, incarnation="a"), now)
    master.changed()

    async def beat() -> None:
        transport = httpx.ASGITransport(create_app(master, "secret"))
        headers = {"Authorization": "Bearer secret"}
        async with httpx.AsyncClient(
            transport=transport, base_url="http://master", headers=headers
        ) as client:
            body = {"node": WORKER.model_dump(), "incarnation": "a"}
            assert (await client.post("/v1/nodes/heartbeat", json=body)).status_code == 200

    now += gap
    asyncio.run(beat())
    for _ in range(7):
        master.changed()
        assert _lives(master)
        now += 9
    master.changed()
    assert not _lives(master)


def test_a_master_whose_clock_is_behind_its_predecessors_goes_on() -> None:
    """After a fail-over to a machine whose clock is an hour behind, new members do not wait an hour longer
    for their group."""
    settings = JobSettings(
        "job",
        "default",
        parse_nodes("worker=2"),
        collective=True,
        rendezvous=RendezvousLimits(max_nodes=2, waiting_timeout=30.0),
    )
    now = 10_000.0
    before = JobState(settings)
    messages.register_node(before, _registration(before), now)
    now -= 3600
    master = Master(JobState(settings, before), SlowStore(0.0), clock=lambda: now)
    for _ in range(4):
        master.changed()
        assert master.state.versions.change is None
        now += 9
    master.changed()
    assert master.state.versions.change is not None
    assert master.state.versions.change.target == (0,)


def _registration(state: JobState) -> Registration:
    settle_job(state, 10_000.0)
    return Registration(node=WORKER, rank=0, incarnation="a")


def _lives(master: Master) -> bool:
    node = master.state.nodes.find(WORKER.type, WORKER.id)
    return node is not None and node.live


def test_effects_are_woken_without_the_agents() -> None:
    """What wakes the effects alone, as each event of a pod does, wakes none of the agents that wait for a
    directive; a commit wakes both."""

    async def test() -> None:
        master = Master(JobState(SETTINGS), SlowStore(0.0))
        agent = asyncio.create_task(master.committed(60.0))
        await asyncio.sleep(0)
        woken = master.next_wake()
        master.wake_effects()
        await asyncio.sleep(0)
        assert woken.is_set()
        assert not agent.done()

        woken = master.next_wake()
        running = asyncio.create_task(master.run())
        await master.durable(master.changed())
        assert woken.is_set()
        await agent
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(test())
