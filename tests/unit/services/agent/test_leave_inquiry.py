"""How an agent asks whether it may end."""

import itertools
import threading
from collections.abc import Callable

import pytest

from edl_workflows.core.exceptions import NotFoundError, UnavailableError
from edl_workflows.core.protocol.nodes import LeaveVerdict
from edl_workflows.services.agent import leave_inquiry
from edl_workflows.services.agent.leave_inquiry import LeaveInquiry

Answer = LeaveVerdict | Exception


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seconds become hundredths."""
    monkeypatch.setattr(leave_inquiry, "ASK_SECONDS", 0.01)
    monkeypatch.setattr(leave_inquiry, "UNANSWERED_SECONDS", 0.2)


def answering(*answers: Answer) -> Callable[[], LeaveVerdict]:
    """A master that answers so; the last answer stays."""
    coming = itertools.chain(answers, itertools.repeat(answers[-1]))

    def ask() -> LeaveVerdict:
        answer = next(coming)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return ask


@pytest.mark.parametrize(
    "answers",
    [
        (LeaveVerdict(wait=True, seconds=9.0), LeaveVerdict(wait=False, seconds=90.0)),
        (LeaveVerdict(wait=True, seconds=90.0), UnavailableError("gone")),
        (UnavailableError("restarting"), LeaveVerdict(wait=False, seconds=90.0)),
        (LeaveVerdict(wait=True, seconds=90.0), NotFoundError("forgotten")),
    ],
    ids=["allowed", "the master ends", "the master restarts", "refused"],
)
def test_node_may_end_when_its_master_allows_it_or_is_gone(answers: tuple[Answer, ...]) -> None:
    """It keeps what the master told last of the time that a save takes."""
    woken = threading.Event()
    asked = LeaveInquiry(answering(*answers), woken.set)
    asked.start()
    assert woken.wait(30)
    assert asked.allowed
    assert asked.seconds == 90.0


def test_master_of_an_earlier_version_keeps_nobody() -> None:
    """It does not know the call: the node ends at once, as it did with the earlier agent."""
    woken = threading.Event()
    asked = LeaveInquiry(answering(NotFoundError("no such route")), woken.set)
    asked.start()
    assert woken.wait(30)
    assert asked.seconds == 0.0
