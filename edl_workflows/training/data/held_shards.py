"""The shards of one process: held, done, and kept until their acknowledgements are stored. Pure: no I/O,
threads or clock.

An acknowledgement travels with the next request for shards, or in a message of its own. The master answers
it before it is stored. So the process keeps it until an answer shows that it is stored. If another master
answers, the process sends that one what it has kept, and reports the shards that it holds, before it leases
again.
"""

from collections import deque
from dataclasses import dataclass, field

from edl_workflows.core.protocol.datasets import (
    MAX_SHARDS_PER_MESSAGE,
    AckReply,
    AckRequest,
    DataReceipt,
    HeldShard,
    LeaseReply,
    LeaseRequest,
    ReleasedShard,
    Shard,
    ShardKey,
)
from edl_workflows.core.protocol.training import ConsumedShards

MAX_KEPT = MAX_SHARDS_PER_MESSAGE // 2
"""Shards that a process keeps; if there are more, the master is asked to store them."""


@dataclass
class HeldShards:
    """What one process holds of a data set. The caller guards it.

    Attributes:
        ahead: shards that are leased but not begun.
        current: the shard being processed.
        records_done: number of processed records of the current shard.
        done, released: processed and returned shards that must still be acknowledged.
        sending: the acknowledgement that is being sent.
        carried: processed shards that the request for shards that is being sent acknowledges.
        carries: whether the master records such shards; an earlier version of it does not.
        master: the master that answered last; "" if none did, or if it stores before it answers.
        unreported: whether that master must be told what the process holds.
    """

    ahead: deque[Shard] = field(default_factory=deque)
    current: Shard | None = None
    records_done: int = 0
    done: list[ShardKey] = field(default_factory=list)
    released: list[ReleasedShard] = field(default_factory=list)
    sending: AckRequest | None = None
    carried: list[ShardKey] = field(default_factory=list)
    carries: bool = True
    master: str = ""
    unreported: bool = False
    _durable: int = 0
    _kept: deque[tuple[int, list[ShardKey]]] = field(default_factory=deque)
    _kept_shards: int = 0

    @property
    def unsent(self) -> bool:
        """Whether the master must be told something."""
        return bool(self.done or self.released or self.unreported)

    @property
    def may_lease(self) -> bool:
        """Whether the master knows what the process holds, so that it grants no shard of it again."""
        return not self.unreported and (self.sending is None or self.sending.held is None)

    @property
    def kept(self) -> list[ShardKey]:
        """Acknowledged shards that may not be stored."""
        return [key for _, keys in self._kept for key in keys]

    @property
    def settled(self) -> bool:
        """Whether all acknowledgements are stored."""
        return not (self.done or self.released or self.sending or self.carried or self._kept)

    def begin(self) -> Shard:
        """The next shard to process."""
        shard = self.current = self.ahead.popleft()
        self.records_done = 0
        return shard

    def finish(self, shard: Shard) -> None:
        """Note that a shard is processed, unless it was returned meanwhile."""
        if self.current is shard:
            self.current = None
            self.done.append(_key(shard))

    def give_back(self) -> None:
        """Return all held shards."""
        self.released += [_released(shard, 0) for shard in self.ahead]
        self.ahead.clear()
        if self.current is not None:
            self.released.append(_released(self.current, self.records_done))
            self.current = None

    def lease_request(self, ask: LeaseRequest) -> LeaseRequest:
        """A request for so many shards that `ask.max_shards` are ahead. It acknowledges what is done, which
        is `carried` until its answer is noted, or that there is none."""
        holding = self._leases()
        if self.carries and self._kept_shards < MAX_KEPT:
            self.carried = self.done[:MAX_SHARDS_PER_MESSAGE]
            del self.done[: len(self.carried)]
        return ask.model_copy(
            update={
                "max_shards": ask.max_shards - len(self.ahead),
                "holding": holding,
                "keeps": True,
                "master": self.master,
                "done": self.carried,
            }
        )

    def note_lease(self, reply: LeaseReply) -> None:
        """Note the answer to a request for shards."""
        self._note_master(reply)
        if reply.recorded:
            self._keep(self.carried, reply)
            self.carried = []
        elif self.carried:
            self.note_no_lease()
            self.carries = False
        self.ahead.extend(reply.shards)

    def note_no_lease(self) -> None:
        """Note that a request for shards was not answered: what it acknowledged must be sent again."""
        self.done = [*self.carried, *self.done]
        self.carried = []

    def acknowledgement(self, ask: LeaseRequest, *, stored: bool) -> AckRequest:
        """The next message about results; it is `sending` until its answer is noted.

        Args:
            ask: of the process.
            stored: whether the answer is to come when all is stored.
        """
        held = [*([self.current] if self.current else []), *self.ahead] if self.unreported else None
        # The request that carries them may be lost with the master before.
        carried = self.carried if self.unreported else []
        self.sending = AckRequest(
            node=ask.node,
            done=[*carried, *self.done][:MAX_SHARDS_PER_MESSAGE],
            released=self.released[:MAX_SHARDS_PER_MESSAGE],
            keeps=not (stored or self.released or self._kept_shards >= MAX_KEPT),
            held=None if held is None else [_held(shard) for shard in held[:MAX_SHARDS_PER_MESSAGE]],
        )
        del self.done[: len(self.sending.done) - len(carried)]
        del self.released[: len(self.sending.released)]
        self.unreported = False
        return self.sending

    def note_acknowledged(self, reply: AckReply) -> None:
        """Note the answer to the acknowledgement that is being sent."""
        self._note_master(reply)
        if self.sending is not None:
            self._keep(self.sending.done, reply)
        self.sending = None

    def consumed(self) -> ConsumedShards:
        """Shards and records that were trained but may not be stored yet."""
        begun = _released(self.current, self.records_done) if self.current and self.records_done else None
        sending = self.sending.done if self.sending is not None else []
        # Shards beyond the limit of a message are left out and acknowledged later: they may be trained
        # again, but are not lost.
        done = [*sending, *self.carried, *self.done, *self.kept][:MAX_SHARDS_PER_MESSAGE]
        return ConsumedShards(done=done, begun=begun)

    def _note_master(self, receipt: DataReceipt) -> None:
        if receipt.master != self.master:
            holds = bool(self.ahead or self.current or self._kept)
            self.unreported = bool(self.master) or holds
            self.done = [*self.kept, *self.done]
            self._kept.clear()
            self._kept_shards = 0
            self.master, self._durable, self.carries = receipt.master, 0, True
        self._durable = max(self._durable, receipt.durable)
        while self._kept and self._kept[0][0] <= self._durable:
            self._kept_shards -= len(self._kept.popleft()[1])

    def _keep(self, done: list[ShardKey], receipt: DataReceipt) -> None:
        """Keep acknowledged shards until the change of their answer is stored."""
        if done and receipt.change > self._durable:
            self._kept.append((receipt.change, done))
            self._kept_shards += len(done)

    def _leases(self) -> list[int]:
        current = [self.current] if self.current else []
        sending = [*self.sending.done, *self.sending.released] if self.sending is not None else []
        keys: list[ShardKey] = [*self.ahead, *current, *self.done, *self.released, *self.carried, *sending]
        return sorted({key.lease for key in keys})


def _key(shard: ShardKey) -> ShardKey:
    """The key of a shard, without its list of records."""
    return ShardKey(epoch=shard.epoch, ordinal=shard.ordinal, lease=shard.lease, partition=shard.partition)


def _held(shard: Shard) -> HeldShard:
    return HeldShard(
        epoch=shard.epoch,
        ordinal=shard.ordinal,
        lease=shard.lease,
        partition=shard.partition,
        start=shard.start,
    )


def _released(shard: Shard, records_done: int) -> ReleasedShard:
    return ReleasedShard(
        epoch=shard.epoch,
        ordinal=shard.ordinal,
        lease=shard.lease,
        partition=shard.partition,
        records_done=records_done,
        start=shard.start,
    )
