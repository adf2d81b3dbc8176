"""Checks a machine and its network before training: measures how many seconds a fixed amount of work and data
exchange takes.

If PyTorch is installed, a separate process works on the devices that training would use
(`edl_workflows.services.agent.torch_check`). Otherwise blocks of bytes are hashed and exchanged with the
partners. A partner proves that it has the job's token without sending it. All nodes of a role have the same
image, so they measure in the same way. The master judges the results
(`edl_workflows.core.protocol.nodes`).
"""

import hashlib
import hmac
import importlib.util
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from pydantic import BaseModel, Field, ValidationError

from edl_workflows.core.exceptions import EdlError, UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.nodes import CheckMember, CheckReport, CheckRound
from edl_workflows.training import addresses
from edl_workflows.training.environment import NodeEnvironment

WORK_BLOCKS = 128
"""Blocks that are hashed."""
EXCHANGE_BLOCKS = 32
"""Blocks that are sent to a partner and back."""
BLOCK = bytes(2**20)
RETRY_SECONDS = 0.2
"""Interval between connection attempts; a partner may learn of the round a little later."""
MIN_SECONDS = 0.01
HELLO_SECONDS = 5.0
"""Time for a partner to authenticate."""
_ANSWER_CHARACTERS = 4096
_NONCE_BYTES = 32
_SHARE = 0.9
"""Share of the round's time that the check may use, since the report must arrive within the round."""


class CheckPlace(BaseModel):
    """What a process that checks a node must know: the number of the round, and the node's place among the
    addresses of its group."""

    number: int
    rank: int
    addresses: list[str]


class CheckAnswer(BaseModel):
    """The answer of that process: the seconds that work and exchange took, or why they failed."""

    seconds: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    error: str = ""


def run_node_check(check: CheckRound, environment: NodeEnvironment) -> CheckReport | None:
    """Take part in a round of the node check.

    Returns:
        The report; None if the node is in none of the round's groups.
    """
    node = environment.node
    group = next((group for group in check.groups if any(member.node == str(node) for member in group)), None)
    if group is None:
        return None
    deadline = time.monotonic() + _SHARE * check.seconds
    try:
        if importlib.util.find_spec("torch") is not None:
            seconds = _measure_with_torch(group, environment, check.number, deadline)
        else:
            seconds = _work() + _exchange(group, environment, check.number, deadline)
    except (OSError, EdlError) as error:
        reason = str(error) or type(error).__name__
        return CheckReport(node=node, round=check.number, error=reason[:1024])
    return CheckReport(node=node, round=check.number, seconds=seconds)


def _measure_with_torch(
    group: Sequence[CheckMember], environment: NodeEnvironment, number: int, deadline: float
) -> float:
    """Seconds that work and exchange took in a process with PyTorch."""
    rank = [member.node for member in group].index(str(environment.node))
    reached = addresses.resolve_all(member.address for member in group)
    reached[rank] = environment.listen_address(0)
    place = CheckPlace(number=number, rank=rank, addresses=reached)
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "edl_workflows.services.agent.torch_check"],
            input=place.model_dump_json() + "\n",
            capture_output=True,
            check=False,
            text=True,
            timeout=_left(deadline, "no time is left for the check"),
        )
    except subprocess.TimeoutExpired:
        raise TimeoutError("the device or a partner did not answer in time") from None
    lines = done.stdout[-_ANSWER_CHARACTERS:].splitlines() or [""]
    try:
        answer = CheckAnswer.model_validate_json(lines[-1])
    except ValidationError:
        last = (done.stderr.strip().splitlines() or ["nothing was printed"])[-1]
        raise UnavailableError(f"the check ended with code {done.returncode}: {last}") from None
    if answer.error:
        raise UnavailableError(answer.error)
    return answer.seconds


def _work() -> float:
    start, digest = time.monotonic(), hashlib.sha256()
    for _ in range(WORK_BLOCKS):
        digest.update(BLOCK)
    return time.monotonic() - start


def _exchange(
    group: Sequence[CheckMember], environment: NodeEnvironment, number: int, deadline: float
) -> float:
    """Seconds that the slowest exchange with a partner took."""
    first, *partners = group
    secret = hashlib.sha256(f"{environment.token} node check {number}".encode()).digest()
    if not partners:
        return 0.0
    if first.node == str(environment.node):
        return _serve(len(partners), environment, secret, deadline)
    return _visit(addresses.resolve(first.address), secret, deadline)


def _serve(partners: int, environment: NodeEnvironment, secret: bytes, deadline: float) -> float:
    """Seconds of the slowest exchange. Failed exchanges don't count if another one succeeded, which shows
    that this node works."""
    # One thread per partner, so that a partner that hangs does not block the others.
    with (
        socket.create_server(addresses.listen(names.NODE_PORTS[environment.node.type][0])) as server,
        ThreadPoolExecutor(partners) as pool,
    ):
        exchanges = [
            pool.submit(_exchange_blocks, connection, deadline)
            for connection in _partners(server, partners, secret, deadline)
        ]
    errors = [error for exchange in exchanges if (error := exchange.exception()) is not None]
    if len(errors) == len(exchanges):
        raise errors[0] if errors else TimeoutError("none of its partners came")
    return max(exchange.result() for exchange in exchanges if exchange.exception() is None)


def _partners(server: socket.socket, count: int, secret: bytes, deadline: float) -> Iterator[socket.socket]:
    """Connections of partners that arrive in time and prove that they have the job's token."""
    while count:
        server.settimeout(max(MIN_SECONDS, deadline - time.monotonic()))
        try:
            connection, _ = server.accept()
        except TimeoutError:
            return
        if _is_partner(connection, secret):
            yield connection
            count -= 1
        else:
            connection.close()


def _exchange_blocks(connection: socket.socket, deadline: float) -> float:
    with connection:
        connection.settimeout(_left(deadline, "a partner is too slow"))
        start = time.monotonic()
        _send_blocks(connection)
        _receive(connection, EXCHANGE_BLOCKS * len(BLOCK))
        return time.monotonic() - start


def _is_partner(connection: socket.socket, secret: bytes) -> bool:
    connection.settimeout(HELLO_SECONDS)
    nonce = secrets.token_bytes(_NONCE_BYTES)
    try:
        connection.sendall(nonce)
        return hmac.compare_digest(_receive(connection, _NONCE_BYTES), _proof(secret, nonce))
    except OSError:
        return False


def _visit(address: str, secret: bytes, deadline: float) -> float:
    with _connect(address, deadline) as connection:
        connection.settimeout(_left(deadline, f"no answer from {address}"))
        connection.sendall(_proof(secret, _receive(connection, _NONCE_BYTES)))
        start = time.monotonic()
        _receive(connection, EXCHANGE_BLOCKS * len(BLOCK))
        _send_blocks(connection)
        return time.monotonic() - start


def _connect(address: str, deadline: float) -> socket.socket:
    host, _, port = address.rpartition(":")
    while True:
        left = _left(deadline, f"no way to {address}")
        try:
            return socket.create_connection((host, int(port)), timeout=left)
        except OSError:
            time.sleep(min(RETRY_SECONDS, left))


def _left(deadline: float, else_: str) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError(else_)
    return left


def _proof(secret: bytes, nonce: bytes) -> bytes:
    return hmac.digest(secret, nonce, "sha256")


def _send_blocks(connection: socket.socket) -> None:
    for _ in range(EXCHANGE_BLOCKS):
        connection.sendall(BLOCK)


def _receive(connection: socket.socket, count: int) -> bytes:
    """Receive exactly `count` bytes, and return at most the last `_NONCE_BYTES` of them: only short messages
    are inspected."""
    last = b""
    while count:
        part = connection.recv(min(count, len(BLOCK)))
        if not part:
            raise ConnectionError("the partner closed the connection")
        last = (last + part)[-_NONCE_BYTES:]
        count -= len(part)
    return last
