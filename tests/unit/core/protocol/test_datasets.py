"""Parameters of data sets: what is refused, and how a shard's size is said."""

import pytest
from pydantic import ValidationError

from edl_workflows.core.protocol.datasets import AckRequest, DatasetParams, Shard
from edl_workflows.core.protocol.nodes import NodeRef

TABLE = {"name": "train", "size": 100, "shard_size": 10}
STREAM = {"name": "s", "splitter": "streaming", "shard_size": 10, "partitions": {"p": {"start": 0, "end": 5}}}


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        ({"shard_size": 10}, 10),
        ({"batch_size": 4, "num_minibatches_per_shard": 5}, 20),
        ({"batch_size": 4}, 400),
        ({"batch_size": 4, "shard_size": 10}, 10),
    ],
    ids=["direct", "upstream", "upstream default", "batch only counts steps"],
)
def test_records_per_shard(params: dict[str, int], expected: int) -> None:
    """The size of a shard may be given directly or by upstream's parameters."""
    assert (
        DatasetParams.model_validate({"name": "train", "size": 100, **params}).records_per_shard == expected
    )


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (TABLE | {"size": 0}, "size: a table data set needs at least one record"),
        (TABLE | {"size": 10**12}, "less than or equal to 100000000000"),
        (TABLE | {"shard_size": 0}, "say shard_size, or batch_size"),
        (TABLE | {"num_minibatches_per_shard": 3}, "not both"),
        (TABLE | {"closed": False}, "belong to streaming data sets"),
        (TABLE | {"partitions": STREAM["partitions"]}, "belong to streaming data sets"),
        (TABLE | {"name": "a/b"}, "String should match pattern"),
        (
            TABLE | {"splitter": "text", "shuffle": True, "shard_size": 100_001},
            "at most 100000 for shuffled text",
        ),
        (TABLE | {"timeout_s": 0}, "greater than or equal to 1"),
        (STREAM | {"partitions": {}}, "needs at least one"),
        (STREAM | {"size": 5}, "no size"),
        (STREAM | {"shuffle": True}, "no shuffle"),
        (STREAM | {"num_epochs": 2}, "one epoch"),
        (STREAM | {"partitions": {"p": {"start": 9, "end": 5}}}, "end 5 is before start 9"),
    ],
)
def test_refused(params: dict[str, object], message: str) -> None:
    """Parameters that can't work are rejected with a message."""
    with pytest.raises(ValidationError, match=message):
        DatasetParams.model_validate(params)


def test_a_shard_is_its_own_key() -> None:
    """A leased shard can be acknowledged as it is; the message has only its key."""
    shard = Shard(epoch=1, ordinal=2, lease=3, start=20, end=30, indices=list(range(10)))
    request = AckRequest(node=NodeRef(type="worker", id=0), done=[shard])

    assert request.model_dump()["done"] == [{"epoch": 1, "ordinal": 2, "lease": 3, "partition": ""}]
