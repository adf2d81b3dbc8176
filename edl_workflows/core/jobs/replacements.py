"""How often the pod of one place of a job (a role and an index) is made again, for all kinds and all causes
of an end. Pure.

A kind decides whether a pod that failed is replaced, and at whose expense; it can't count what leaves no
trace, such as a deletion. So the creations themselves are counted here, in the job's status, and those that
come too soon wait. Another controller goes on with the same counts.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property
from typing import Any

from pydantic import Field

from edl_workflows.core.backoff import STEADY_SECONDS, count_replacements, replacement_pause
from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.actions import Actions, HeldPod, Manifest, Observed, merge_patch
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.kubernetes.objects import Status


class Replacements(Status):
    """The pods that one place had in a row.

    Attributes:
        count: how many of them replaced another one.
        time: when the newest was made.
    """

    count: int = Field(default=0, ge=0)
    time: datetime

    @property
    def due(self) -> datetime:
        """When the next one may be made."""
        return self.time + timedelta(seconds=replacement_pause(self.count))


@dataclass(frozen=True)
class ReplacementPace:
    """Holds back the pods of a decision whose places had too many in a row, and counts the others.

    An edit of the job's spec is followed at once, and so is the replacement of a pod that the job itself
    ended.

    Attributes:
        job: the job as it is stored.
        place_of: what people call the place of a pod.
        observed: what is observed of the job.
    """

    job: Manifest
    place_of: Callable[[Manifest], str]
    observed: Observed

    @property
    def _status(self) -> Mapping[str, Any]:
        return self.job.get("status") or {}

    @property
    def _is_edited(self) -> bool:
        """Whether the job's spec is newer than the decision that the status shows."""
        return bool(self._status.get("observedGeneration") != self.job["metadata"].get("generation"))

    @cached_property
    def _stored(self) -> dict[str, Replacements]:
        if self._is_edited:
            return {}
        replacements = (self._status.get("replacements") or {}).items()
        return {place: Replacements.model_validate(record) for place, record in replacements}

    def find_held(self, actions: Actions) -> Sequence[HeldPod]:
        """The pods of a decision that must not be made yet."""
        held = []
        for pod in _pods(actions):
            place = self.place_of(pod)
            record = self._stored.get(place)
            if record is not None and record.due > self.observed.now:
                name = manifests.name_of(pod)
                why = f"{place} was replaced {record.count} times in a row (see the Events of its pods)"
                message = f"{why}: the next pod, {name}, is made at {record.due:%H:%M:%S} UTC"
                held.append(HeldPod(name, (record.due - self.observed.now).total_seconds(), message))
        return held

    def count_created(self, actions: Actions, held: Sequence[HeldPod]) -> Actions:
        """The decision without the pods that are held back, and with the counts of the others in its status.

        The pods of a job's first decision are not counted: they replace none. Neither are those of the first
        decision after an edit, which may be all pods of a job that is resumed. The counts are written at
        once, even if the rest of the status may wait.
        """
        now, first = self.observed.now, self._is_edited or not self._status.get("phase")
        names = {pod.name for pod in held}
        refused = {refusal.name for refusal in self.observed.refused if refusal.kind == "Pod"}
        create = [c for c in actions.create if c["kind"] != "Pod" or manifests.name_of(c) not in names]
        records = self._without_ended_here(actions)
        for pod in _pods(replace(actions, create=tuple(create))):
            place = self.place_of(pod)
            record = records.get(place)
            if manifests.name_of(pod) in refused or (first and not record):
                continue
            age = (now - record.time).total_seconds() if record else STEADY_SECONDS
            records[place] = Replacements(
                count=count_replacements(record.count if record else 0, age), time=now
            )
        may_wait = 0.0 if first or records != self._stored else actions.status_may_wait
        status = self._patch(actions, records)
        return replace(actions, create=tuple(create), status=status, status_may_wait=may_wait)

    def _without_ended_here(self, actions: Actions) -> dict[str, Replacements]:
        """The counts but those of places whose live pods the job itself ends now."""
        if not self._stored:
            return {}
        going = {deletion.name for deletion in actions.delete if deletion.kind == "Pod"}
        ended_here = {
            self.place_of(pod)
            for pod in self.observed.of("Pod")
            if manifests.name_of(pod) in going
            and pod_state.pod_phase(pod) in ("Pending", "Running")
            and not manifests.is_terminating(pod)
        }
        return {place: record for place, record in self._stored.items() if place not in ended_here}

    def _patch(self, actions: Actions, records: Mapping[str, Replacements]) -> Mapping[str, Any] | None:
        """The decision's patch of the status, with the counts. Those that no longer matter go with the next
        change, so that the mere passing of time does not change the status."""
        before = self._status.get("replacements") or {}
        if records != self._stored:
            oldest = self.observed.now - timedelta(seconds=STEADY_SECONDS)
            records = {place: record for place, record in records.items() if record.time > oldest}
        after = {place: record.to_dict() for place, record in sorted(records.items())}
        change = merge_patch({"replacements": before}, {"replacements": after}) if before or after else None
        return {**(actions.status or {}), **(change or {})} or None


def _pods(actions: Actions) -> list[Manifest]:
    return [child for child in actions.create if child["kind"] == "Pod"]
