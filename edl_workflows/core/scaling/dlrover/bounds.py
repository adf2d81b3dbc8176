"""Reduces an optimizer's advice to what the user's bounds and the job's limits allow.

Every public function of an optimizer returns advice that has passed `bound_advice`, so these rules hold for
all advice:

1. A job with invalid limits or bounds gets no advice.
2. A role with ``autoScale: false`` and its nodes don't change. Changes of other roles are kept (upstream
   drops them).
3. Counts and sizes lie within the user's bounds or, without these, within DLRover's constants, widened to
   include what the role has. (Upstream has a function that clamps, but nothing calls it.)
4. All nodes together stay within ``resourceLimits``; a job beyond its limits does not grow.
5. Small changes are dropped, and each change has a reason.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from edl_workflows.core.scaling.dlrover.resources import (
    AMOUNTS,
    CHIEF,
    PS,
    TRAINERS,
    UNITS,
    WORKER,
    Advice,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    Range,
    empty_advice,
    follow_advice,
    total_amount,
)

SIZES = {"cpu": Range(4, 32), "memory": Range(6_144, 65_536)}
"""Cores and MiB of one node (DLRover's NodeResourceLimit)."""
COUNTS = {PS: Range(1, 15), WORKER: Range(1, 60)}
"""DLRover's bounds. Advice doesn't change the number of nodes of other roles."""
LIMIT_SHARE = 5
"""In a small job, a fifth of the job's limit replaces a larger lower bound of `SIZES`."""
TOLERANCE = 0.1
"""A size does not change if the new one differs by less than this part of it."""
_STEPS = {"cpu": 0.1, "memory": 1.0}
"""Sizes that limits reduce are rounded down to multiples of these."""
_SLACK = 1e-6
"""Rounding errors of sums are smaller than this."""


def bound_advice(job: OptimizerJob, proposal: Advice, tolerance: float = TOLERANCE) -> Advice:
    """The part of a proposal that is allowed, with a reason for each change and a note for each rejected one.

    Counts outside the user's bounds are corrected even if nothing is proposed. Applying the result and
    bounding again gives empty advice.

    Args:
        job: the present job.
        proposal: any numbers; those that are not finite and positive are ignored.
        tolerance: see `TOLERANCE`; with 0 every difference counts.
    """
    if wrong := job_problems(job):
        return empty_advice(*wrong)
    draft = _Draft(job, proposal, tolerance)
    draft.accept_nodes()
    roles = {*proposal.node_group_resources, *job.roles}
    # Roles that shrink come first, because they make room.
    for role in sorted(roles, key=lambda name: (not draft.shrinks(name), name)):
        draft.accept_group(role)
    return draft.result()


def job_problems(job: OptimizerJob) -> tuple[str, ...]:
    """Why nothing can be advised for this job, in words; empty if something can."""
    return tuple(_problems(job))


def count_range(job: OptimizerJob, role: str) -> Range:
    """How many nodes a role may have. A job needs at least one parameter server and one trainer."""
    has = job.roles[role]
    if role not in COUNTS:
        return Range(has.count, has.count)
    least = 1.0 if role == PS or CHIEF not in job.roles else 0.0
    bounds = has.bounds.count or COUNTS[role].including(has.count)
    return Range(max(least, bounds.low), max(least, bounds.high))


def size_range(job: OptimizerJob, role: str, amount: str, present: float | None) -> Range:
    """How much ``cpu`` or ``memory`` a node of a role may have, if it has `present` now."""
    if bounds := job.roles[role].bounds.of(amount):
        return bounds
    limit, default = job.limits.of(amount), SIZES[amount]
    return Range(min(default.low, limit / LIMIT_SHARE), min(default.high, limit)).including(present)


def first_size(job: OptimizerJob, role: str, most: NodeSize) -> NodeSize:
    """The amounts that the user leaves out of a role's size in a new job.

    Each is `most`, or a fifth of the job's limit if that is less. A fifth of at least one core or MiB is
    rounded up.
    """
    user_size = job.roles[role].resource
    amounts = {}
    for amount in SIZES:
        value = most.amount(amount)
        if value is not None and user_size.amount(amount) is None:
            share = min(job.limits.of(amount) / LIMIT_SHARE, value)
            amounts[amount] = float(math.ceil(share)) if 1 <= share < math.inf else share
    return NodeSize.of(amounts)


def _problems(job: OptimizerJob) -> Iterator[str]:
    for amount in AMOUNTS:
        limit = job.limits.of(amount)
        if not (math.isfinite(limit) and limit >= 0) or (limit == 0 and amount != "gpu"):
            yield f"resourceLimits.{amount} is {limit:g}: it must be a positive number"
    for name, role in sorted(job.roles.items()):
        if role.count < 0:
            yield f"{name} wants {role.count} nodes"
        for quantity in ("count", *SIZES):
            bounds = role.bounds.of(quantity)
            if bounds and not bounds.possible:
                limits = f"{quantity} from {bounds.low:g} to {bounds.high:g}"
                yield f"the bounds of {name} are impossible: {limits}"
        yield from _size_problems(name, role.resource)
    for node in job.of(*{node.role for node in job.nodes}):
        if node.role not in job.roles:
            yield f"{node.name} has the role {node.role}, which the job has not"
        yield from _size_problems(node.name, node.resource)
    if len({node.name for node in job.nodes}) < len(job.nodes):
        yield "two nodes have one name"


def _size_problems(name: str, size: NodeSize) -> Iterator[str]:
    for amount in AMOUNTS:
        value = size.amount(amount)
        if value is not None and not (math.isfinite(value) and value >= 0):
            yield f"the {amount} of {name} is {value:g}"


@dataclass
class _Draft:
    """The advice so far."""

    job: OptimizerJob
    proposal: Advice
    tolerance: float
    groups: dict[str, NodeGroupResource] = field(default_factory=dict)
    nodes: dict[str, NodeSize] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def result(self) -> Advice:
        notes = (*self.proposal.notes, *self.notes)
        return Advice(self.groups, self.nodes, self.reasons, notes, self.proposal.waiting)

    def room(self, amount: str) -> float:
        """What the limits leave after this draft; it may be negative."""
        advice = Advice(self.groups, self.nodes)
        return self.job.limits.of(amount) - total_amount(follow_advice(self.job, advice), amount)

    def shrinks(self, role: str) -> bool:
        has = self.job.roles.get(role)
        return has is not None and has.auto_scale and self._allowed_count(role) < has.count

    def accept_nodes(self) -> None:
        """Accept the proposed sizes of nodes. If limits don't allow all, each grows by the same fraction."""
        sizes = {
            node.name: self._clamped(node.role, node.resource, proposed_size)
            for node in self._changeable()
            if not (proposed_size := self.proposal.node_resources[node.name]).empty
        }
        by_name = {node.name: node for node in self.job.nodes}
        shares = {amount: self._share(amount, sizes, by_name) for amount in SIZES}
        for name, size in sizes.items():
            has = by_name[name].resource
            cut = NodeSize.of({a: _shared(a, has, size, shares[a]) for a in SIZES})
            cut = self._significant(has, cut)
            if not cut.empty:
                self.nodes[name] = cut
                limited = any(shares[a] < 1 for a in SIZES if cut.amount(a) is not None)
                self._explain(
                    name, _size_words(has, cut), " (resourceLimits allow no more)" if limited else ""
                )
            elif not size.empty and not self._significant(has, size).empty:
                self.notes.append(f"{name} keeps {has}: resourceLimits leave no room ({self._why(name)})")

    def accept_group(self, role: str) -> None:
        """Accept the proposed count and size of one role as far as the limits allow."""
        proposed_group = self.proposal.node_group_resources.get(role, NodeGroupResource())
        has = self.job.roles.get(role)
        if has is None:
            self.notes.append(f"the job has no role {role}")
            return
        if not has.auto_scale:
            if proposed_group != NodeGroupResource():
                self.notes.append(f"{role} has autoScale: false ({self._why(role)})")
            return
        asked = has.count if proposed_group.count is None else proposed_group.count
        count = self._allowed_count(role)
        size = self._significant(
            has.resource, self._clamped(role, has.resource, proposed_group.node_resource)
        )
        size = self._fitting_size(role, size)
        fitting = self._fitting_count(role, count, size)
        if fitting == has.count and size.empty:
            if fitting != count:
                self.notes.append(
                    f"{role} stays at {fitting}: resourceLimits leave no room ({self._why(role)})"
                )
            elif role in self.proposal.node_group_resources:
                self.notes.append(f"{role} stays as it is: {self._why(role)}")
            return
        if not self._accept_within_limits(
            role, NodeGroupResource(fitting if fitting != has.count else None, size)
        ):
            self.notes.append(f"{role} stays as it is: resourceLimits leave no room ({self._why(role)})")
            return
        counted = f"{has.count} → {fitting} nodes" if fitting != has.count else ""
        change = "; ".join(words for words in (counted, _size_words(has.resource, size)) if words)
        self._explain(role, change, self._limits_words(role, asked, count, fitting))

    def _allowed_count(self, role: str) -> int:
        """The proposed count within the bounds. If none is proposed, only the user's own bounds apply."""
        has, proposed_group = self.job.roles[role], self.proposal.node_group_resources.get(role)
        asked = None if proposed_group is None else proposed_group.count
        if asked is None and has.bounds.count is None:
            return has.count
        return int(count_range(self.job, role).clamp(has.count if asked is None else asked))

    def _changeable(self) -> list[OptimizerNode]:
        by_name = {node.name: node for node in self.job.nodes}
        nodes = []
        for name in sorted(self.proposal.node_resources):
            if name not in by_name:
                self.notes.append(f"the job has no node {name}")
            elif not self.job.roles[by_name[name].role].auto_scale:
                self.notes.append(f"{name}: {by_name[name].role} has autoScale: false ({self._why(name)})")
            else:
                nodes.append(by_name[name])
        return nodes

    def _clamped(self, role: str, has: NodeSize, proposed_size: NodeSize) -> NodeSize:
        """A size within the bounds, without amounts that are not positive numbers."""
        amounts = {}
        for amount in SIZES:
            value = proposed_size.amount(amount)
            if value is not None and math.isfinite(value) and value > 0:
                amounts[amount] = size_range(self.job, role, amount, has.amount(amount)).clamp(value)
        return NodeSize.of(amounts)

    def _significant(self, has: NodeSize, proposed_size: NodeSize) -> NodeSize:
        """A size without the amounts that differ too little."""
        amounts = {}
        for amount in SIZES:
            value, present = proposed_size.amount(amount), has.amount(amount)
            if value is not None and (
                present is None or (value != present and abs(value - present) >= self.tolerance * present)
            ):
                amounts[amount] = value
        return NodeSize.of(amounts)

    def _share(
        self, amount: str, sizes: Mapping[str, NodeSize], by_name: Mapping[str, OptimizerNode]
    ) -> float:
        """The fraction of the wanted growth that the limits allow, 0 to 1."""
        growth = math.fsum(
            max(0.0, (size.amount(amount) or 0.0) - (by_name[name].resource.amount(amount) or 0.0))
            for name, size in sizes.items()
        )
        return min(1.0, max(0.0, self.room(amount)) / growth) if growth > 0 else 1.0

    def _fitting_size(self, role: str, size: NodeSize) -> NodeSize:
        """The size of nodes that the advice creates, reduced to what the limits allow."""
        has = self.job.roles[role]
        missing = has.count - len(self.job.of(role))
        amounts = {}
        for amount in SIZES:
            value = size.amount(amount)
            if value is None:
                continue
            present = has.resource.amount(amount) or 0.0
            replaced = self._replaced_memory(role) if amount == "memory" else []
            if (created := max(0, missing) + len(replaced)) and value > present:
                smallest = min([present, *replaced])
                value = min(value, _floor(amount, smallest + max(0.0, self.room(amount)) / created))
                if value <= present:
                    self.notes.append(f"{role} keeps its {amount}: resourceLimits leave no room")
                    continue
            amounts[amount] = value
        return NodeSize.of(amounts)

    def _accept_within_limits(self, role: str, group: NodeGroupResource) -> bool:
        """Accept the change, unless the nodes that it replaces grow beyond the limits."""
        before = {amount: min(0.0, self.room(amount)) for amount in SIZES}
        self.groups[role] = group
        if all(self.room(amount) >= before[amount] - _SLACK for amount in SIZES):
            return True
        del self.groups[role]
        return False

    def _replaced_memory(self, role: str) -> list[float]:
        """The memory of each node that ran out of memory: `follow_advice` replaces it if its role changes."""
        return [
            node.resource.memory
            for node in self.job.of(role)
            if node.oom and node.resource.memory and node.name not in self.nodes
        ]

    def _fitting_count(self, role: str, count: int, size: NodeSize) -> int:
        """As many of the wanted nodes as the limits allow, and no fewer than now."""
        has = self.job.roles[role]
        if count <= has.count:
            return count
        self.groups[role] = NodeGroupResource(None, size)
        fresh = size.over(has.resource)
        fitting = [
            has.count + math.floor(max(0.0, self.room(amount)) / value + _SLACK)
            for amount in AMOUNTS
            if (value := fresh.amount(amount) or 0.0) > 0
        ]
        del self.groups[role]
        return min([count, *fitting])

    def _limits_words(self, role: str, asked: int, clamped: int, fitting: int) -> str:
        """Why a role does not get the count that was asked for."""
        if fitting != clamped:
            return f" (wanted {asked}; resourceLimits leave room for {fitting})"
        if clamped == asked:
            return ""
        allowed, fewer_because = count_range(self.job, role), self.job.roles[role].bounds.fewer_because
        if fewer_because and clamped < asked:
            return f" (wanted {asked}; {fewer_because})"
        return f" (wanted {asked}; {allowed.low:g} to {allowed.high:g} are allowed)"

    def _why(self, key: str) -> str:
        return self.proposal.reasons.get(key, "the user's bounds")

    def _explain(self, key: str, change: str, clause: str) -> None:
        self.reasons[key] = f"{change}: {self._why(key)}{clause}"


def count_trainers(job: OptimizerJob) -> int:
    """The desired number of nodes that compute gradients: workers and the chief."""
    return sum(job.roles[role].count for role in TRAINERS if role in job.roles)


def count_fixed_trainers(job: OptimizerJob) -> int:
    """The trainers that are not workers: the chief, if it is a role of its own."""
    return count_trainers(job) - (job.roles[WORKER].count if WORKER in job.roles else 0)


def _shared(amount: str, has: NodeSize, proposed_size: NodeSize, share: float) -> float | None:
    value, present = proposed_size.amount(amount), has.amount(amount) or 0.0
    if value is None or share >= 1 or value <= present:
        return value
    return max(present, _floor(amount, present + share * (value - present)))


def _floor(amount: str, value: float) -> float:
    step = _STEPS[amount]
    return math.floor(value / step + _SLACK) * step


def _size_words(has: NodeSize, size: NodeSize) -> str:
    words = []
    for amount in SIZES:
        value, present = size.amount(amount), has.amount(amount)
        if value is not None:
            before = "unset" if present is None else f"{present:g}"
            words.append(f"{amount} {before} → {value:g} {UNITS[amount]}")
    return ", ".join(words)
