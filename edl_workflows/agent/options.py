"""Options of a training, independent of the framework."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TrainingOptions:
    """How a program trains and saves.

    Attributes:
        checkpoint_dir: folder or URI (``s3://…``, by fsspec) of the checkpoints, shared by chiefs that may
            run on other machines.
        save_seconds: interval of periodic checkpoints; None: only on the master's request and at the end.
        keep: number of checkpoints to keep.
        threads: threads of the framework in each process, for operations and within them; 0: one per core.
        async_save: save in two stages: training waits only for a copy in shared memory, which the agent
            writes to storage. The checkpoints are then in safetensors format
            (`edl_workflows.agent.tensors.load`), not in the framework's. Collective jobs always do so.
        memory_seconds: with ``async_save``: interval of copies that stay in memory, which the agent saves if
            the chief's process dies; None: only what goes to storage is copied.
        replicate: with ``async_save``: the agent of another node holds the newest copy, too.
        partitions: with parameter servers: number of parts into which each variable is cut; 0: by size, into
            at most 16 parts, or as many as there are servers if these are more. Only for a new training:
            afterwards the checkpoints determine the parts, whatever the number of servers.
    """

    checkpoint_dir: Path | str
    save_seconds: float | None = 600.0
    keep: int = 3
    threads: int = 0
    async_save: bool = False
    memory_seconds: float | None = None
    replicate: bool = False
    partitions: int = 0
