"""Counts what a job's pods hold, and divides it by what the job's time was spent on.

What a pod holds before its program begins is overhead. The rest is divided in the proportion in which the
job's time was spent since it was divided last, as the job's master accounts for it. If steps are lost that
counted as useful, their share moves with them. Without a master's account, what pods held that failed is
lost, and the rest is unknown. The parts always sum to the spans of the pods.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime

from edl_workflows.core.jobs.usage.model import DIVIDED, HeldResource, SpentTime, UsagePart, UsageStatus
from edl_workflows.core.jobs.usage.spans import HeldAmounts, PodSpan

Amounts = dict[UsagePart, float]
"""Of one resource: seconds times amount, by part."""

DIGITS = 3
"""Decimal places of the stored numbers."""


def count_usage(
    before: UsageStatus | None,
    spans: Iterable[PodSpan],
    until: datetime,
    spent: SpentTime | None,
    *,
    created: datetime | None = None,
    over: bool = False,
) -> UsageStatus:
    """The account of a job until a moment.

    Args:
        before: the account so far; None for a new one.
        spans: of all pods that held anything since then.
        until: the moment. Nothing is added to an account that is newer, because the clock by which it was
            counted is ahead.
        spent: how the job's time was spent; None if nobody accounts for it.
        created: when the job was created; None if that is unknown.
        over: whether the job has ended, so that its account of time is complete.
    """
    since = before.time.timestamp() if before is not None else 0.0
    if before is not None and since > until.timestamp():
        until = before.time
    held, spans = _read_amounts(before), tuple(spans)
    for span in spans:
        _add_span(held, span, since, until.timestamp(), accounted=spent is not None)
    seconds = before.seconds if before is not None else {}
    if spent is not None:
        divided = {part: seconds.get(part, 0.0) for part in DIVIDED}
        now = spent.by_part()
        if any(now[part] > divided[part] for part in DIVIDED):
            for amounts in held.values():
                _divide(amounts, divided, now)
            seconds = _round(now)
        for amounts in held.values() if over else ():
            _move(amounts, UsagePart.UNKNOWN, UsagePart.OVERHEAD, amounts[UsagePart.UNKNOWN])
    stored = {resource.value: _round(amounts) for resource, amounts in held.items()}
    queued = before.queue_seconds if before is not None else None
    if queued is None and created is not None:
        queued = _measure_queue(spans, created.timestamp())
    return UsageStatus(time=until, seconds=dict(seconds), queue_seconds=queued, **stored)


def _measure_queue(spans: Iterable[PodSpan], created: float) -> float | None:
    """Seconds until the first training pod ran; None if none has."""
    first = min((s.started for s in spans if s.trains and s.started is not None), default=None)
    return None if first is None else round(max(0.0, first - created), DIGITS)


def unit_amounts(amounts: HeldAmounts) -> dict[HeldResource, float]:
    """The amount of each resource."""
    return dict(zip(HeldResource, amounts, strict=True))


def _read_amounts(before: UsageStatus | None) -> dict[HeldResource, Amounts]:
    stored = {resource: before.held(resource) if before else {} for resource in HeldResource}
    return {r: {part: held.get(part, 0.0) for part in UsagePart} for r, held in stored.items()}


def _add_span(
    held: dict[HeldResource, Amounts], span: PodSpan, since: float, until: float, *, accounted: bool
) -> None:
    end = min(span.ended if span.ended is not None else until, until)
    begun = end if span.started is None else min(max(span.started, span.bound), end)
    start = UsagePart.LOST if span.restarted else UsagePart.OVERHEAD
    failed = span.failed and not accounted
    counted = max(0.0, min(end, since) - begun)  # seconds of its program that the account has already
    for resource, amount in unit_amounts(span.amounts).items():
        held[resource][start] += amount * max(0.0, begun - max(span.bound, since))
        new = amount * max(0.0, end - max(begun, since))
        held[resource][UsagePart.LOST if failed else UsagePart.UNKNOWN] += new
        if failed and new:
            _move(held[resource], UsagePart.UNKNOWN, UsagePart.LOST, amount * counted)


def _divide(amounts: Amounts, before: Mapping[UsagePart, float], now: Mapping[UsagePart, float]) -> None:
    """Divide what is unknown in the proportion in which seconds were added to the parts, at least to one. Of
    a part that has fewer seconds than before, the same share is divided anew."""
    added = {part: now[part] - before[part] for part in DIVIDED}
    gains = {part: seconds for part, seconds in added.items() if seconds > 0}
    for part in DIVIDED:
        if added[part] < 0 and before[part] > 0:
            _move(amounts, part, UsagePart.UNKNOWN, amounts[part] * min(1.0, -added[part] / before[part]))
    pool, total = amounts[UsagePart.UNKNOWN], sum(gains.values())
    for part, seconds in gains.items():
        _move(amounts, UsagePart.UNKNOWN, part, pool * seconds / total)


def _move(amounts: Amounts, source: UsagePart, target: UsagePart, amount: float) -> None:
    moved = min(amount, amounts[source])
    amounts[source] -= moved
    amounts[target] += moved


def _round(amounts: Mapping[UsagePart, float]) -> dict[str, float]:
    """Rounded, without zeros."""
    rounded = {str(part): round(amount, DIGITS) for part, amount in amounts.items()}
    return {part: amount for part, amount in rounded.items() if amount > 0}
