"""The client of a Brain: what it says, and that whatever a Brain answers is a plan or one of our errors."""

import json
import math
import ssl
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from edl_workflows.core.exceptions import EdlError, ForbiddenError, InvalidError, UnavailableError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.brain import MAX_AMOUNT, JobEnd
from edl_workflows.core.scaling.dlrover.ps_stages import (
    OptimizerQuestion,
    OptimizerStage,
    WorkerPhase,
    optimize_locally,
)
from edl_workflows.core.scaling.dlrover.resources import (
    PS,
    WORKER,
    Advice,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    OptimizerRole,
    Range,
    ResourceLimits,
    UserBounds,
)
from edl_workflows.services.brain.observations import JobObservation
from edl_workflows.services.brain.server import BrainOptions, BrainServer
from edl_workflows.services.master.brain import MAX_ANSWER, BrainAccess, BrainClient, JobIdentity
from tests.unit.services.brain import support
from tests.unit.services.brain.support import OPERATOR, OTHER, TEAM, Api, sample

pytestmark = pytest.mark.slow

api = support.api

SIZE = NodeSize(4.0, 8_192.0)
NODES = tuple(
    OptimizerNode(f"mnist-edljob-{role}-{i}", role, i, SIZE)
    for role, count in ((PS, 1), (WORKER, 2))
    for i in range(count)
)
JOB = OptimizerJob(
    "mnist",
    {PS: OptimizerRole(1, SIZE), WORKER: OptimizerRole(2, SIZE)},
    ResourceLimits(100.0, 400_000.0, 0.0),
    NODES,
    (sample(1_000.0),),
)
QUESTION = OptimizerQuestion(OptimizerStage.WORKER_INITIAL, WorkerPhase.INITIAL)
IDENTITY = JobIdentity("uid-1", "team")


def client(url: str, token: str = TEAM) -> BrainClient:
    return BrainClient(BrainAccess(url, lambda: token), IDENTITY)


def answering(answer: Callable[[httpx.Request], httpx.Response]) -> BrainClient:
    return BrainClient(BrainAccess("brain:1"), IDENTITY, httpx.MockTransport(answer))


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long Brain takes to answer says something about the machine."""
    monkeypatch.setattr("edl_workflows.services.master.brain.ANSWER_SECONDS", 120.0)


@pytest.fixture
def planning(api: Api) -> Api:
    """A Brain that is ready to plan, as a process is when it listens: its client waits for seconds only."""
    api.server.optimizer.start()
    return api


def test_report_and_plan(planning: Api) -> None:
    """Reports are stored, and plans follow from them; a restarted master continues from there."""
    brain = client(planning.url)
    samples = tuple(sample(1_000.0 + 15 * i, step=i) for i in range(5))
    brain.report(JOB, samples[:3])
    brain.report(JOB, samples)
    brain.close()
    assert [one["time"] for one in planning.get("jobs/uid-1/metrics").json()["samples"]] == [
        s.time for s in samples
    ]

    fresh = client(planning.url)
    plan = fresh.optimize(QUESTION, JOB)
    count = plan.node_group_resources[WORKER].count
    assert count is not None
    assert count > 2
    assert plan.reasons[WORKER]
    fresh.close()


def test_nodes_that_ran_out_of_memory_are_reported(api: Api) -> None:
    """Each node is reported once, with the samples of that time."""
    oom = OptimizerNode("mnist-edljob-worker-7", WORKER, 7, SIZE, oom=True)
    brain = client(api.url)
    for time in (1_000.0, 1_015.0):
        brain.report(OptimizerJob("mnist", JOB.roles, JOB.limits, (*NODES, oom)), (sample(time),))
    brain.close()
    assert api.get("jobs/uid-1/metrics").json()["ooms"] == [{"node": oom.name, "time": 1_000.0}]


def test_samples_that_can_t_be_believed_are_not_sent(api: Api) -> None:
    """Samples with implausible numbers are left out; the others are sent."""
    brain = client(api.url)
    brain.report(
        JOB, (sample(1_000.0), sample(math.nan), sample(1_015.0, speed=-1.0), sample(1_030.0, step=2**70))
    )
    brain.close()
    assert [one["time"] for one in api.get("jobs/uid-1/metrics").json()["samples"]] == [1_000.0]


def test_a_job_s_end_may_be_told_twice(api: Api) -> None:
    """An end that is reported twice is stored once, and an older observation of a slow monitor does not
    replace it."""
    brain = client(api.url)
    end = JobEnd(time=2_000.0, completed=False, reason="out of luck")
    for _ in range(2):
        brain.report(JOB, (sample(1_000.0),), end)
    brain.close()
    seen = JobObservation("uid-1", "ElasticJob", "team", "mnist", "Running", reason="out of luck")
    api.server.store.record_jobs([seen], [], 2_001.0)
    told = api.get("jobs/uid-1/metrics").json()
    assert told["end"] == {"time": 2_000.0, "completed": False, "reason": "out of luck"}
    assert [one["time"] for one in told["samples"]] == [1_000.0]


def test_many_samples_are_sent_in_parts(api: Api) -> None:
    """After Brain was unavailable for long, the samples are sent in several requests."""
    brain = client(api.url)
    brain.report(JOB, tuple(sample(1_000.0 + i, workers=0) for i in range(1_200)))
    brain.close()
    assert len(api.get("jobs/uid-1/metrics", newest=5_000).json()["samples"]) == 1_200


@pytest.mark.parametrize("token", ["", "wrong", OTHER])
def test_a_wrong_token(api: Api, token: str) -> None:
    """A wrong token raises an error that says so without containing the token."""
    brain = client(api.url, token)
    for call in (lambda: brain.report(JOB, ()), lambda: brain.optimize(QUESTION, JOB)):
        with pytest.raises(ForbiddenError) as caught:
            call()
        assert not token or token not in str(caught.value).replace("wrong;", "")
    brain.close()


STRANGE_JOBS = {
    "a negative count": OptimizerJob("mnist", {WORKER: OptimizerRole(-1)}),
    "an infinite limit": OptimizerJob("mnist", {WORKER: OptimizerRole(1)}, ResourceLimits(cpu=math.inf)),
    "a limit that is no number": OptimizerJob(
        "mnist", {WORKER: OptimizerRole(1)}, ResourceLimits(memory=math.nan)
    ),
    "a size beyond everything": OptimizerJob("mnist", {WORKER: OptimizerRole(1, NodeSize(1e300))}),
    "a bad name": OptimizerJob("../mnist", {WORKER: OptimizerRole(1)}),
    "a node with a bad name": OptimizerJob(
        "mnist", {WORKER: OptimizerRole(1)}, nodes=(OptimizerNode("a\0b", WORKER, 0),)
    ),
}


@pytest.mark.parametrize("job", STRANGE_JOBS.values(), ids=STRANGE_JOBS)
def test_a_job_that_can_t_be_told(job: OptimizerJob) -> None:
    """A job that the protocol can't describe is rejected by the client with InvalidError; the local optimizer
    then plans nothing for it."""
    with pytest.raises(InvalidError, match="can't be told to Brain"):
        answering(lambda _: httpx.Response(500)).optimize(QUESTION, job)
    assert not optimize_locally(QUESTION, job).node_group_resources


def test_bounds_without_an_end_are_told(planning: Api) -> None:
    """The bounds of a role that has a minimum but no maximum reach Brain, with the largest amount that the
    protocol knows as the maximum. Brain answers such a request."""
    role = OptimizerRole(3, SIZE, bounds=UserBounds(count=Range(3, math.inf)))
    job = OptimizerJob("mnist", {PS: OptimizerRole(1, SIZE), WORKER: role}, JOB.limits)
    told: list[dict[str, Any]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        told.append(json.loads(request.content)["job"]["roles"][WORKER]["bounds"])
        return httpx.Response(200, content=_plan())

    answering(answer).optimize(QUESTION, job)
    assert told == [{"count": {"low": 3.0, "high": MAX_AMOUNT}, "cpu": None, "memory": None}]
    brain = client(planning.url)
    assert brain.optimize(QUESTION, job).notes
    brain.close()


def _plan(**more: Any) -> bytes:
    return json.dumps({"groups": {"worker": {"count": 3}}} | more).encode()


NONSENSE = {
    "no JSON": b"<html>",
    "empty": b"",
    "a list": b"[]",
    "a negative count": _plan(groups={"worker": {"count": -1}}),
    "an absurd count": _plan(groups={"worker": {"count": 10**12}}),
    "not a number": b'{"groups": {"worker": {"resource": {"cpu": NaN}}}}',
    "infinite": b'{"nodes": {"n": {"memory": Infinity}}}',
    "negative": _plan(nodes={"n": {"memory": -5}}),
    "deep": b'{"groups":' * 9_000,
    "bytes": b"\xff\xfe\x00",
    "endless": b" " * (MAX_ANSWER + 1),
}


@pytest.mark.parametrize("body", NONSENSE.values(), ids=NONSENSE)
def test_nonsense_is_no_answer(body: bytes) -> None:
    """Any malformed response raises UnavailableError and no other error."""
    with pytest.raises(UnavailableError):
        answering(lambda _: httpx.Response(200, content=body)).optimize(QUESTION, JOB)


def test_an_answer_becomes_a_plan() -> None:
    """The plan has all values of Brain's answer."""
    body = _plan(nodes={"n": {"cpu": 8}}, reasons={"worker": "w"}, notes=["x"], waiting=True, newer_field=1)
    plan = answering(lambda _: httpx.Response(200, content=body)).optimize(QUESTION, JOB)
    assert plan == Advice(
        {"worker": NodeGroupResource(3)}, {"n": NodeSize(cpu=8.0)}, {"worker": "w"}, ("x",), waiting=True
    )


STATUSES = {
    401: ForbiddenError,
    403: ForbiddenError,
    422: InvalidError,
    500: UnavailableError,
    503: UnavailableError,
}


@pytest.mark.parametrize(("status", "error"), STATUSES.items(), ids=map(str, STATUSES))
def test_refusals(status: int, error: type[EdlError]) -> None:
    """Each error status raises the error class that says what to do."""
    with pytest.raises(error, match=str(status)):
        answering(lambda _: httpx.Response(status, json={"error": "why"})).optimize(QUESTION, JOB)


def test_a_redirect_is_no_answer() -> None:
    """A redirect raises an error, so that the token is not sent to another server."""
    with pytest.raises(UnavailableError):
        answering(lambda _: httpx.Response(302, headers={"Location": "http://elsewhere"})).optimize(
            QUESTION, JOB
        )


@pytest.mark.parametrize("url", ["http://127.0.0.1:1", "127.0.0.1:1", "https://127.0.0.1:1"])
def test_a_brain_that_is_away(url: str) -> None:
    """An unavailable Brain raises an error at once."""
    with pytest.raises(UnavailableError, match="does not answer"):
        client(url).optimize(QUESTION, JOB)


@pytest.mark.parametrize("url", ["http://[::1", "ftp://brain", "http://a b:1", "", "brain:port"])
def test_an_address_that_is_none(url: str) -> None:
    """A malformed address of Brain raises an error of this package, with the first request at the latest."""
    with pytest.raises(EdlError):
        client(url).optimize(QUESTION, JOB)


def test_the_environment(tmp_path: Path) -> None:
    """A token file takes precedence over the variable, and is read at each call, since a Secret may
    change."""
    file = tmp_path / "token"
    environment = {names.ENV_BRAIN_TOKEN: "plain"}
    assert BrainAccess.of_environment("brain:1", environment).token() == "plain"
    assert BrainAccess.of_environment("brain:1", {}).token() == ""
    access = BrainAccess.of_environment("brain:1", environment | {names.ENV_BRAIN_TOKEN_FILE: str(file)})
    with pytest.raises(UnavailableError):
        access.token()
    for text in ("one", "two\n"):
        file.write_text(text)
        assert access.token() == text.strip()
    with pytest.raises(InvalidError, match="certificates"):
        BrainClient(BrainAccess("https://brain:1", ca_file=tmp_path / "none"), IDENTITY)


def test_https(tmp_path: Path) -> None:
    """The client asks a Brain over TLS if it trusts its certificate, and refuses to otherwise."""
    certificate, key = _certificate(tmp_path)
    options = BrainOptions(
        f"sqlite:///{tmp_path}/brain.db",
        support.tokens_file(tmp_path),
        port=0,
        certificate=certificate,
        key=key,
    )
    server = BrainServer(options)
    server.optimizer.start()
    with server.serving() as url:
        assert url.startswith("https://")
        trusting = BrainClient(BrainAccess(url, lambda: OPERATOR, certificate), IDENTITY)
        trusting.report(JOB, (sample(1_000.0),))
        assert trusting.optimize(QUESTION, JOB).notes
        trusting.close()
        careful = BrainClient(BrainAccess(url, lambda: OPERATOR), IDENTITY)
        with pytest.raises(UnavailableError, match=ssl.SSLCertVerificationError.__name__[:3]):
            careful.report(JOB, ())
        careful.close()


def _certificate(folder: Path) -> tuple[Path, Path]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "brain")])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(1)
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .sign(key, hashes.SHA256())
    )
    files = folder / "tls.crt", folder / "tls.key"
    files[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    files[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    return files
