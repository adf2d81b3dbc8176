"""The fulfilment algorithm of PaddlePaddle EDL: it decides how many instances each elastic job gets.

Free capacity goes to the least fulfilled job, one instance at a time. The most fulfilled job gives instances
up when the minimum of a job is pending or the cluster is loaded beyond its limit (EDL's design document,
"Scaling Algorithm"). Upstream's code deviates from its document; this module follows the document:

- Each resource has one threshold, `max_load`, for growing and for shrinking. Upstream applies it only to CPU
  when a job grows, so that its algorithm adds and removes the same instance forever.
- A node that gets an instance has less free capacity. Upstream's first algorithm adds instead of subtracting.
- Jobs are compared by their decided number of instances. Upstream sorts once, by the numbers before the
  decision.
- Only jobs that use a resource give way for it. Upstream shrinks CPU jobs when GPUs are short.
- No job gives up an instance for a job that could not start even then (the document's rule for GPU jobs).

The algorithm terminates: each step places one of the pending instances, removes one of a finite number, or
fills finite capacity.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, field

from edl_workflows.core.scaling.paddle.jobs import (
    FulfilmentJob,
    JobShare,
    as_inelastic,
    change_reason,
    growth_order,
    shortage_reason,
    tie_breaker,
)
from edl_workflows.core.scaling.paddle.nodes import (
    NOWHERE,
    PODS,
    FreeCapacity,
    FulfilmentNode,
    InstanceShape,
    invalid_amount,
)

__all__ = ["DEFAULT_MAX_LOAD", "FulfilmentDecision", "FulfilmentJob", "InstanceChange", "decide_fulfilment"]

DEFAULT_MAX_LOAD = 0.97
"""The fraction of all cores and bytes that may be used: upstream's default of ``max_load_desired``."""
_DIVISIBLE = ("cpu", "memory", "ephemeral-storage")
"""Other resources, such as devices, may be used up: 97 % of four GPUs would be three."""


@dataclass(frozen=True)
class InstanceChange:
    """A new number of instances for a job, and the reason in words."""

    before: int
    after: int
    reason: str


@dataclass(frozen=True)
class FulfilmentDecision:
    """What the algorithm decides.

    Attributes:
        changes: job → its new number of instances; jobs that keep theirs are missing.
        places: job → the nodes where its instances are expected, oldest instance first; only jobs whose nodes
            change.
        held_back: job → why it has less than its maximum.
        ignored: node → why it gets no instance.
    """

    changes: Mapping[str, InstanceChange] = field(default_factory=dict)
    places: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    held_back: Mapping[str, str] = field(default_factory=dict)
    ignored: Mapping[str, str] = field(default_factory=dict)


def decide_fulfilment(
    jobs: Mapping[str, FulfilmentJob],
    nodes: Mapping[str, FulfilmentNode],
    max_load: Mapping[str, float] | None = None,
) -> FulfilmentDecision:
    """Decide for all jobs. It never raises: a job or node with invalid numbers is left as it is, with the
    reason.

    1. A job above its maximum gives up its youngest instances; a job below its minimum is raised to it.
       Pending instances beyond the minimum count as given up; step 4 deals them out again.
    2. Each pending minimum is placed as a whole or not at all: in free capacity, else in capacity that the
       most fulfilled jobs free on a node. Load limits don't apply here, since the Kubernetes scheduler
       doesn't know them.
    3. While a resource is used beyond its limit, the most fulfilled job that uses it gives up an instance,
       down to its minimum.
    4. The least fulfilled job gets one more instance, as long as one is below its maximum, the limits allow
       it and a node has room.

    GPU jobs are the first to get capacity and the last to give it up, so that no GPU is idle only because a
    core is missing. Equally fulfilled jobs are ordered by the GPUs, cores and memory of an instance, smaller
    first, and then by name.

    Deciding again after a decision is carried out changes nothing, with one exception: a job that freed
    capacity on a node for a pending job may then grow on other nodes. Doing both at once would
    leave its number of instances as it was, and so would not free the capacity.

    Args:
        jobs: by name.
        nodes: by name.
        max_load: resource → the fraction of the cluster that may be used, above 0 and at most 1. The default
            is `DEFAULT_MAX_LOAD` for cores and bytes, and 1 for everything else.
    """
    ignored = {key: reason for key, node in nodes.items() if (reason := _unusable_node(node))}
    counted = {key: node for key, node in nodes.items() if node.schedulable and key not in ignored}
    if not counted:
        reason = "there is no node to plan on: none that takes pods and whose numbers can be used"
        return FulfilmentDecision(held_back=dict.fromkeys(jobs, reason), ignored=ignored)
    distribution = _Distribution(jobs, counted, max_load or {})
    distribution.admit()
    distribution.relieve()
    distribution.grow()
    return distribution.result(ignored)


class _Distribution:
    """The numbered steps of `decide_fulfilment`, over nodes that count."""

    def __init__(
        self,
        jobs: Mapping[str, FulfilmentJob],
        nodes: Mapping[str, FulfilmentNode],
        max_load: Mapping[str, float],
    ) -> None:
        names = sorted({PODS, "cpu", "memory"}.union(*(job.requests for job in jobs.values())))
        self._load = {
            name: max_load.get(name, DEFAULT_MAX_LOAD if name in _DIVISIBLE else 1.0) for name in names
        }
        # Jobs that use a resource with an invalid limit are not scaled, so any valid limit will do.
        limits = {name: load if 0 < load <= 1 else 1.0 for name, load in self._load.items()}
        self._room = FreeCapacity(names, nodes, limits)
        faults = {key: self._fault(job) for key, job in jobs.items()}
        sound = {key: as_inelastic(job) if faults[key] else job for key, job in jobs.items()}
        ties = {key: tie_breaker(job) for key, job in sound.items()}
        order = sorted(sound, key=lambda key: (ties[key], key))
        shapes = self._room.shapes([(sound[key].requests, sound[key].excluded) for key in order])
        self._shares = [
            self._share(key, sound[key], shape, rank, not ties[key][0], faults[key])
            for rank, (key, shape) in enumerate(zip(order, shapes, strict=True))
        ]
        index = self._room.index
        self._room.load(
            shapes,
            [[index[place] for place in share.kept if place in index] for share in self._shares],
            [share.beyond for share in self._shares],
        )
        self._givers: dict[int, list[JobShare]] = {}
        """Node → the jobs with instances beyond their minimum there, once per instance."""

    def admit(self) -> None:
        """Step 2."""
        refused: dict[InstanceShape, int] = {}
        """Shape → a number of instances that found no room. Since room only shrinks here, the same number
        never will."""
        for share in self._shares:
            if 0 < share.waiting < refused.get(share.shape, share.waiting + 1) and not self._place_minimum(
                share
            ):
                refused[share.shape] = share.waiting

    def relieve(self) -> None:
        """Step 3."""
        overloaded = self._room.overloaded()
        for cpu_only in (True, False) if overloaded else ():
            heap = [share.last for share in self._shares if share.cpu_only is cpu_only and share.beyond]
            heapq.heapify(heap)
            while heap and overloaded:
                share = self._shares[-heap[0][1]]
                guilty = overloaded.intersection(share.shape.resources)
                if not guilty or not share.beyond:
                    heapq.heappop(heap)
                    continue
                self._room.release(share.beyond.pop(), share.shape)
                share.instances -= 1
                name = self._room.names[min(guilty)]
                load = f"more than {self._load[name]:.0%} of the cluster's {name} is used"
                share.reason = share.reason or f"{load}; the most fulfilled give way"
                overloaded = self._room.overloaded()
                heapq.heapreplace(heap, share.last)

    def grow(self) -> None:
        """Step 4."""
        growing = [share for share in self._shares if not share.waiting and not share.made_room]
        for cpu_only in (False, True):
            group = [
                share for share in growing if share.cpu_only is cpu_only and share.instances < share.most
            ]
            for share in growth_order(group):
                if share.short:  # Room only shrinks here: a job that gets no more now never will.
                    continue
                node = self._room.add(share.shape)
                if node == NOWHERE:
                    share.short = self._obstacle(share.shape)
                else:
                    share.beyond.append(node)
                    share.instances += 1

    def result(self, ignored: Mapping[str, str]) -> FulfilmentDecision:
        changes, places, held_back = {}, {}, {}
        for share in sorted(self._shares, key=lambda share: share.key):
            if reason := share.fault or shortage_reason(share):
                held_back[share.key] = reason
            if share.fault:
                continue
            if share.instances != share.job.parallelism:
                changes[share.key] = InstanceChange(
                    share.job.parallelism, share.instances, change_reason(share)
                )
            expected = (*share.kept, *(self._room.keys[node] for node in share.beyond))
            if expected != share.job.places:
                places[share.key] = expected
        return FulfilmentDecision(changes, places, held_back, ignored)

    def _fault(self, job: FulfilmentJob) -> str:
        """Why a job's numbers are invalid; "" if they are valid."""
        low, high = job.min_instances, job.max_instances
        fault = invalid_amount(job.requests)
        if not 0 <= low <= high:
            fault = (
                f"its bounds are {low} and {high}; they must be at least 0, the maximum not below the minimum"
            )
        if job.parallelism < 0:
            fault = f"its parallelism is {job.parallelism}; it must be at least 0"
        for name in job.requests:
            if not 0 < self._load[name] <= 1:
                fault = f"the max load of {name} is {self._load[name]}; it must be above 0 and at most 1"
        return fault and f"left as it is: {fault}"

    def _share(
        self, key: str, job: FulfilmentJob, shape: InstanceShape, rank: int, cpu_only: bool, fault: str
    ) -> JobShare:
        """Step 1."""
        least, most = (job.min_instances, job.max_instances) if job.elastic else (job.parallelism, 0)
        held = job.places[: min(job.parallelism, job.max_instances) if job.elastic else job.parallelism]
        index = self._room.index
        kept = [*held[:least], *(place for place in held[least:] if place not in index)]
        beyond = [index[place] for place in held[least:] if place in index]
        instances = max(least, len(held))
        waiting = instances - len(held)
        return JobShare(key, job, shape, cpu_only, rank, most, instances, kept, beyond, waiting, fault)

    def _place_minimum(self, share: JobShare) -> bool:
        """Place all pending instances of a job's minimum, or none; whether they are placed."""
        nodes: list[int] = []
        while len(nodes) < share.waiting:
            node = self._room.next_fit(share.shape)
            if node == NOWHERE:
                if not self._room.can_host(share.shape, share.waiting - len(nodes)):
                    break
                node = self._make_room(share)
            self._room.take(node, share.shape, minimum=True)
            nodes.append(node)
        else:
            share.kept += [self._room.keys[node] for node in nodes]
            share.waiting = 0
            return True
        for node in nodes:
            self._room.release(node, share.shape, minimum=True)
        return False

    def _make_room(self, waiting: JobShare) -> int:
        """Free capacity for an instance of a job's minimum, which is known to be possible; its node."""
        if not self._givers:
            for share in self._shares:
                for node in share.beyond:
                    self._givers.setdefault(node, []).append(share)
        node = self._room.nearest(waiting.shape)
        gave: list[JobShare] = []
        while lacking := self._room.lacking(node, waiting.shape):
            able = (share for share in self._givers[node] if not lacking.isdisjoint(share.shape.resources))
            gave.append(min(able, key=lambda share: (not share.cpu_only, share.last)))
            self._give(gave[-1], node)
        for share in reversed(gave):
            if self._room.lacking(node, waiting.shape, share.shape):
                share.made_room, share.reason = (
                    True,
                    f"makes room on {self._room.keys[node]} for {waiting.key}, which waits",
                )
            else:
                self._restore(share, node)
        return node

    def _give(self, share: JobShare, node: int) -> None:
        self._room.release(node, share.shape)
        self._givers[node].remove(share)
        share.beyond.remove(node)
        share.instances -= 1

    def _restore(self, share: JobShare, node: int) -> None:
        self._room.take(node, share.shape)
        self._givers[node].append(share)
        share.beyond.append(node)
        share.instances += 1

    def _obstacle(self, shape: InstanceShape) -> str:
        """Why one more instance has no room."""
        if name := self._room.exceeded(shape):
            return f"with one more, above {self._load[name]:.0%} of the cluster's {name} would be used"
        return "no node has room for one more"


def _unusable_node(node: FulfilmentNode) -> str:
    return invalid_amount(node.total) or invalid_amount(node.used)
