"""Options of a training, independent of the framework."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingOptions:
    """How a program trains and saves.

    Attributes:
        checkpoint_dir: folder or URI (``s3://…``, by fsspec) of the checkpoints. It must be reachable from
            all machines, since the chief may be replaced on another one.
        save_seconds: interval of periodic checkpoints; None: only on the master's request and at the end.
        keep: number of checkpoints to keep.
        threads: number of the framework's inter-op and intra-op threads in each process; 0: one per core.
        async_save: save in two stages: training waits only for a copy in shared memory, which the agent then
            writes to storage. The checkpoints are then in safetensors format
            (`edl_workflows.training.load_checkpoint`), not in the framework's. Collective jobs
            always save this way.
        memory_seconds: with ``async_save``: interval of additional copies that stay in memory, which the
            agent saves only if the chief's process dies; None: no additional copies.
        replicate: with ``async_save``: whether the agent of another node also holds the newest copy.
        partitions: with parameter servers: number of parts into which each variable is cut; 0: according to
            its size, into at most 16 parts, or at most one per server if there are more than 16 servers. Used
            only in new training: afterwards the checkpoints determine the parts, whatever the number of
            servers.
    """

    checkpoint_dir: Path | str
    save_seconds: float | None = 600.0
    keep: int = 3
    threads: int = 0
    async_save: bool = False
    memory_seconds: float | None = None
    replicate: bool = False
    partitions: int = 0
