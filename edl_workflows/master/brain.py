"""A Brain service as a job's master uses it: an HTTP client. Calls block; each is made once, and the next one tries again.

What Brain answers is another program's: a message that does not read, or whose numbers no job can have, is no answer. What
the job's own bounds leave of a plan is for the caller to see.
"""

import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import httpx
from pydantic import ValidationError

from edl_workflows.exceptions import (
    ConflictError,
    EdlError,
    ForbiddenError,
    InvalidError,
    NotFoundError,
    UnavailableError,
)
from edl_workflows.jobs import names
from edl_workflows.protocol import addresses, brain
from edl_workflows.protocol.brain import JobEnd
from edl_workflows.protocol.message import Message, problems
from edl_workflows.scaling.dlrover.brain.messages import (
    limits_of,
    nodes_of,
    plan_of,
    roles_of,
    sample_message,
    training_facts,
)
from edl_workflows.scaling.dlrover.brain.request import TrainingParameters
from edl_workflows.scaling.dlrover.ps_stages import OptimizerQuestion
from edl_workflows.scaling.dlrover.resources import OptimizerJob, ResourcePlan
from edl_workflows.scaling.dlrover.samples import JobSample, valid_samples

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
"""A master has other things to do than to wait for an optimizer."""
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
        url: ``http://host:port`` or ``https://host:port``; without a scheme it is HTTP.
        token: gives the tenant's token at each call; "" for none.
        ca_file: certificates that HTTPS is checked against; None: the system's.
    """

    url: str
    token: Callable[[], str] = str
    ca_file: Path | None = None

    @classmethod
    def of_environment(cls, url: str, environment: Mapping[str, str]) -> "BrainAccess":
        """With the token and the certificates that environment variables name; see `names.ENV_BRAIN_TOKEN`."""
        file, ca_file = environment.get(names.ENV_BRAIN_TOKEN_FILE), environment.get(names.ENV_BRAIN_CA_FILE)
        token = environment.get(names.ENV_BRAIN_TOKEN, "")
        read = (lambda: _token_in(Path(file))) if file else (lambda: token)
        return cls(url, read, Path(ca_file) if ca_file else None)


@dataclass(frozen=True)
class JobIdentity:
    """What Brain knows a job by.

    Attributes:
        uid: of the job's object.
        scenario: jobs of one scenario tell about each other; "" means the job's name.
        training: what is known of it.
    """

    uid: str
    namespace: str
    scenario: str = ""
    training: TrainingParameters = field(default_factory=TrainingParameters)


class BrainClient:
    """One job's connection to a Brain. For one thread at a time.

    Every method raises an EdlError when Brain does not do as asked: UnavailableError when it is away, in trouble or answers
    nonsense, ForbiddenError for a wrong token, InvalidError for a job that it does not take.

    Args:
        access: where it is.
        identity: of the job.
        transport: for tests.

    Raises:
        InvalidError: the certificates can't be read, or the address is none.
    """

    def __init__(
        self, access: BrainAccess, identity: JobIdentity, transport: httpx.BaseTransport | None = None
    ) -> None:
        self._access = access
        self._identity = identity
        url = access.url if "://" in access.url else f"http://{access.url}"
        try:
            self._http = httpx.Client(
                base_url=addresses.resolve(url),
                verify=_certificates(access.ca_file),
                timeout=httpx.Timeout(ANSWER_SECONDS, connect=CONNECT_SECONDS),
                trust_env=False,  # a proxy for the outside world has no business between a master and its Brain
                transport=transport,
            )
        except httpx.InvalidURL as error:
            raise InvalidError(f"brainService {access.url!r} is no address: {error}") from error

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def report(self, job: OptimizerJob, samples: tuple[JobSample, ...], end: JobEnd | None = None) -> None:
        """Have Brain keep what was measured, and how the job ended; done when it is durable there. Repeatable.

        Args:
            job: as it is.
            samples: those that Brain has not confirmed yet; what can't be believed is left out.
            end: of a job that is over.
        """
        known = valid_samples(samples).samples
        try:
            ooms = [
                brain.NodeOom(node=node.name, time=max(known[-1].time, 0.0) if known else 0.0)
                for node in job.nodes
                if node.oom
            ]
            said = [sample_message(sample) for sample in known]
        except ValidationError as error:
            raise _unsayable(job, error) from error
        facts = self._facts(job)
        for start in range(0, max(len(said), 1), brain.MAX_SAMPLES):
            some = said[start : start + brain.MAX_SAMPLES]
            report = brain.MetricsReport(job=facts, samples=some, ooms=ooms, end=end)
            self._post("metrics", report, brain.MetricsReceipt)

    def optimize(self, question: OptimizerQuestion, job: OptimizerJob) -> ResourcePlan:
        """Brain's plan, from the samples that were reported."""
        try:
            asked = brain.OptimizeRequest(
                job=self._facts(job),
                stage=question.stage.value,
                phase=question.phase.value,
                ps_may_change=question.ps_may_change,
                nodes=nodes_of(job),
            )
        except ValidationError as error:
            raise _unsayable(job, error) from error
        return plan_of(self._post("optimize", asked, brain.OptimizeReply))

    def _facts(self, job: OptimizerJob) -> brain.JobFacts:
        identity = self._identity
        try:
            return brain.JobFacts(
                uid=identity.uid,
                namespace=identity.namespace,
                name=job.name,
                scenario=identity.scenario,
                roles=roles_of(job),
                limits=limits_of(job),
                training=training_facts(identity.training),
            )
        except ValidationError as error:
            raise _unsayable(job, error) from error

    def _post(self, call: str, body: Message, answer: type[A]) -> A:
        where = f"Brain at {self._access.url}"
        token = self._access.token()
        headers = {"Content-Type": "application/json"} | (
            {"Authorization": f"Bearer {token}"} if token else {}
        )
        try:
            with self._http.stream(
                "POST", f"/v1/{call}", content=body.model_dump_json(), headers=headers
            ) as response:
                content = _content(response, where)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise UnavailableError(f"{where} does not answer: {error!r}") from error
        if response.is_error:
            kind = _REFUSED.get(response.status_code, UnavailableError)
            raise kind(f"{where} answered {response.status_code}: {content[:500].decode(errors='replace')}")
        try:
            return answer.model_validate_json(content)
        except ValidationError as error:
            raise UnavailableError(f"{where} answered nonsense: {problems(error)[0]}") from error


def _content(response: httpx.Response, where: str) -> bytes:
    """The body, if it is of a sensible size."""
    body = bytearray()
    for part in response.iter_bytes():
        body += part
        if len(body) > MAX_ANSWER:
            raise UnavailableError(f"{where} answered more than {MAX_ANSWER} bytes")
    return bytes(body)


def _certificates(file: Path | None) -> ssl.SSLContext:
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


def _unsayable(job: OptimizerJob, error: ValidationError) -> InvalidError:
    return InvalidError(f"job {job.name} can't be told to Brain: {problems(error)[0]}")
