"""Jobs, stores in both databases, and a client for tests of the Brain."""

import contextlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from edl_workflows.core.protocol import brain
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from edl_workflows.services.brain import auth
from edl_workflows.services.brain.server import BrainOptions, BrainServer
from edl_workflows.services.brain.store.store import BrainStore
from tests.unit.services.brain import postgres

TEAM, OTHER, OPERATOR = "team-token", "other-token", "operator-token"
_numbers = itertools.count()


@pytest.fixture(scope="session")
def _postgres_folder() -> Iterator[Path]:
    if postgres.programs() is None:
        pytest.skip("needs PostgreSQL: apt-get install postgresql")
    with postgres.server() as folder:
        yield folder


@pytest.fixture(params=["sqlite", "postgresql"])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/brain.db"
    return postgres.create_database(request.getfixturevalue("_postgres_folder"), f"brain{next(_numbers)}")


@pytest.fixture
def store(database_url: str) -> Iterator[BrainStore]:
    """A store in each kind of database."""
    with BrainStore(database_url) as found:
        yield found


@pytest.fixture
def sqlite_store(tmp_path: Path) -> Iterator[BrainStore]:
    """A store for tests in which the database makes no difference."""
    with BrainStore(f"sqlite:///{tmp_path}/brain.db") as found:
        yield found


def role(count: int = 1, cpu: float = 4.0, memory: float = 8_192.0, **more: Any) -> dict[str, Any]:
    """One role of a job."""
    return {"count": count, "resource": {"cpu": cpu, "memory": memory}} | more


def facts(uid: str = "uid-1", **more: Any) -> brain.JobDescription:
    """A job of one parameter server and two workers."""
    return brain.JobDescription.model_validate(facts_json(uid, **more))


def facts_json(uid: str = "uid-1", **more: Any) -> dict[str, Any]:
    """`facts` as JSON from a client."""
    return {
        "uid": uid,
        "namespace": "team",
        "name": "mnist",
        "roles": {"ps": role(), "worker": role(2)},
        "limits": {"cpu": 100, "memory": 400_000, "gpu": 0},
    } | more


def sample(
    time: float, step: int = 0, speed: float = 10.0, workers: int = 2, ps_cpu: float = 1.0
) -> JobSample:
    """A sample of a job."""
    nodes = [NodeSample("mnist-edljob-ps-0", "ps", ps_cpu, 2_000.0)]
    nodes += [NodeSample(f"mnist-edljob-worker-{i}", "worker", 2.0, 3_000.0) for i in range(workers)]
    return JobSample(time, step, speed, tuple(nodes))


def sample_json(time: float, **more: Any) -> dict[str, Any]:
    """`sample` as JSON from a client."""
    made = sample(time)
    nodes = [vars(node) for node in made.nodes]
    return {"time": time, "step": made.step, "speed": made.speed, "nodes": nodes, "metrics": {}} | more


def tokens_file(folder: Path) -> Path:
    """Tokens of two teams and of an operator."""
    path = folder / "tokens.json"
    rows = [(TEAM, "team", ["team"]), (OTHER, "other", ["other", "third"]), (OPERATOR, "ops", ["*"])]
    found = [
        {"tenant": tenant, "namespaces": namespaces, "sha256": auth.token_digest(token)}
        for token, tenant, namespaces in rows
    ]
    path.write_text(json.dumps({"tokens": found}))
    return path


@dataclass(frozen=True)
class Api:
    """A Brain as its clients see it."""

    url: str
    server: BrainServer
    http: httpx.Client
    token: str = TEAM

    def as_(self, token: str) -> "Api":
        """The same client with another token."""
        return replace(self, token=token)

    def get(self, path: str, **params: Any) -> httpx.Response:
        """Send a GET request for a path below ``/v1/``."""
        return self.http.get(f"{self.url}/v1/{path}", params=params, headers=self._headers)

    def post(self, path: str, body: Any) -> httpx.Response:
        """Send a POST request; `body` is JSON, or bytes that are sent unchanged."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.http.post(f"{self.url}/v1/{path}", content=content, headers=self._headers)

    def report(self, *samples: dict[str, Any], **more: Any) -> httpx.Response:
        """Report samples of a job."""
        job = more.pop("job", facts_json())
        return self.post("metrics", {"job": job, "samples": list(samples)} | more)

    @property
    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@contextlib.contextmanager
def running(folder: Path, **options: Any) -> Iterator[Api]:
    """A Brain with SQLite, called by a team."""
    server = BrainServer(BrainOptions(f"sqlite:///{folder}/brain.db", tokens_file(folder), port=0, **options))
    with httpx.Client(timeout=240) as http, server.serving() as url:
        yield Api(url, server, http)


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A Brain of one test."""
    with running(tmp_path) as found:
        yield found


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """A Brain for all tests of a module that do not depend on its content."""
    with running(tmp_path_factory.mktemp("brain")) as found:
        yield found
