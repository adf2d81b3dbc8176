"""Leases and acknowledgements over HTTP: which of their answers wait until the change is stored.

An answer to a worker that keeps its acknowledgements waits only for changes that the worker can't report to
the next master: the start of an epoch, the first lease of a node, shards that failed or were returned, and
the end of the data. A worker of an earlier version keeps nothing, so each of its acknowledgements is stored.
"""

from typing import TypeVar

from edl_workflows.core.protocol.datasets import (
    AckReply,
    AckRequest,
    DataReceipt,
    LeaseReply,
    LeaseRequest,
    LeaseState,
)
from edl_workflows.services.master.master import Master, WriteUrgency
from edl_workflows.services.master.state import training_messages

Reply = TypeVar("Reply", bound=DataReceipt)


class DataCalls:
    """Answers leases and acknowledgements of one master."""

    def __init__(self, master: Master) -> None:
        self._master = master
        self._state = master.state
        self._decisions: dict[str, int] = {}
        """The newest change of each data set without which no lease of it is answered."""

    async def lease(self, name: str, message: LeaseRequest) -> LeaseReply:
        """Record the shards that are done, and grant others.

        Raises:
            NotFoundError: the job never had such a node, or there is no such data set.
        """
        master, shards = self._master, self._state.shards
        before = shards.stage(name)
        reply = training_messages.lease_shards(self._state, name, message, master.now())
        if not message.keeps:
            master.touched(WriteUrgency.GROUPED)
            return reply
        if shards.stage(name) != before or reply.state is LeaseState.END:
            self._decide(name)
        elif reply.shards or message.done:
            master.touched(WriteUrgency.KEPT)
        change = master.newest_change
        await master.durable(self._decisions.get(name, 0))
        return self._with_receipt(reply, change, recorded=bool(message.done))

    async def acknowledge(self, name: str, message: AckRequest) -> AckReply:
        """Record the results of leased shards.

        Raises:
            NotFoundError: there is no such data set.
        """
        master, shards = self._master, self._state.shards
        before = shards.stage(name) if message.held is not None else None
        reply = training_messages.acknowledge_shards(self._state, name, message, master.now())
        # A worker of which the previous master did not know that it keeps acknowledgements.
        joined = before is not None and shards.stage(name) != before
        if message.failed or message.released or joined or reply.state is LeaseState.END:
            self._decide(name)
        elif not message.keeps or message.held is not None:
            # What a worker reports to a new master may be as old as the previous master's last snapshot.
            master.touched(WriteUrgency.GROUPED)
        elif message.done:
            master.touched(WriteUrgency.KEPT)
        change = master.newest_change
        if not message.keeps or reply.state is LeaseState.END:
            await master.durable(change)
        return self._with_receipt(reply, change)

    def _decide(self, name: str) -> None:
        self._decisions[name] = self._master.touched(WriteUrgency.GROUPED)

    def _with_receipt(self, reply: Reply, change: int, **fields: bool) -> Reply:
        durable = self._master.durable_change
        receipt = {"master": self._state.volatile.master, "change": change, "durable": durable}
        return reply.model_copy(update=receipt | fields)
