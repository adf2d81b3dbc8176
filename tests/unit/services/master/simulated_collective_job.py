"""A whole collective job in memory: as `tests.unit.services.master.simulated_job`, with members that train
together or not at all.

The model is the set of steps that it has seen. A step is made when all members of the active world run and
none of them has drained; with one of them gone, the others hang, or their processes fail.
"""

import contextlib
from collections.abc import Callable

from edl_workflows.core.exceptions import ConflictError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import Member, TrainingCluster
from edl_workflows.core.protocol.nodes import Directive, ProcessReport, ProcessState
from edl_workflows.core.protocol.training import StepReport
from edl_workflows.services.master.state import messages
from edl_workflows.services.master.state.settings import JobSettings
from tests.unit.services.master.simulated_job import SimulatedJob, SimulatedPod

BROKEN_CODE = 1
"""Exit code of a process whose collective operation failed: that of any uncaught exception."""


class SimulatedCollectiveJob(SimulatedJob):
    """The world around one collective job.

    Args:
        settings: of the job.
        steps: how many make the training.
        hangs: a process whose world lost a member waits for ever; else it fails.
        in_place: a process whose world lost a member keeps the model, and goes on in the next world.
        replica_size: number of processes that hold the model together. One alone is of no use.

    Attributes:
        memory: by pod, the process that holds a model, and the version whose model it is.
        pace: how many steps are made at a time, by the number of members.
    """

    def __init__(
        self,
        settings: JobSettings,
        steps: int = 40,
        *,
        hangs: bool = False,
        in_place: bool = False,
        replica_size: int = 1,
    ) -> None:
        self.total = steps
        self.replica_size = replica_size
        self.hangs = hangs or in_place
        self.in_place = in_place
        self.memory: dict[int, tuple[int, int]] = {}
        self.pace: Callable[[int], int] = lambda _: 1
        self.drained: dict[int, set[int]] = {}
        super().__init__(settings, shards=0)

    def _processes(self, pod: SimulatedPod, directive: Directive) -> None:
        for cluster in directive.clusters:
            fresh = cluster.process_of(pod.type, pod.id) == cluster.version
            stopped = (directive.lost or directive.broken) and cluster == directive.active
            if self._takes_part(pod, cluster) and fresh and not stopped:
                self._report(pod, cluster.version, ProcessState.READY)
        active = directive.active
        stopped = directive.lost or directive.broken
        in_it = active is not None and self._takes_part(pod, active) and not stopped
        if active is None or not in_it or pod.waiting >= active.version:
            return
        if not self._serves(active):
            if not self.hangs:
                self._exit(pod, active.version, BROKEN_CODE)
        elif self._loaded(pod, active):
            self._remember(active)
            self._between_steps(pod, active, directive)

    def _loaded(self, pod: SimulatedPod, active: TrainingCluster) -> bool:
        """In place, a version gets its model from a member that holds it."""
        if not active.in_place:
            return super()._loaded(pod, active)
        if active.version not in self.models:
            held = [self._held(member) for member in active.workers]
            size = self.replica_size
            newest = max(min(held[first : first + size]) for first in range(0, len(held), size))
            if not newest:
                return False  # the holders have died, and the master will hear of it
            self.models[active.version] = set(self.models[newest])
            self.steps[active.version] = self.steps[newest]
        return True

    def _held(self, member: Member) -> int:
        """The version whose model a member's process holds; 0 if it holds none."""
        process, version = self.memory.get(member.id, (0, 0))
        pod = self.pods.get((names.WORKER_TYPE, member.id))
        return version if pod is not None and pod.runs and process and process == member.process else 0

    def _remember(self, active: TrainingCluster) -> None:
        for member in active.workers:
            self.memory[member.id] = (active.process_of(names.WORKER_TYPE, member.id), active.version)

    def _between_steps(self, pod: SimulatedPod, active: TrainingCluster, directive: Directive) -> None:
        drained = self.drained.setdefault(active.version, set())
        if self.steps[active.version] >= self.total:
            self._exit(pod, active.process_of(pod.type, pod.id), 0)
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
            messages.record_process_report(
                self.state,
                ProcessReport(
                    node=pod.ref,
                    version=version,
                    state=what,
                    in_place=self.in_place,
                    replica_size=self.replica_size,
                ),
            )

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
            messages.record_step_report(self.state, report)
