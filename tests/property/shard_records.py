"""All records of a data set, for the laws of shards."""

from edl_workflows.core.protocol.datasets import DatasetParams, Splitter

Record = tuple[int, str, int]
"""Epoch, partition and place of a record."""


def all_records(params: DatasetParams) -> set[Record]:
    """Each record of each epoch, or of each partition of a stream."""
    if params.splitter is Splitter.STREAMING:
        parts = params.partitions.items()
        return {(1, name, place) for name, part in parts for place in range(part.start, part.end)}
    epochs = range(1, params.num_epochs + 1)
    return {(epoch, "", place) for epoch in epochs for place in range(params.size)}
