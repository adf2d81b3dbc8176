"""A second copy of the model in the memory of another node."""

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edl_workflows.core.exceptions import UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import Directive
from edl_workflows.core.protocol.training import CheckpointEnd
from edl_workflows.services.agent import peer_server
from edl_workflows.services.agent.peer_server import PeerServer
from edl_workflows.services.agent.peers import PeerAgent, PeerCopies, partner_host
from edl_workflows.training.checkpoints.snapshots import ModelSnapshot, SnapshotFolder, claim_folder
from edl_workflows.training.client import MasterClient
from edl_workflows.training.environment import NodeEnvironment
from tests.unit.training.fake_master import TOKEN, FakeMaster, cluster, eventually, world
from tests.unit.training.test_snapshots import content, copied

pytestmark = pytest.mark.slow

HOST = "127.0.0.1"


def address(node_type: str, node_id: int) -> str:
    return names.node_address("demo", "default", node_type, node_id, 1)


def host(node_type: str, node_id: int) -> str:
    return address(node_type, node_id).rpartition(":")[0]


def with_workers(*ids: int, **fields: object) -> Directive:
    """A job with a parameter server and these workers by rank."""
    workers = {rank: address("worker", i) for rank, i in enumerate(ids)}
    return Directive.model_validate({"revision": 1, "workers": workers, **fields})


PARTNERS = {
    "nobody trains yet": (Directive(revision=1), "worker-0", ""),
    "rank 1 holds that of rank 0": (Directive(revision=1, active=world(1, (3, 5, 4))), "worker-5",
        host("worker", 3)),
    "rank 0 holds that of rank 1": (Directive(revision=1, active=world(1, (3, 5, 4))), "worker-3",
        host("worker", 5)),
    "the others hold none": (Directive(revision=1, active=world(1, (3, 5, 4))), "worker-4", ""),
    "who is alone has no partner": (Directive(revision=1, active=world(1, (3,))), "worker-3", ""),
    "the next chief beside servers": (
        with_workers(0, 2, 7, active=cluster(1, ps=1)), "worker-2", host("worker", 0),
    ),
    "a chief of its own role": (
        with_workers(0, 1, active=cluster(1, ps=1).model_copy(update={"chief_type": "chief"})),
        "worker-0",
        host("chief", 0),
    ),
    "a server holds none": (with_workers(0, 1, active=cluster(1, ps=1)), "ps-0", ""),
}  # fmt: skip


@pytest.mark.parametrize("row", PARTNERS)
def test_partner(row: str, pod_env: dict[str, str]) -> None:
    """The chief and the node that would become the next chief hold each other's newest copy. Other nodes have
    no partner."""
    directive, node, expected = PARTNERS[row]
    node_type, _, node_id = node.rpartition("-")
    mine = NodeEnvironment.read({**pod_env, names.ENV_NODE_TYPE: node_type, names.ENV_NODE_ID: node_id})
    assert partner_host(directive, mine) == expected


RING = {
    "the chief": ("worker-3", host("worker", 4)),
    "the second": ("worker-5", host("worker", 3)),
    "the last": ("worker-4", host("worker", 5)),
}


@pytest.mark.parametrize("row", RING)
def test_partner_when_all_copy_parts(row: str, pod_env: dict[str, str]) -> None:
    """Each worker holds the part of the worker before it, so that the loss of one machine loses no part."""
    node, expected = RING[row]
    mine = NodeEnvironment.read({**pod_env, names.ENV_NODE_ID: node.rpartition("-")[2]})
    directive = Directive(revision=1, active=world(1, (3, 5, 4)))
    assert partner_host(directive, mine, in_parts=True) == expected


@pytest.fixture
def port(monkeypatch: pytest.MonkeyPatch) -> int:
    """A free port, on which agents listen in this test."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        free: int = probe.getsockname()[1]
    monkeypatch.setattr(names, "AGENT_PORT", free)
    monkeypatch.setattr("edl_workflows.services.agent.peers.RETRY_SECONDS", 0.05)
    monkeypatch.setattr("edl_workflows.services.agent.peers.REACH_SECONDS", 1.0)
    return free


@pytest.fixture
def source(tmp_path: Path, port: int) -> Iterator[SnapshotFolder]:
    """A chief's copies, given to who asks."""
    folder = claim_folder(tmp_path / "chief")
    server = PeerServer(folder, (HOST, port), TOKEN)
    server.start()
    yield folder
    server.close()


def test_copy_crosses_whole(source: SnapshotFolder, tmp_path: Path) -> None:
    """The copy that the partner receives equals the newest one, and is not offered to it again."""
    text = bytes(range(256)) * 40_000
    copied(source, text, step=7)
    peer = PeerAgent(HOST, TOKEN)

    found = peer.newest("", 0)
    assert found == source.newest
    assert found is not None
    into = bytearray(found.size)
    peer.fetch(found, memoryview(into))
    assert into == text
    assert peer.newest(found.name, 0.2) is None


def test_chief_in_place_of_a_lost_one_gets_what_that_had_copied(source: SnapshotFolder) -> None:
    """A node gives the copy that it holds for another node if that one is newer than its own, so that a new
    chief gets what the lost one had copied."""
    copied(source, b"its own, from when it was chief", step=3)
    source.of_peer.folder.mkdir()
    copied(source.of_peer, b"of the lost chief", step=9)
    found = PeerAgent(HOST, TOKEN).newest("", 0)
    assert found is not None
    into = bytearray(found.size)
    PeerAgent(HOST, TOKEN).fetch(found, memoryview(into))
    assert into == b"of the lost chief"


def test_newer_copy_ends_the_waiting(source: SnapshotFolder) -> None:
    """A request that waits for a newer copy is answered when there is one."""
    first = copied(source, b"1")
    assert first is not None
    timer = threading.Timer(0.2, lambda: copied(source, b"2", step=2))
    timer.start()
    found = PeerAgent(HOST, TOKEN).newest(first.name, 20)
    assert found is not None
    assert found.step == 2


def test_copy_that_is_given_away_is_not_written_over(source: SnapshotFolder, port: int) -> None:
    """While a partner slowly reads a copy, the training process does not overwrite it. The slot is free again
    when the partner is gone."""
    older = copied(source, bytes(64 * 2**20), persist=False)
    assert older is not None
    copied(source, b"newest", step=2)
    with socket.create_connection((HOST, port)) as slow:
        question = f"GET /v1/snapshots/{older.name} HTTP/1.1\r\nAuthorization: Bearer {TOKEN}\r\n\r\n"
        slow.sendall(question.encode())
        assert slow.recv(1000).startswith(b"HTTP/1.1 200 OK")
        assert source.busy
        assert copied(source, b"next") is None
    eventually(lambda: not source.busy)


HOSTILE = {
    "no token": ("/v1/snapshots/newest", {}, 401),
    "a wrong token": ("/v1/snapshots/newest", {"Authorization": "Bearer x"}, 401),
    "a token of other letters": ("/v1/snapshots/1", {"Authorization": "Bearer \xe4"}, 401),
    "another path": ("/etc/passwd", {"Authorization": f"Bearer {TOKEN}"}, 404),
    "a path that climbs": ("/v1/snapshots/../../x", {"Authorization": f"Bearer {TOKEN}"}, 404),
    "a copy that is not there": (
        "/v1/snapshots/checkpoint-000000000001-00000000",
        {"Authorization": f"Bearer {TOKEN}"},
        404,
    ),
    "a wait that is no number": ("/v1/snapshots/newest?wait=nan", {"Authorization": f"Bearer {TOKEN}"}, 204),
    "a wait below nothing": ("/v1/snapshots/newest?wait=-inf", {"Authorization": f"Bearer {TOKEN}"}, 204),
}


@pytest.mark.parametrize("row", HOSTILE)
def test_hostile_question_is_refused(row: str, source: SnapshotFolder, port: int) -> None:
    """Without the job's token a request gets nothing; with the token it gets copies only."""
    path, headers, status = HOSTILE[row]
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    connection.request("GET", path, headers=headers)
    assert connection.getresponse().status == status
    connection.close()


SILENT: dict[str, bytes] = {
    "nothing": b"",
    "half a question": b"GET /v1/snapshots/newest HTTP/1.1\r\nAuthorization: Bearer x\r\n",
}


@pytest.mark.parametrize("said", SILENT)
def test_silent_crowd_keeps_nobody_out(said: str, source: SnapshotFolder, port: int) -> None:
    """Connections that do not show the token never block the partner: the server closes the oldest of them
    for new ones."""
    copied(source, b"x")
    with contextlib.ExitStack() as crowd:
        for _ in range(peer_server.MAX_SILENT + 8):
            crowd.enter_context(socket.create_connection((HOST, port))).sendall(SILENT[said])
        for _ in range(3):
            assert PeerAgent(HOST, TOKEN).newest("", 0) is not None


def test_late_question_is_cut_off(source: SnapshotFolder, port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that sends a byte now and then has no more time than one that sends nothing."""
    monkeypatch.setattr(peer_server, "HEAD_SECONDS", 0.5)
    with socket.create_connection((HOST, port)) as late:
        late.settimeout(0.1)

        def cut() -> bool:
            try:
                late.sendall(b"X")
                return late.recv(1) == b""
            except TimeoutError:
                return False
            except ConnectionError:
                return True

        eventually(cut)


def test_endless_question_is_cut_off(source: SnapshotFolder, port: int) -> None:
    """The size of a request is bounded, so that a client without the token can't use up the agent's
    memory."""
    with socket.create_connection((HOST, port)) as endless:
        endless.settimeout(30)
        endless.sendall(b"GET /v1/snapshots/newest HTTP/1.1\r\n")
        sent = 0
        with contextlib.suppress(ConnectionError):
            while sent < 64 * 2**20:
                endless.sendall(b"X: " + b"x" * 60_000 + b"\r\n")
                sent += 60_000
    assert sent < 32 * 2**20


def test_questions_with_the_token_are_bounded(
    source: SnapshotFolder, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Partners beyond the limit are told to come again later, and are served when another one is done."""
    # So that none is answered, or dropped as silent, before the others are asked, however slow the machine.
    for limit in ("MAX_WAIT_SECONDS", "HEAD_SECONDS", "_Handler.timeout"):
        monkeypatch.setattr(f"edl_workflows.services.agent.peer_server.{limit}", 600.0)
    monkeypatch.setattr("edl_workflows.services.agent.peers.REACH_SECONDS", 600.0)
    newest = copied(source, b"x")
    assert newest is not None

    def wait_for_the_next() -> ModelSnapshot | None:
        with contextlib.suppress(UnavailableError):  # `served` took its place
            return PeerAgent(HOST, TOKEN).newest(newest.name, 600)
        return None

    with ThreadPoolExecutor(peer_server.MAX_QUESTIONS) as pool:
        waiting = [pool.submit(eventually, wait_for_the_next) for _ in range(peer_server.MAX_QUESTIONS)]
        try:
            eventually(lambda: not served())
        finally:
            copied(source, b"y", step=2)  # answers them all
        assert {one.result().step for one in waiting} == {2}
    eventually(served)


def served() -> bool:
    """Whether the partner is."""
    try:
        return PeerAgent(HOST, TOKEN).newest("", 0) is not None
    except UnavailableError:
        return False


def test_own_part_is_given_away_before_one_that_is_held(source: SnapshotFolder) -> None:
    """Of one checkpoint, a node gives its own part rather than the part that it holds for another node."""
    name = "checkpoint-000000000003-00000000"
    source.of_peer.folder.mkdir()
    copied(source.of_peer, b"of the node before", step=3, name=name, part=0, parts=3)
    copied(source, b"its own", step=3, name=name, part=1, parts=3)
    found = PeerAgent(HOST, TOKEN).newest("", 0)
    assert found is not None
    assert found.part == 1
    into = bytearray(found.size)
    PeerAgent(HOST, TOKEN).fetch(found, memoryview(into))
    assert into == b"its own"


@pytest.fixture
def backup(
    master: FakeMaster,
    environment: NodeEnvironment,
    tmp_path: Path,
    port: int,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[PeerCopies]:
    """The agent's part in the node whose partner is the chief."""
    monkeypatch.setattr(
        "edl_workflows.services.agent.peers.partner_host", lambda _directive, _environment, **_: HOST
    )
    monkeypatch.setattr("edl_workflows.services.agent.peers.addresses.listen", lambda _port: (HOST, 0))
    with MasterClient(master.url, TOKEN) as client:
        peers = PeerCopies(
            claim_folder(tmp_path / "backup"), environment, client, lambda: Directive(revision=1)
        )
        peers.start()
        yield peers
        peers.close(10)


def held(peers: PeerCopies, step: int) -> bool:
    newest = peers.copies.newest
    return newest is not None and newest.step == step


def test_backup_follows_the_chief(source: SnapshotFolder, backup: PeerCopies, master: FakeMaster) -> None:
    """The backup gets each new copy soon after the chief made it, and writes none to storage while the chief
    lives."""
    copied(source, b"one", step=1)
    eventually(lambda: held(backup, 1))
    copied(source, b"two", step=2)
    eventually(lambda: held(backup, 2))
    newest = backup.copies.newest
    assert newest is not None
    assert content(backup.copies, newest.number) == b"two"

    backup.rescue()
    eventually(lambda: backup.settled)
    assert not master.got(CheckpointEnd)


def test_backup_persists_what_a_lost_machine_had_copied(
    tmp_path: Path, port: int, backup: PeerCopies, master: FakeMaster
) -> None:
    """If the chief's machine is lost with its memory, its partner persists the chief's newest copy under its
    ticket."""
    folder = claim_folder(tmp_path / "chief")
    server = PeerServer(folder, (HOST, port), TOKEN)
    server.start()
    made = copied(folder, b"newest", step=5, persist=False)
    assert made is not None
    eventually(lambda: held(backup, 5))
    server.close()

    backup.rescue()
    eventually(lambda: backup.settled)
    (end,) = eventually(lambda: master.got(CheckpointEnd))
    assert (end.uri, end.step) == (made.ref.uri, 5)


def test_wrong_token_gets_no_copy(source: SnapshotFolder) -> None:
    """A partner with the token of another job, or with an old token, gets no copy, and its error says so."""
    copied(source, b"secret")
    with pytest.raises(UnavailableError, match="answered 401"):
        PeerAgent(HOST, "another").newest("", 0)


LIES = {
    "more bytes than a number can say": 2**70,
    "more bytes than there is memory": 2**60,
    "more bytes than it sends": 1000,
}


@pytest.mark.parametrize("lie", LIES)
def test_partner_that_lies_does_no_harm(
    lie: str, source: SnapshotFolder, backup: PeerCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A partner that sends a wrong description of a copy does no harm: a partial copy does not count, the
    previous one stays, and the next correct one is taken."""
    copied(source, b"one", step=1, persist=False)
    eventually(lambda: held(backup, 1))
    honest: Callable[[PeerServer], ModelSnapshot | None] = vars(PeerServer)["newest"].fget
    asked, lied = threading.Event(), threading.Event()

    def newest(server: PeerServer) -> ModelSnapshot:
        asked.set()
        found = honest(server)
        assert found is not None
        if found.step == 2:
            lied.set()
        return ModelSnapshot.model_construct(**{**dict(found), "size": LIES[lie]})

    with monkeypatch.context() as patch:
        patch.setattr(PeerServer, "newest", property(newest))
        assert asked.wait(240)  # an honest answer may be on its way until here
        copied(source, b"two", step=2, persist=False)
        assert lied.wait(240)
        eventually(lambda: not backup.copies.folder.joinpath("slot-1.json").exists())
        assert held(backup, 1)
    copied(source, b"three", step=3)
    eventually(lambda: held(backup, 3))


def test_node_that_ends_leaves_its_partners_copies_to_the_partner(
    source: SnapshotFolder,
    master: FakeMaster,
    environment: NodeEnvironment,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A node that ends does not persist copies of a partner that lives, since the partner will save a newer
    state."""
    monkeypatch.setattr(
        "edl_workflows.services.agent.peers.partner_host", lambda _directive, _environment, **_: HOST
    )
    monkeypatch.setattr("edl_workflows.services.agent.peers.addresses.listen", lambda _port: (HOST, 0))
    with MasterClient(master.url, TOKEN) as client:
        peers = PeerCopies(
            claim_folder(tmp_path / "backup"), environment, client, lambda: Directive(revision=1)
        )
        peers.start()
        copied(source, b"one", step=1, persist=False)
        eventually(lambda: held(peers, 1))
        peers.close(10)
    assert not master.got(CheckpointEnd)
