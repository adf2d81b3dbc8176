"""The contract between an allocator and its policies: jobs, nodes, and two questions.

An *allocation* is a list of node names, one for each replica, in the order of the replicas' global ranks. A
job with an empty allocation gets nothing now. The contract is modelled on DI-orchestrator's ``Policy``
interface, which has the same two methods.
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
        key: a unique name.
        resources: requests of one replica of the elastic role.
        fixed: requests of each replica of the other roles, in the order of ranks. Their number never changes,
            and they have the lowest ranks.
        min_replicas, max_replicas: bounds of all replicas together.
        preemptible: whether the job's allocation may be changed or taken away.
        priority: jobs with a higher priority are served first.
        age: seconds since the job was created. A policy without an order of its own serves the older of two
            jobs with the same priority first.
        excluded: nodes that the job's pods can't run on.
        profilings: what the job reported about its training, unchanged;
            `edl_workflows.core.scaling.pollux.hints.read_hints` reads it.
        scenario: jobs of one scenario train the same program; empty if the job names none.
        reported: the profilings of all jobs of the scenario, finished ones included, newest first; empty
            without a scenario.
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
        """The requests of the replica with this global rank."""
        return self.fixed[rank] if rank < len(self.fixed) else self.resources


@dataclass(frozen=True)
class NodeInfo:
    """What a policy knows of a node.

    Attributes:
        key: its name.
        free: resources that replicas may use. An amount is negative if the node is overcommitted.
        schedulable: whether the node accepts new replicas; replicas that run there may stay.
    """

    key: str
    free: Resources
    schedulable: bool = True


class Policy(Protocol):
    """Decides where jobs run. It is pure: the same question always has the same answer.

    Every answer keeps these promises, which `tests/property/test_policies.py` checks for each policy of the
    registry:

    1. An allocation is empty or has between `min_replicas` and `max_replicas` replicas.
    2. The replicas on a node request no more than the node has `free`.
    3. The answer is a fixed point: with the answer as `previous`, `optimize` changes nothing.
    4. A job that is not preemptible and holds something keeps it, even if it breaks promise 1 or 2. One that
       holds nothing is allocated like any other.
    5. A node that is lost, not `schedulable`, or `excluded` by the job gets no new replicas.
    6. The answer has exactly the keys of `jobs`, and does not depend on the order of the mappings.
    7. The next `optimize` keeps what `allocate` gave: for this job alone and the same nodes, with the
       allocation as `previous`, it changes nothing. An empty allocation promises nothing.
    """

    def allocate(self, job: JobInfo, nodes: Mapping[str, NodeInfo]) -> list[str]:
        """Allocate nodes to a new job.

        Args:
            job: a job without an allocation.
            nodes: by key; `free` is what neither pods nor other jobs' allocations use.

        Returns:
            The allocation; empty if no node has room, or if the policy leaves the job to the next `optimize`.
        """
        ...

    def optimize(
        self,
        jobs: Mapping[str, JobInfo],
        nodes: Mapping[str, NodeInfo],
        previous: Mapping[str, Allocation],
    ) -> dict[str, list[str]]:
        """Allocate nodes to all jobs.

        Args:
            jobs: by key.
            nodes: by key; `free` is what these jobs may share, and includes what they hold now.
            previous: the present allocation of each job; a job that is missing here has none. A node that is
                not among `nodes` is lost.

        Returns:
            An allocation for each job.
        """
        ...
