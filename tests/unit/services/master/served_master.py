"""A running master behind its HTTP API, for tests."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx

from edl_workflows.core.exceptions import NotFoundError, UnavailableError
from edl_workflows.services.master.app import create_app
from edl_workflows.services.master.master import Master
from edl_workflows.services.master.standalone import parse_nodes
from edl_workflows.services.master.state.job import JobState
from edl_workflows.services.master.state.settings import JobSettings, Timeouts

TOKEN = "secret"
WORKER = {"type": "worker", "id": 0}


class GatedStore:
    """Keeps documents in memory; refuses while its gate is shut, and for good when it is gone."""

    interval = 0.0
    place = "memory"
    capacity = 100_000

    def __init__(self) -> None:
        self.document: bytes | None = None
        self.open = True
        self.refusal = "the gate is shut"
        self.gone = False

    def load(self) -> bytes | None:
        return self.document

    def save(self, document: bytes) -> None:
        if self.gone:
            raise NotFoundError("there is no such ConfigMap")
        if not self.open:
            raise UnavailableError(self.refusal)
        self.document = document


class Served:
    """A running master and a client with its token."""

    def __init__(self, master: Master, store: GatedStore, client: httpx.AsyncClient) -> None:
        self.master = master
        self.store = store
        self.client = client

    async def post(self, path: str, **body: Any) -> dict[str, Any]:
        response = await self.client.post(path, json=body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def train(self) -> None:
        """Brings a job of one worker to its first step."""
        await self.post("/v1/nodes", node=WORKER, rank=0, incarnation="a")
        await self.post("/v1/processes", node=WORKER, version=1, state="ready")
        await self.step(1)

    async def step(self, step: int) -> dict[str, Any]:
        now = time.time()
        return await self.post(
            "/v1/steps", node=WORKER, version=1, step=step, time=now, first_step_time=now - 1
        )


@contextlib.asynccontextmanager
async def served(nodes: str = "worker=1") -> AsyncIterator[Served]:
    store = GatedStore()
    settings = JobSettings("job", "default", parse_nodes(nodes), timeouts=Timeouts(verdict=0.2))
    master = Master(JobState(settings), store)
    running = asyncio.create_task(master.run())
    await master.durable(master.changed())
    transport = httpx.ASGITransport(create_app(master, TOKEN))
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with httpx.AsyncClient(transport=transport, base_url="http://master", headers=headers) as client:
        yield Served(master, store, client)
    store.open = True
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def with_master(test: Callable[[Served], Awaitable[None]], nodes: str = "worker=1") -> None:
    async def main() -> None:
        async with asyncio.timeout(240), served(nodes) as master:
            await test(master)

    asyncio.run(main())
