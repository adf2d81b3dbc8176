"""The check of nodes before training, in pairs and two rounds: finds faulty and slow nodes. Pure.

If a pair fails, either one of its nodes is faulty, or the connection between two sound nodes is. The second
round gives each node another partner, the slowest nodes with the fastest: a node that fails again is itself
faulty. This is DLRover's node check, with one exception: a node that arrives after the others have passed is
checked together with one of them.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median

JOIN_SECONDS = 30.0
"""Seconds after the last registration until the registered nodes are checked without the missing ones."""

Groups = tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class CheckResult:
    """What a node measured: seconds, or why it failed."""

    seconds: float = 0.0
    error: str = ""


@dataclass(frozen=True)
class RunningRound:
    """A round under way.

    Attributes:
        groups: groups of nodes that measure together.
        since: Unix seconds at which the round began.
        results: results of the nodes that have reported.
        first: results of the first round, if this is the second.
    """

    number: int
    groups: Groups
    since: float
    results: dict[str, CheckResult] = field(default_factory=dict)
    first: dict[str, CheckResult] | None = None

    @property
    def nodes(self) -> frozenset[str]:
        return frozenset(node for group in self.groups for node in group)


@dataclass(frozen=True)
class NodeCheck:
    """The check so far.

    Attributes:
        number: number of the newest round.
        round: the round under way.
        passed: best seconds of each node that passed.
        came: the nodes that were registered at the last call of `advance_check`.
        since: when `came` last changed, in Unix seconds.
        done: whether all registered nodes have passed, and missing nodes were waited for.
    """

    number: int = 0
    round: RunningRound | None = None
    passed: dict[str, float] = field(default_factory=dict)
    came: tuple[str, ...] = ()
    since: float = 0.0
    done: bool = False

    def shift_times(self, seconds: float) -> "NodeCheck":
        """Move stored times after the clock jumped or the master was paused, so that a round keeps its full
        time.
        """
        if not self.came:
            return self
        current = replace(self.round, since=self.round.since + seconds) if self.round else None
        return replace(self, round=current, since=self.since + seconds)


@dataclass(frozen=True)
class NodeCheckRules:
    """Limits from the job's spec: seconds for a round, and the factor over the median beyond which a node is
    slow.
    """

    timeout: float = 300.0
    straggler_ratio: float = 2.0


def record_result(check: NodeCheck, node: str, number: int, result: CheckResult) -> NodeCheck:
    """Record a node's result; results of other rounds or of nodes not in the round are ignored."""
    current = check.round
    if current is None or current.number != number or node not in current.nodes:
        return check
    return replace(check, round=replace(current, results={**current.results, node: result}))


def advance_check(
    check: NodeCheck, registered: Collection[str], *, complete: bool, rules: NodeCheckRules, now: float
) -> tuple[NodeCheck, dict[str, str]]:
    """Begin or end a round.

    Args:
        check: the check so far.
        registered: names of the registered nodes.
        complete: whether all wanted nodes are among them.
        rules: of the job.
        now: Unix seconds.

    Returns:
        The check, and the nodes found faulty, each with the reason.
    """
    present = tuple(sorted(registered))
    if present != check.came:
        check = replace(check, came=present, since=now)
    check = replace(
        check, done=False, passed={node: best for node, best in check.passed.items() if node in registered}
    )
    current = check.round
    if current is not None and not current.nodes <= set(registered):
        current = None  # a node is gone, so its partner can't finish the round
    if current is not None:
        return _end_round(replace(check, round=current), current, rules, now)
    check = replace(check, round=None)
    unchecked = [node for node in present if node not in check.passed]
    if not (complete or now - check.since >= JOIN_SECONDS):
        return check, {}
    if not unchecked:
        return replace(check, done=bool(present)), {}
    return _begin_round(check, first_groups(unchecked, check.passed), now), {}


def first_groups(unchecked: Sequence[str], passed: Mapping[str, float]) -> Groups:
    """Pair adjacent nodes; an odd last node joins the last pair. A single node is paired with the fastest
    node that has passed, if any.
    """
    if len(unchecked) == 1 and passed:
        return ((unchecked[0], min(passed, key=passed.__getitem__)),)
    return _pair_up(unchecked)


def second_groups(results: Mapping[str, CheckResult], firsts: Collection[str] = ()) -> Groups:
    """Pair the fastest with the slowest; nodes that failed count as slowest.

    In a group, the other nodes measure against its first node. So if a group fails, its first node is ranked
    behind its partners, which may have failed because of it.

    Args:
        results: results of the first round.
        firsts: nodes that were first in their group.
    """

    def rank(node: str) -> tuple[bool, bool, float, str]:
        failed = bool(results[node].error)
        return failed, failed and node in firsts, results[node].seconds, node

    order = sorted(results, key=rank)
    crossed = [node for pair in zip(order, reversed(order), strict=True) for node in pair][: len(order)]
    return _pair_up(crossed)


def slower_than_median(seconds: Mapping[str, float], ratio: float) -> dict[str, float]:
    """Nodes slower than the median by more than `ratio`; the value is how many times slower each is."""
    if len(seconds) < 2:
        return {}
    middle = median(seconds.values())
    return {
        node: value / middle
        for node, value in sorted(seconds.items())
        if middle > 0 and value > ratio * middle
    }


def _pair_up(nodes: Sequence[str]) -> Groups:
    pairs = [tuple(nodes[start : start + 2]) for start in range(0, len(nodes), 2)]
    if len(pairs) > 1 and len(pairs[-1]) == 1:
        pairs[-2:] = [pairs[-2] + pairs[-1]]
    return tuple(pairs)


def _begin_round(
    check: NodeCheck, groups: Groups, now: float, first: dict[str, CheckResult] | None = None
) -> NodeCheck:
    number = check.number + 1
    return replace(check, number=number, round=RunningRound(number, groups, now, first=first))


def _end_round(
    check: NodeCheck, current: RunningRound, rules: NodeCheckRules, now: float
) -> tuple[NodeCheck, dict[str, str]]:
    late = now - current.since >= rules.timeout
    if not late and current.results.keys() < current.nodes:
        return check, {}
    silent = CheckResult(error=f"no answer within {rules.timeout:g} s")
    results = {node: current.results.get(node, silent) for node in sorted(current.nodes)}
    best = _best_results(check.passed, current.first or {}, results)
    clean = all(not result.error for result in results.values()) and not slower_than_median(
        best, rules.straggler_ratio
    )
    if current.first is None and not clean and len(results) > 1:
        firsts = {group[0] for group in current.groups}
        return _begin_round(check, second_groups(results, firsts), now, first=results), {}
    faulty = {node: result.error for node, result in results.items() if node not in best}
    return replace(check, round=None, passed={**check.passed, **best}), faulty


def _best_results(
    passed: Mapping[str, float], first: Mapping[str, CheckResult], results: Mapping[str, CheckResult]
) -> dict[str, float]:
    """The better measurement of each node that has one."""
    fastest: dict[str, float] = {node: passed[node] for node in results if node in passed}
    for measured in (first, results):
        for node, result in measured.items():
            if not result.error:
                fastest[node] = min(result.seconds, fastest.get(node, result.seconds))
    return fastest
