"""The data routes of a master's HTTP API around the sharding core, for ``bench_shards.py``: no nodes, plans or store.

Upstream's master keeps its shards in memory alone; so does this one, to compare like with like.
"""

import socket
import time

import uvicorn
from fastapi import FastAPI, Response

from edl_workflows.master.shards import ShardManager
from edl_workflows.protocol.datasets import AckRequest, DatasetParams, LeaseRequest
from edl_workflows.protocol.message import Message

app = FastAPI()
manager = ShardManager()


def _json(message: Message) -> Response:
    return Response(message.model_dump_json(), media_type="application/json")


@app.post("/v1/datasets")
async def register(params: DatasetParams) -> Response:
    """See the master's API in ``docs/explanation/architecture.md``."""
    return _json(manager.register(params))


@app.post("/v1/datasets/{name}/lease")
async def lease(name: str, request: LeaseRequest) -> Response:
    """See `register`."""
    return _json(manager.lease(name, request, time.time()))


@app.post("/v1/datasets/{name}/ack")
async def acknowledge(name: str, request: AckRequest) -> Response:
    """See `register`."""
    return _json(manager.acknowledge(name, request, time.time()))


def main() -> None:
    """Serves on a free port, which is the one line of output; the port listens when the line is there."""
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(app, log_level="error", access_log=False)).run(sockets=[listener])


if __name__ == "__main__":
    main()
