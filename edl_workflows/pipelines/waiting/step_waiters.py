"""Registers a wait for a training step on its job, so that the job's master writes the status as soon as the
step has been made: without a waiter, it writes mere progress about once a minute.

A wait that may not annotate the job, or finds too many waiters, goes on without: it learns of the step from
the next write of the status.
"""

import contextlib
import math
from collections.abc import Mapping
from typing import Any

from edl_workflows.core.exceptions import ConflictError, EdlError, UnavailableError
from edl_workflows.core.jobs import manifests
from edl_workflows.core.jobs.elastic_job.awaited_steps import MAX_WAITERS, read_waiters
from edl_workflows.pipelines.waiting.goals import Handle, JobGoal
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import CallPolicy, ClusterSource
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Object

ONE_ATTEMPT = CallPolicy(attempts=1, read_seconds=5.0)
"""The wait must not wait for its registration."""
RETRY_SECONDS = 5.0
"""Between two attempts to register a wait. A job that only trains changes about once a minute."""


class StepWaiter:
    """The annotation of one wait.

    Args:
        handle: what is waited for.
    """

    def __init__(self, handle: Handle) -> None:
        goal = handle.goal
        self._annotation = handle.waiter if handle.kind == ELASTIC_JOBS.kind else ""
        self._step = goal.step if isinstance(goal, JobGoal) and goal.step is not None else 0
        self._over = not self._annotation or not self._step
        self._failed = False
        self._job: Object | None = None

    @property
    def seconds_until_retry(self) -> float:
        """Until the registration is to be tried again; infinite if it need not be."""
        return RETRY_SECONDS if self._failed else math.inf

    def is_due(self, state: Object | None) -> bool:
        """Whether the wait is to be registered on the job as it is now."""
        if self._over or state is None or manifests.is_terminating(state):
            return False
        if _annotations(state).get(self._annotation) == str(self._step):  # by an earlier process of this wait
            self._job, self._over = state, True
        return not self._over

    def register(self, source: ClusterSource, state: Object) -> None:
        """Register the wait, and remove waiters whose step has been made: they have died, or are about to
        read it."""
        waiters, shown = read_waiters(_annotations(state)), _shown_step(state)
        passed = [name for name, step in waiters.items() if step <= shown and name != self._annotation]
        self._over, self._failed = True, False
        if len(waiters) - len(passed) >= MAX_WAITERS:
            return
        try:
            _annotate(source, state, {**dict.fromkeys(passed), self._annotation: str(self._step)})
        except (UnavailableError, ConflictError):
            self._over, self._failed = False, True
        except EdlError:
            return
        else:
            self._job = state

    def withdraw(self, source: ClusterSource) -> None:
        """Remove the annotation after the wait's end."""
        if self._job is not None:
            with contextlib.suppress(EdlError):  # the next waiter removes it
                _annotate(source, self._job, {self._annotation: None})


def _annotations(manifest: Mapping[str, Any]) -> Mapping[str, str]:
    return manifest["metadata"].get("annotations") or {}


def _shown_step(manifest: Mapping[str, Any]) -> int:
    step = ((manifest.get("status") or {}).get("progress") or {}).get("step")
    return step if isinstance(step, int) else 0


def _annotate(source: ClusterSource, job: Object, annotations: Mapping[str, str | None]) -> None:
    metadata = job["metadata"]
    body = {"metadata": {"uid": metadata["uid"], "annotations": dict(annotations)}}
    cluster = source.connect().with_policy(ONE_ATTEMPT)
    client.patch(cluster, ELASTIC_JOBS, metadata["name"], body, metadata["namespace"])
