"""What may become of a proposal: the user's bounds, the job's limits, roles that no plan may change.

Each public function of an optimizer ends here, so these hold for every plan:

1. A job whose limits or bounds make no sense gets no plan.
2. A role with ``autoScale: false`` and its nodes stay as they are, and other roles' nodes don't mind (upstream drops them too).
3. Counts and sizes lie within the user's bounds; where the user says none, within DLRover's constants, widened by what the
   role has. (Upstream has a function that clamps, which nothing calls.)
4. All nodes together stay within ``resourceLimits``; a job beyond them does not grow.
5. What would change little is left as it is, and what changes is said with its reason.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from edl_workflows.scaling.dlrover.resources import (
    AMOUNTS,
    CHIEF,
    PS,
    TRAINERS,
    UNITS,
    WORKER,
    NodeGroupResource,
    NodeSize,
    OptimizerJob,
    OptimizerNode,
    Range,
    ResourcePlan,
    apply_plan,
    empty_plan,
    total_amount,
)

SIZES = {"cpu": Range(4, 32), "memory": Range(6_144, 65_536)}
"""Cores and MiB of one node (DLRover's NodeResourceLimit)."""
COUNTS = {PS: Range(1, 15), WORKER: Range(1, 60)}
"""DLRover's. Plans don't change how many nodes other roles have."""
LIMIT_SHARE = 5
"""No node needs more than this part of the job's limits: a small job's smallest node is smaller than `SIZES` say."""
TOLERANCE = 0.1
"""A size is left as it is while the better one differs by less than this part of it."""
_STEPS = {"cpu": 0.1, "memory": 1.0}
"""Sizes are rounded down to multiples of these where limits cut them."""
_SLACK = 1e-6
"""Sums of floats are off by less than this."""


def bound_plan(job: OptimizerJob, proposal: ResourcePlan, tolerance: float = TOLERANCE) -> ResourcePlan:
    """What of a proposal may be carried out, with a reason for each change and a note for what may not.

    Counts that are outside the user's bounds are corrected even if nothing is proposed. The answer, applied and bounded
    again, is empty.

    Args:
        job: as it is.
        proposal: its numbers may be anything; those that are not finite and positive are not used.
        tolerance: see `TOLERANCE`; 0 lets every difference count.
    """
    if wrong := job_problems(job):
        return empty_plan(*wrong)
    draft = _Draft(job, proposal, tolerance)
    draft.take_nodes()
    roles = {*proposal.node_group_resources, *job.roles}
    # Those that shrink first: they make room.
    for role in sorted(roles, key=lambda name: (not draft.shrinks(name), name)):
        draft.take_group(role)
    return draft.result()


def job_problems(job: OptimizerJob) -> tuple[str, ...]:
    """What makes planning for this job impossible, in words."""
    return tuple(_problems(job))


def count_range(job: OptimizerJob, role: str) -> Range:
    """How many nodes a role may have. The model needs a parameter server, and the job a chief."""
    has = job.roles[role]
    if role not in COUNTS:
        return Range(has.count, has.count)
    least = 1.0 if role == PS or CHIEF not in job.roles else 0.0
    said = has.bounds.count or COUNTS[role].including(has.count)
    return Range(max(least, said.low), max(least, said.high))


def size_range(job: OptimizerJob, role: str, amount: str, present: float | None) -> Range:
    """How much of ``cpu`` or ``memory`` a node of a role may have that now has `present`."""
    if said := job.roles[role].bounds.of(amount):
        return said
    limit, default = job.limits.of(amount), SIZES[amount]
    return Range(min(default.low, limit / LIMIT_SHARE), min(default.high, limit)).including(present)


def first_size(job: OptimizerJob, role: str, most: NodeSize) -> NodeSize:
    """What the user leaves out of a role's size in a new job: `most`, or a fifth of the job's limits if that is less.

    A fifth is rounded up to a whole core or MiB, but for less than one.
    """
    said = job.roles[role].resource
    found = {}
    for amount in SIZES:
        value = most.amount(amount)
        if value is not None and said.amount(amount) is None:
            share = min(job.limits.of(amount) / LIMIT_SHARE, value)
            found[amount] = float(math.ceil(share)) if 1 <= share < math.inf else share
    return NodeSize.of(found)


def _problems(job: OptimizerJob) -> Iterator[str]:
    for amount in AMOUNTS:
        limit = job.limits.of(amount)
        if not (math.isfinite(limit) and limit >= 0) or (limit == 0 and amount != "gpu"):
            yield f"resourceLimits.{amount} is {limit:g}: it must be a positive number"
    for name, role in sorted(job.roles.items()):
        if role.count < 0:
            yield f"{name} wants {role.count} nodes"
        for what in ("count", *SIZES):
            said = role.bounds.of(what)
            if said and not said.possible:
                yield f"the bounds of {name} are impossible: {what} from {said.low:g} to {said.high:g}"
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
    """The plan so far."""

    job: OptimizerJob
    proposal: ResourcePlan
    tolerance: float
    groups: dict[str, NodeGroupResource] = field(default_factory=dict)
    nodes: dict[str, NodeSize] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def result(self) -> ResourcePlan:
        """The plan."""
        notes = (*self.proposal.notes, *self.notes)
        return ResourcePlan(self.groups, self.nodes, self.reasons, notes, self.proposal.waiting)

    def room(self, amount: str) -> float:
        """What the limits leave beside this draft; it may be negative."""
        plan = ResourcePlan(self.groups, self.nodes)
        return self.job.limits.of(amount) - total_amount(apply_plan(self.job, plan), amount)

    def shrinks(self, role: str) -> bool:
        """Whether the role will have fewer nodes."""
        has = self.job.roles.get(role)
        return has is not None and has.auto_scale and self._allowed_count(role) < has.count

    def take_nodes(self) -> None:
        """The proposed sizes of single nodes. Where limits don't hold all, each grows by the same part less."""
        sizes = {
            node.name: self._clamped(node.role, node.resource, wanted)
            for node in self._changeable()
            if not (wanted := self.proposal.node_resources[node.name]).empty
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

    def take_group(self, role: str) -> None:
        """The proposed count and size of one role, as far as the limits hold them; else as it has."""
        wanted = self.proposal.node_group_resources.get(role, NodeGroupResource())
        has = self.job.roles.get(role)
        if has is None:
            self.notes.append(f"the job has no role {role}")
            return
        if not has.auto_scale:
            if wanted != NodeGroupResource():
                self.notes.append(f"{role} has autoScale: false ({self._why(role)})")
            return
        asked = has.count if wanted.count is None else wanted.count
        count = self._allowed_count(role)
        size = self._significant(has.resource, self._clamped(role, has.resource, wanted.node_resource))
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
        self.groups[role] = NodeGroupResource(fitting if fitting != has.count else None, size)
        counted = f"{has.count} → {fitting} nodes" if fitting != has.count else ""
        what = "; ".join(words for words in (counted, _size_words(has.resource, size)) if words)
        self._explain(role, what, self._limits_words(role, asked, count, fitting))

    def _allowed_count(self, role: str) -> int:
        """The proposed count within the bounds; where none is proposed, only the user's bounds count."""
        has, wanted = self.job.roles[role], self.proposal.node_group_resources.get(role)
        asked = None if wanted is None else wanted.count
        if asked is None and has.bounds.count is None:
            return has.count
        return int(count_range(self.job, role).clamp(has.count if asked is None else asked))

    def _changeable(self) -> list[OptimizerNode]:
        by_name = {node.name: node for node in self.job.nodes}
        found = []
        for name in sorted(self.proposal.node_resources):
            if name not in by_name:
                self.notes.append(f"the job has no node {name}")
            elif not self.job.roles[by_name[name].role].auto_scale:
                self.notes.append(f"{name}: {by_name[name].role} has autoScale: false ({self._why(name)})")
            else:
                found.append(by_name[name])
        return found

    def _clamped(self, role: str, has: NodeSize, wanted: NodeSize) -> NodeSize:
        """Within the bounds; amounts that are no positive numbers are left out."""
        found = {}
        for amount in SIZES:
            value = wanted.amount(amount)
            if value is not None and math.isfinite(value) and value > 0:
                found[amount] = size_range(self.job, role, amount, has.amount(amount)).clamp(value)
        return NodeSize.of(found)

    def _significant(self, has: NodeSize, wanted: NodeSize) -> NodeSize:
        """Without what differs too little."""
        found = {}
        for amount in SIZES:
            value, present = wanted.amount(amount), has.amount(amount)
            if value is not None and (
                present is None or (value != present and abs(value - present) >= self.tolerance * present)
            ):
                found[amount] = value
        return NodeSize.of(found)

    def _share(
        self, amount: str, sizes: Mapping[str, NodeSize], by_name: Mapping[str, OptimizerNode]
    ) -> float:
        """The part of the wanted growth that there is room for, 0 … 1."""
        growth = math.fsum(
            max(0.0, (size.amount(amount) or 0.0) - (by_name[name].resource.amount(amount) or 0.0))
            for name, size in sizes.items()
        )
        return min(1.0, max(0.0, self.room(amount)) / growth) if growth > 0 else 1.0

    def _fitting_size(self, role: str, size: NodeSize) -> NodeSize:
        """For nodes that are wanted and not there yet: what of a larger size there is room for."""
        has = self.job.roles[role]
        missing = has.count - len(self.job.of(role))
        found = {}
        for amount in SIZES:
            value = size.amount(amount)
            if value is None:
                continue
            present = has.resource.amount(amount) or 0.0
            if missing > 0 and value > present:
                value = min(value, _floor(amount, present + max(0.0, self.room(amount)) / missing))
                if value <= present:
                    self.notes.append(f"{role} keeps its {amount}: resourceLimits leave no room")
                    continue
            found[amount] = value
        return NodeSize.of(found)

    def _fitting_count(self, role: str, count: int, size: NodeSize) -> int:
        """As many of the wanted nodes as the limits hold; never fewer than there are for want of room."""
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
        """What kept a role from the count that was asked for."""
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

    def _explain(self, key: str, what: str, clause: str) -> None:
        self.reasons[key] = f"{what}: {self._why(key)}{clause}"


def count_trainers(job: OptimizerJob) -> int:
    """How many nodes the job wants that compute gradients: workers and the chief."""
    return sum(job.roles[role].count for role in TRAINERS if role in job.roles)


def count_fixed_trainers(job: OptimizerJob) -> int:
    """Those of them that are no workers: a chief of its own."""
    return count_trainers(job) - (job.roles[WORKER].count if WORKER in job.roles else 0)


def _shared(amount: str, has: NodeSize, wanted: NodeSize, share: float) -> float | None:
    value, present = wanted.amount(amount), has.amount(amount) or 0.0
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
            before = "no size" if present is None else f"{present:g}"
            words.append(f"{amount} {before} → {value:g} {UNITS[amount]}")
    return ", ".join(words)
