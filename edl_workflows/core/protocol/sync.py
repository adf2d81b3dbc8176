"""Sync groups and barriers between workers (DLRover's `join_sync`, `sync_finished` and `barrier`)."""

from typing import Annotated

from pydantic import Field

from edl_workflows.core.protocol.message import Message
from edl_workflows.core.protocol.nodes import NodeRef

SyncName = Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]{1,128}$")]


class SyncJoin(Message):
    """`POST /v1/sync/{name}`: this worker reached the synchronization point. The group consists of the
    workers that run at the first join; a worker that ends leaves it.
    """

    node: NodeRef


class SyncState(Message):
    """`GET /v1/sync/{name}?wait=<s>`: whether all members of the group have joined."""

    finished: bool
    missing: list[str] = Field(default_factory=list)


class BarrierState(Message):
    """`GET /v1/barriers/{name}?wait=<s>` and the answer to `POST` (which opens it)."""

    open: bool
