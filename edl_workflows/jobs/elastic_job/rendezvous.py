"""How many workers of a collective job train together, and how long they wait for each other."""

from pydantic import Field

from edl_workflows.jobs.objects import Model

MAX_SECONDS = 365 * 86_400
"""A year: when a time-out ends must be a date that can be said."""


class Rendezvous(Model):
    """What a world of a collective job (``AllreduceStrategy``) may look like; other jobs don't read it. Names
    are those of DLRover's and torch's elastic agents.

    Attributes:
        min_nodes: the fewest workers that train together.
        max_nodes: the most, and the number of mini-batches that make the global batch, however many workers
            there are. 0: as many as the job had workers when it was submitted. It can't be changed: batch and
            data position are counted in it.
        node_unit: the number of workers that train is a multiple of it, where that is not below minNodes; the
            others wait.
        waiting_timeout_seconds: after the last worker joined, before fewer than wanted train together.
        join_timeout_seconds: the job fails when fewer than minNodes have joined for so long.
    """

    min_nodes: int = Field(default=1, ge=1, le=100_000)
    max_nodes: int = Field(default=0, ge=0, le=100_000)
    node_unit: int = Field(default=1, ge=1, le=100_000)
    waiting_timeout_seconds: int = Field(default=30, ge=0, le=MAX_SECONDS)
    join_timeout_seconds: int = Field(default=600, ge=1, le=MAX_SECONDS)
