"""The contract between an allocator and its policies: jobs, nodes, and two questions.

An *allocation* is a list of node names, one a replica, in the order of the replicas' global ranks; the empty list is a job
that gets nothing now. Modelled on DI-orchestrator's ``Policy`` interface, which has the same two methods.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

Resources = Mapping[str, float]
"""Amounts by resource name, in base units: cores, bytes, devices, pods."""
Allocation = Sequence[str]


@dataclass(frozen=True)
class JobInfo:
    """What a policy knows of a job.

    Attributes:
        key: names the job; unique.
        resources: what one replica of the elastic role asks for.
        fixed: what each replica of the other roles asks for, in the order of ranks. Their number never changes, and their
            ranks are the lowest.
        min_replicas, max_replicas: bounds of all replicas together.
        preemptible: whether what the job holds may be changed or taken away.
        priority: the higher one is served first.
        age: seconds since it was created; of the same priority the older is served first.
        excluded: nodes that its pods can't run on.
        profilings: what the job reported of its training, as it came.
        scenario: jobs of one scenario train the same program; empty for a job that does not say.
        reported: the profilings of all jobs of its scenario, also of those that are over, the newest first; none without
            a scenario.
    """

    key: str
    resources: Resources
    fixed: tuple[Resources, ...] = ()
    min_replicas: int = 1
    max_replicas: int = 1
    preemptible: bool = True
    priority: int = 0
    age: float = 0.0
    excluded: frozenset[str] = frozenset()
    profilings: Mapping[str, Any] = field(default_factory=dict)
    scenario: str = ""
    reported: Sequence[Mapping[str, Any]] = ()

    def demand(self, rank: int) -> Resources:
        """What the replica of this global rank asks for."""
        return self.fixed[rank] if rank < len(self.fixed) else self.resources


@dataclass(frozen=True)
class NodeInfo:
    """What a policy knows of a node.

    Attributes:
        key: its name.
        free: what replicas may take of it. It may be negative where more is promised than there is.
        schedulable: whether it takes new replicas; those that it has may stay.
    """

    key: str
    free: Resources
    schedulable: bool = True


class Policy(Protocol):
    """Decides. Pure: the same question has the same answer.

    Every answer keeps three promises: an allocation is empty or has between `min_replicas` and `max_replicas`; no node is
    given replicas beyond what its `free` holds; and what is asked again, with the answer as what is held, changes nothing.
    Only what a job that is not preemptible holds is left as it is, whatever it is.
    """

    def allocate(self, job: JobInfo, nodes: Mapping[str, NodeInfo]) -> list[str]:
        """Where a new job starts.

        Args:
            job: it holds nothing yet.
            nodes: by key; free is what no pod and no other job's allocation takes.

        Returns:
            Its allocation; empty where there is no room, or where the policy leaves it to the next `optimize`.
        """
        ...

    def optimize(
        self,
        jobs: Mapping[str, JobInfo],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        """Where all jobs shall be.

        Args:
            jobs: by key.
            nodes: by key; free is what these jobs may share: what they hold now is not taken off.
            previous: what each holds; a job that is not named holds nothing. A node that is not among `nodes` is a place
                that is lost.

        Returns:
            An allocation for each job.
        """
        ...
