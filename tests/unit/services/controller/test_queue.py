"""The work queue: one worker a key, nothing lost, delays and back-off."""

import threading
from collections import Counter

import pytest

from edl_workflows.services.controller.queue import MAX_BACKOFF, WorkQueue
from tests.unit.runtime.kube.support import eventually


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_same_key_once() -> None:
    """A key added twice before it is worked on is handed out once."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.add("a")
    queue.add("b")

    assert (queue.get(), queue.get(), len(queue)) == ("a", "b", 0)


def test_added_while_worked_on() -> None:
    """A key that is added while it is worked on is handed out again afterwards, never at the same time."""
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert queue.get() == "a"
    queue.add("a")
    queue.add("b")

    assert queue.get() == "b"
    queue.done("a")
    assert queue.get() == "a"


def test_idle() -> None:
    """A queue is idle when no key waits or is being worked on."""
    queue: WorkQueue[str] = WorkQueue()
    states = [queue.idle]
    for step in (lambda: queue.add("a"), queue.get, lambda: queue.done("a")):
        step()
        states.append(queue.idle)

    assert states == [True, False, False, True]


def test_delay() -> None:
    """A delayed key is handed out when its time has come. Of two delays for a key the earlier one counts."""
    clock = Clock()
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("a", 10)
    queue.add_after("a", 5)
    queue.add_after("a", 20)
    queue.add("now")

    assert queue.get() == "now"
    clock.now = 5.0
    assert queue.get() == "a"
    queue.done("a")
    clock.now = 100.0
    queue.add("last")
    assert queue.get() == "last"


def test_a_delay_longer_than_a_thread_can_wait() -> None:
    """A very long delay blocks no worker: other keys are handed out meanwhile."""
    waits = threading.Event()

    def clock() -> float:
        if worker.is_alive():
            waits.set()  # under the queue's lock, which only waiting gives back
        return 0.0

    got: list[str | None] = []
    worker = threading.Thread(target=lambda: got.append(queue.get()))
    queue: WorkQueue[str] = WorkQueue(clock)
    queue.add_after("in centuries", 2 * threading.TIMEOUT_MAX)
    worker.start()
    assert waits.wait(240)
    queue.add("now")
    worker.join(240)

    assert got == ["now"]


def test_backoff_doubles_until_forgotten() -> None:
    """Each failure doubles the delay up to a maximum, and a success resets it."""
    queue: WorkQueue[str] = WorkQueue(Clock())
    delays = [queue.retry("a") for _ in range(40)]
    queue.forget("a")

    assert delays[:4] == [0.05, 0.1, 0.2, 0.4]
    assert delays[-1] == MAX_BACKOFF
    assert queue.retry("a") == 0.05


@pytest.mark.parametrize("workers", [1, 4])
def test_close_wakes_all(workers: int) -> None:
    """Closing ends every waiting worker."""
    queue: WorkQueue[str] = WorkQueue()
    got: list[str | None] = []
    threads = [threading.Thread(target=lambda: got.append(queue.get())) for _ in range(workers)]
    for thread in threads:
        thread.start()
    queue.close()
    for thread in threads:
        thread.join(240)

    assert [None] * workers == got


def test_many_workers() -> None:
    """With many threads adding keys, no key is handed to two workers at once, and each add is followed by
    work."""
    queue: WorkQueue[int] = WorkQueue()
    busy: Counter[int] = Counter()
    added: Counter[int] = Counter()
    seen: dict[int, int] = {}
    clashes: list[int] = []
    lock = threading.Lock()

    def work() -> None:
        while (key := queue.get()) is not None:
            with lock:
                busy[key] += 1
                if busy[key] > 1:
                    clashes.append(key)
                seen[key] = added[key]
            with lock:
                busy[key] -= 1
            queue.done(key)

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    for number in range(3000):
        with lock:
            added[number % 7] += 1
        queue.add(number % 7)
    eventually(lambda: queue.idle)
    queue.close()
    for worker in workers:
        worker.join(240)

    assert clashes == []
    assert dict(added) == seen
