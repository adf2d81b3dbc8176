"""HTTP client of a Brain service. Calls block. A failed call is not retried; the next call is a new attempt.

Brain's answers are not trusted: an answer that can't be parsed, or whose numbers no job can have, is
rejected. The caller limits advice to the job's own bounds.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import ValidationError

from edl_workflows.core.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol import brain
from edl_workflows.core.protocol.brain import JobEnd
from edl_workflows.core.protocol.message import Message, describe_problems
from edl_workflows.core.scaling.dlrover.brain.messages import (
    advice_of,
    limits_of,
    nodes_of,
    roles_of,
    sample_message,
    training_facts,
)
from edl_workflows.core.scaling.dlrover.brain.request import TrainingParameters
from edl_workflows.core.scaling.dlrover.ps_stages import OptimizerQuestion
from edl_workflows.core.scaling.dlrover.resources import Advice, OptimizerJob
from edl_workflows.core.scaling.dlrover.samples import JobSample, valid_samples
from edl_workflows.training import addresses

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
"""Seconds in which Brain must answer; a master must not wait long for an optimizer."""
MAX_ANSWER = 4 * 2**20
"""Bytes."""

A = TypeVar("A", bound=Message)
_REFUSED: Mapping[int, type[EdlError]] = {
    401: ForbiddenError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    422: InvalidError,
}


@dataclass(frozen=True)
class BrainAccess:
    """How to reach a Brain.

    Attributes:
        url: `http://host:port` or `https://host:port`; without a scheme it is HTTP.
        token: called before each request; returns the tenant's token, or "" for none.
        ca_file: certificates that HTTPS is verified against; None: the system's.
    """

    url: str
    token: Callable[[], str] = str
    ca_file: Path | None = None

    @classmethod
    def of_environment(cls, url: str, environment: Mapping[str, str]) -> "BrainAccess":
        """The access to `url`, with token and certificates from environment variables; see
        `names.ENV_BRAIN_TOKEN`.
        """
        file, ca_file = environment.get(names.ENV_BRAIN_TOKEN_FILE), environment.get(names.ENV_BRAIN_CA_FILE)
        token = environment.get(names.ENV_BRAIN_TOKEN, "")
        read = (lambda: _token_in(Path(file))) if file else (lambda: token)
        return cls(url, read, Path(ca_file) if ca_file else None)


@dataclass(frozen=True)
class JobIdentity:
    """Identifies a job to Brain.

    Attributes:
        uid: of the job's object.
        scenario: jobs of one scenario share their experience; "" means the job's name.
        training: what is known of the training.
    """

    uid: str
    namespace: str
    scenario: str = ""
    training: TrainingParameters = field(default_factory=TrainingParameters)


class BrainConnection:
    """A connection to a Brain; for one thread at a time.

    Attributes:
        url: its address, as it was given.

    Args:
        access: address and credentials.
        transport: for tests.

    Raises:
        InvalidError: the certificates can't be read, or the address is invalid.
    """

    def __init__(self, access: BrainAccess, transport: httpx.BaseTransport | None = None) -> None:
        self.url = access.url
        self._access = access
        url = access.url if "://" in access.url else f"http://{access.url}"
        try:
            self._http = httpx.Client(
                base_url=addresses.resolve(url),
                verify=_load_certificates(access.ca_file),
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                trust_env=False,  # no proxy between a master and its Brain
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise InvalidError(f"{access.url!r} is no address of a Brain: {error}") from error

    def close(self) -> None:
        self._http.close()

    def post(self, call: str, body: Message, answer: type[A], most: int = MAX_ANSWER) -> A:
        """Call Brain.

        Args:
            call: path below ``/v1/``.
            body: what to send.
            answer: type of the answer.
            most: bytes of the answer.

        Raises:
            EdlError: see `BrainClient`.
        """
        where = f"Brain at {self.url}"
        token = self._access.token()
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        try:
            with self._http.stream(
                "POST", f"/v1/{call}", content=body.model_dump_json(), headers=headers
            ) as response:
                content = _read_body(response, where, most)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnavailableError(f"{where} does not answer: {error!r}") from error
        if response.is_error:
            kind = _REFUSED.get(response.status_code, UnavailableError)
            words = content[:500].decode(errors="replace")
            raise kind(f"{where} answered {response.status_code}: {words}")
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise UnavailableError(f"{where} answered nonsense: {describe_problems(error)[0]}") from error


class BrainClient:
    """One job's connection to a Brain; for one thread at a time.

    Every method raises an EdlError on failure: UnavailableError if Brain can't be reached, is in trouble or
    answers nonsense, ForbiddenError for a wrong token, InvalidError for a job that it rejects.

    Args:
        access: address and credentials.
        identity: of the job.
        transport: for tests.

    Raises:
        InvalidError: the certificates can't be read, or the address is invalid.
    """

    def __init__(
        self, access: BrainAccess, identity: JobIdentity, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._identity = identity
        self._connection = BrainConnection(access, transport)

    def close(self) -> None:
        self._connection.close()

    def report(self, job: OptimizerJob, samples: tuple[JobSample, ...], end: JobEnd | None = None) -> None:
        """Store measurements, and the job's end, durably in Brain. Repeatable.

        Args:
            job: the job's present state.
            samples: the samples that Brain has not confirmed yet; implausible ones are left out.
            end: the job's end, if it is over.
        """
        valid = valid_samples(samples).samples
        try:
            ooms = [
                brain.NodeOom(node=node.name, time=max(valid[-1].time, 0.0) if valid else 0.0)
                for node in job.nodes
                if node.oom
            ]
            messages = [sample_message(sample) for sample in valid]
        except ValidationError as error:
            raise _invalid_job(job, error) from error
        facts = self._describe_job(job)
        for start in range(0, max(len(messages), 1), brain.MAX_SAMPLES):
            some = messages[start : start + brain.MAX_SAMPLES]
            report = brain.MetricsReport(job=facts, samples=some, ooms=ooms, end=end)
            self._connection.post("metrics", report, brain.MetricsReceipt)

    def optimize(self, question: OptimizerQuestion, job: OptimizerJob) -> Advice:
        """Brain's advice, based on the reported samples."""
        try:
            asked = brain.OptimizeRequest(
                job=self._describe_job(job),
                stage=question.stage.value,
                phase=question.phase.value,
                ps_may_change=question.ps_may_change,
                nodes=nodes_of(job),
            )
        except ValidationError as error:
            raise _invalid_job(job, error) from error
        return advice_of(self._connection.post("optimize", asked, brain.OptimizeReply))

    def _describe_job(self, job: OptimizerJob) -> brain.JobDescription:
        identity = self._identity
        try:
            return brain.JobDescription(
                uid=identity.uid,
                namespace=identity.namespace,
                name=job.name,
                scenario=identity.scenario,
                roles=roles_of(job),
                limits=limits_of(job),
                training=training_facts(identity.training),
            )
        except ValidationError as error:
            raise _invalid_job(job, error) from error


def _read_body(response: httpx.Response, where: str, most: int) -> bytes:
    """The body, if it is not too large."""
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > most:
            raise UnavailableError(f"{where} answered more than {most} bytes")
    return bytes(body)


def _load_certificates(file: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=file)
    except (OSError, ssl.SSLError) as error:
        raise InvalidError(
            f"{names.ENV_BRAIN_CA_FILE}={file}: no certificates can be read: {error}"
        ) from error


def _token_in(file: Path) -> str:
    try:
        return file.read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise UnavailableError(f"{names.ENV_BRAIN_TOKEN_FILE}={file}: can't be read: {error}") from error


def _invalid_job(job: OptimizerJob, error: ValidationError) -> InvalidError:
    return InvalidError(f"job {job.name} can't be told to Brain: {describe_problems(error)[0]}")
