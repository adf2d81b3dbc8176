"""Every server of ours, spoken to as no HTTP library would: none ends, and none says that it is its own
failure."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from random import Random

import pytest

from tests.security import raw_http
from tests.security.raw_http import Conversation
from tests.security.servers import NAMES, Server
from tests.security.tally import NOT_IMPLEMENTED

pytestmark = pytest.mark.slow
SEEDS = range(30)


def wrong(server: Server, conversation: Conversation) -> str:
    """What is wrong after a conversation; empty for nothing."""
    statuses = raw_http.hold(server, conversation)
    blamed = [status for status in statuses if status >= 500 and status not in NOT_IMPLEMENTED]
    if blamed:
        return f"{server.name} answers {blamed} to {conversation}"
    return "" if server.lives else f"{server.name} ended of {conversation}: {server.log.read_text()[-2000:]}"


def wrong_of_all(conversations: Iterable[tuple[Server, Conversation]]) -> list[str]:
    """The same of several at a time."""
    with ThreadPoolExecutor(len(NAMES)) as pool:
        return [found for found in pool.map(lambda pair: wrong(*pair), conversations) if found]


@pytest.mark.parametrize("row", raw_http.ROWS)
def test_a_broken_request_is_the_clients_mistake(row: str, attacked: dict[str, Server]) -> None:
    """Each server rejects or ignores a broken request without a server error, and closes the connection when
    the client does."""
    make: Callable[[Server], Conversation] = raw_http.ROWS[row]

    assert not wrong_of_all((server, make(server)) for server in attacked.values())


@pytest.mark.parametrize("name", NAMES)
def test_random_conversations_are_the_clients_mistake(name: str, attacked: dict[str, Server]) -> None:
    """Random broken conversations, drawn from fixed seeds, are handled as client errors; `make fuzz` draws
    others."""
    server = attacked[name]

    assert not wrong_of_all((server, raw_http.draw(Random(seed), server)) for seed in SEEDS)
