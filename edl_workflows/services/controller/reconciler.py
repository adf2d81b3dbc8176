"""Decide and apply for all objects of one group: the body of the loop."""

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from time import perf_counter

import structlog

from edl_workflows.core.exceptions import ConflictError, EdlError, UnavailableError
from edl_workflows.core.jobs.actions import Actions, InstallationSettings, Manifest, Observed
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.runtime.kube.events import EventNote
from edl_workflows.runtime.kube.resources import Object
from edl_workflows.services.controller.accounting.ledger import UsageLedger
from edl_workflows.services.controller.apply import Applier, Creations
from edl_workflows.services.controller.delayed_writes import DelayedWrites
from edl_workflows.services.controller.metrics import ControllerMetrics
from edl_workflows.services.controller.observed_cluster import JobGroup, ObservedCluster

log = structlog.get_logger(__name__)

MAX_DECISIONS = 3
"""Most decisions in a row about one object, each with the refusals and conflicts of the previous one. The
contract needs two; the third takes into account an object that appears in between."""

_WORDS = frozenset({"message", "conditions", "lastReconcileTime"})
"""Fields of every kind's status on which no decision depends."""


@dataclass(frozen=True)
class ReconcileResult:
    """The result of one pass over a group.

    Attributes:
        changed: whether something was written, so that the group must be reconciled again.
        requeue_after: seconds after which to reconcile again even without a change; None for never.
        failed: whether an object's decision could not be carried out.
    """

    changed: bool = False
    requeue_after: float | None = None
    failed: bool = False

    def __or__(self, other: "ReconcileResult") -> "ReconcileResult":
        """Combine two results; the earlier time counts."""
        times = [t for t in (self.requeue_after, other.requeue_after) if t is not None]
        return ReconcileResult(
            self.changed or other.changed, min(times, default=None), self.failed or other.failed
        )


@dataclass(frozen=True)
class Reconciler:
    """Reconciles one group at a time.

    Attributes:
        world: the observed objects.
        applier: carries out decisions.
        kinds: the kinds to reconcile.
        settings: see `InstallationSettings`.
        clock: the time, with a zone.
        metrics: counts decisions.
        progress_period: see `Observed`.
        holds: delayed status writes.
        ledger: adds the account of what a job's pods hold to the statuses that are written.
    """

    world: ObservedCluster
    applier: Applier
    kinds: Sequence[Kind]
    settings: InstallationSettings
    clock: Callable[[], datetime]
    metrics: ControllerMetrics = field(repr=False)
    progress_period: Callable[[], int] = lambda: 0
    holds: DelayedWrites = field(default_factory=DelayedWrites, repr=False)
    ledger: UsageLedger | None = field(default=None, repr=False)

    def reconcile(self, group: JobGroup) -> ReconcileResult:
        """Decide and apply for each object of the group. A failure for one object does not raise, and does
        not affect the others. Kinds whose definition is missing are left out."""
        outcome = ReconcileResult()
        for kind in filter(self.world.serves, self.kinds):
            for manifest in self.world.of_group(kind.source, group):
                outcome |= self._guarded(kind, manifest, group)
        return outcome

    def _guarded(self, kind: Kind, manifest: Manifest, group: JobGroup) -> ReconcileResult:
        started = perf_counter()
        result = "success"
        try:
            return self._object(kind, manifest, group)
        except ConflictError as error:
            result = "conflict"
            log.info("decision was too late", kind=kind.name, group=str(group), error=str(error))
        except UnavailableError as error:
            result = "unavailable"
            log.warning("API not available", kind=kind.name, group=str(group), error=str(error))
        except EdlError as error:
            result = "error"
            self._complain(kind, manifest, str(error))
        except Exception as error:
            result = "defect"
            log.exception("defect in a decision", kind=kind.name, group=str(group))
            self._complain(kind, manifest, f"internal error: {type(error).__name__}: {error}")
        finally:
            self.metrics.decided(kind.name, result, perf_counter() - started)
        return ReconcileResult(failed=True)

    def _object(self, kind: Kind, manifest: Manifest, group: JobGroup) -> ReconcileResult:
        now = self.clock()
        total = Creations()
        for _ in range(MAX_DECISIONS):
            actions = kind.decide(manifest, self._observe(kind, group, now, total))
            creations = self.applier.create(actions, group, {(r.kind, r.name) for r in total.refused})
            total.made += creations.made
            if not _merge_creations(total, creations):
                break
        words = bool(total.refused) and _only_words(actions)
        if words:
            actions = replace(actions, status_may_wait=actions.requeue_after or 0.0)
        actions = self._held_back(manifest, actions)
        if self.ledger is not None:
            actions = self.ledger.extend(kind, manifest, actions, now)
        changed = self.applier.finish(manifest, actions, group, now) and not words
        if actions.status:
            self._note_written(kind, manifest, actions.status, group)
        return ReconcileResult(changed=bool(total.made or changed), requeue_after=actions.requeue_after)

    def _note_written(self, kind: Kind, manifest: Manifest, status: Manifest, group: JobGroup) -> None:
        if self.ledger is not None:
            self.ledger.note_written(manifest)
        if "usage" in status or "phase" in status:
            name = manifest["metadata"]["name"]
            stored = self.world.find(manifest["apiVersion"], manifest["kind"], group, name)
            self.metrics.jobs.note_stored(kind, manifest, stored or {})

    def _held_back(self, manifest: Manifest, actions: Actions) -> Actions:
        """The decision without its status, as long as the status may wait so that one write covers later
        changes, too."""
        uid = str(manifest["metadata"].get("uid"))
        left = self.holds.left(uid, actions.status_may_wait if actions.status else 0.0)
        if not left:
            return actions
        times = [t for t in (left, actions.requeue_after) if t is not None]
        return replace(actions, status=None, requeue_after=min(times))

    def _observe(self, kind: Kind, group: JobGroup, now: datetime, total: Creations) -> Observed:
        objects: dict[str, list[Object]] = {
            source.api.kind: self.world.of_group(source, group) for source in kind.observes
        }
        for clash in total.clashes:
            same = objects.setdefault(clash["kind"], [])
            if all(o["metadata"]["uid"] != clash["metadata"]["uid"] for o in same):
                same.append(clash)
        return Observed(
            now,
            objects,
            tuple(total.refused),
            secrets.token_urlsafe(32),
            self.settings,
            progress_period=self.progress_period(),
        )

    def _complain(self, kind: Kind, manifest: Manifest, message: str) -> None:
        name = manifest["metadata"]["name"]
        log.warning("decision failed", kind=kind.name, name=name, error=message)
        self.applier.record_event(manifest, EventNote("ReconcileFailed", message, "Warning"), self.clock())


def _only_words(actions: Actions) -> bool:
    """Whether only texts in the status change. No decision depends on them, and API servers may word the same
    refusal differently each time (a request's id, the used part of a quota), so reconciling again at once
    after each such write would never end."""
    return not (actions.delete or actions.patch or (actions.status or {}).keys() - _WORDS)


def _merge_creations(total: Creations, creations: Creations) -> bool:
    """Add the refusals and clashes to `total`; return whether there is one that the last decision did not
    know."""
    names = {(r.kind, r.name) for r in total.refused}
    uids = {clash["metadata"]["uid"] for clash in total.clashes}
    refused = [r for r in creations.refused if (r.kind, r.name) not in names]
    clashes = [c for c in creations.clashes if c["metadata"]["uid"] not in uids]
    total.refused += refused
    total.clashes += clashes
    return bool(refused or clashes)
