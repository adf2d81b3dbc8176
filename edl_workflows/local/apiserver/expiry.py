"""Expiry of events an hour after their last occurrence, as upstream: nobody deletes them, and they would fill
the disk."""

import asyncio
from datetime import UTC, datetime, timedelta

from edl_workflows.local.apiserver.registry import Registry
from edl_workflows.local.apiserver.store import Object

EVENT_LIFE = timedelta(hours=1)
SWEEP_SECONDS = 60.0
"""Between two scans of all events."""


async def run(registry: Registry) -> None:
    """Expire events until cancelled."""
    while True:
        await asyncio.sleep(SWEEP_SECONDS)
        await expire(registry, datetime.now(UTC))


async def expire(registry: Registry, now: datetime) -> None:
    """Delete the events that are older than `EVENT_LIFE`."""
    for revision in registry.store.list_objects("events"):
        if now - _last_seen(revision.decode()) > EVENT_LIFE and registry.store.get(revision.key) is revision:
            registry.store.delete(revision.key)
        await asyncio.sleep(0)  # requests between two events


def _last_seen(event: Object) -> datetime:
    stamp = event.get("lastTimestamp") or event.get("eventTime") or event["metadata"]["creationTimestamp"]
    try:
        seen = datetime.fromisoformat(stamp)
    except ValueError:
        return datetime.fromisoformat(event["metadata"]["creationTimestamp"])
    return seen if seen.tzinfo else seen.replace(tzinfo=UTC)
