"""A whole collective job in memory: as `tests.unit.master.simulated_job`, with members that train together or
not at all.

The model is the set of steps that it has seen. A step is made when all members of the active world run and
none of them has drained; with one of them gone, the others hang, or their processes fail.
"""

import contextlib
from collections.abc import Callable

from edl_workflows.exceptions import ConflictError
from edl_workflows.jobs import names
from edl_workflows.master.state import messages
from edl_workflows.master.state.settings import JobSettings
from edl_workflows.protocol.cluster import TrainingCluster
from edl_workflows.protocol.nodes import Directive, ProcessState
from edl_workflows.protocol.training import StepReport
from tests.unit.master.simulated_job import SimulatedJob, SimulatedPod

BROKEN_CODE = 1
"""Exit code of a process whose collective operation failed: that of any uncaught exception."""


class SimulatedCollectiveJob(SimulatedJob):
    """The world around one collective job.

    Args:
        settings: of the job.
        steps: how many make the training.
        hangs: a process whose world lost a member waits for ever; else it fails.

    Attributes:
        pace: how many steps are made at a time, by the number of members.
    """

    def __init__(self, settings: JobSettings, steps: int = 40, *, hangs: bool = False) -> None:
        self.total = steps
        self.hangs = hangs
        self.pace: Callable[[int], int] = lambda _: 1
        self.drained: dict[int, set[int]] = {}
        super().__init__(settings, shards=0)

    def _processes(self, pod: SimulatedPod, directive: Directive) -> None:
        for cluster in directive.clusters:
            if self._takes_part(pod, cluster) and not (directive.lost and cluster == directive.active):
                self._report(pod, cluster.version, ProcessState.READY)
        active = directive.active
        in_it = active is not None and self._takes_part(pod, active) and not directive.lost
        if active is None or not in_it or pod.waiting >= active.version:
            return
        if not self._serves(active):
            if not self.hangs:
                self._exit(pod, active.version, BROKEN_CODE)
        elif self._loaded(pod, active):
            self._between_steps(pod, active, directive)

    def _between_steps(self, pod: SimulatedPod, active: TrainingCluster, directive: Directive) -> None:
        drained = self.drained.setdefault(active.version, set())
        if self.steps[active.version] >= self.total:
            self._exit(pod, active.version, 0)
            return
        if directive.drain:
            drained.add(pod.id)
            self._report(pod, active.version, ProcessState.DRAINED)
        else:
            drained.discard(pod.id)
        if pod.id == active.chief_id and directive.save:
            self._save(pod, active, directive.save)
        elif not drained:
            self._step(pod, active)

    def _takes_part(self, pod: SimulatedPod, cluster: TrainingCluster) -> bool:
        return cluster.rank_of(pod.type, pod.id) is not None

    def _serves(self, cluster: TrainingCluster) -> bool:
        pods = [self.pods.get((names.WORKER_TYPE, member.id)) for member in cluster.workers]
        over = self.steps.get(cluster.version, 0) >= self.total
        return over or all(pod is not None and pod.runs and pod.waiting < cluster.version for pod in pods)

    def _report(self, pod: SimulatedPod, version: int, what: ProcessState) -> None:
        with contextlib.suppress(ConflictError):  # it acts on an older word of the master
            super()._report(pod, version, what)

    def _step(self, pod: SimulatedPod, active: TrainingCluster) -> None:
        """Rank 0 makes it, for all; each reports it."""
        if pod.id == active.chief_id:
            first = self.steps[active.version]
            made = range(first, min(first + self.pace(len(active.workers)), self.total))
            self.models[active.version].update(made)
            self.steps[active.version] = made.stop
        report = StepReport(
            node=pod.ref,
            version=active.version,
            step=self.steps[active.version],
            time=self.now,
            first_step_time=self.now,
        )
        with contextlib.suppress(ConflictError):
            messages.take_step_report(self.state, report)
