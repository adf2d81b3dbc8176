"""Collective training: a loop that all members of a cluster version run in step, with any framework.

The members make each step together and must stop together: a member that stops alone leaves the others
blocked in a collective operation. Directives reach the members at different times. So two numbers are summed
along with the gradients of every step: how many members were asked to drain, and how many to exit. All
members see the same sums and act alike after the same step, at the *step boundary*:

* If a member was asked to drain, each member fetches its directive anew. If the directive asks for a drain,
  the member stops, reports that, and waits for the next version to take over. The chief saves when the master
  asks for it.
* If a member was asked to exit, the chief saves. Then the members that were asked exit; the others wait for
  the version without them.

If a member is lost and the framework can form another group in the same process, the remaining processes
continue with the model in memory (`edl_workflows.training.collective.regrouping`). Otherwise they exit, and
new processes start from a checkpoint.

The end of an epoch is such an event, too (`edl_workflows.training.collective.epochs`).

A framework implements `Framework`; the adapters are in `edl_workflows.training.frameworks`.
"""

import contextlib
import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, TypeVar

from edl_workflows.core.exceptions import CheckpointError, InvalidError, UnavailableError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import CLUSTER_LOST_EXIT_CODE
from edl_workflows.training import addresses
from edl_workflows.training.checkpoints.checkpoint_parts import Part
from edl_workflows.training.checkpoints.part_saving import PartFramework
from edl_workflows.training.checkpoints.saving import SaveWish
from edl_workflows.training.checkpoints.two_stages import TwoStages
from edl_workflows.training.cluster_member import TERMINATED
from edl_workflows.training.collective.epochs import (
    BestCheckpoint,
    EpochEnds,
    choose_monitored,
    of_numbers,
    to_numbers,
)
from edl_workflows.training.collective.framework import Framework, ReplicaFramework, Saving, Wishes
from edl_workflows.training.collective.regrouping import (
    CannotTakePartError,
    GroupChanges,
    Place,
    Progress,
    can_regroup,
)
from edl_workflows.training.data.sampler import Dataset, ElasticSampler
from edl_workflows.training.job import Job

if TYPE_CHECKING:
    from edl_workflows.training.checkpoints.tensors import State

DATA = "data"
"""Key of the data position in a saved state's metadata."""
ENDS = "epochs"
"""Key of the ends of epochs in a saved state's metadata; absent without `World.epochs`, in this process and
those before it."""

log = logging.getLogger(__name__)
T = TypeVar("T")


class World:
    """A member's running training. Created by `training`; iterate over it to get the records to compute.

    Attributes:
        job: the member's job.
        framework: the adapter.
        global_step: steps made so far, over all versions.
        loss: loss of the newest step, over the global batch.
        step_made: whether the newest call of `step` made its step. False if a member was lost during the
            call; the next turn of the loop then repeats the step.
    """

    def __init__(self, job: Job, framework: Framework, dataset: Dataset, saving: Saving) -> None:
        self.job = job
        job.declare_one_model()
        self.framework = framework
        self._place = find_place(job)
        self.global_step = 0
        self.loss = float("nan")
        self.step_made = False
        self._calls = 0
        self._reserved = False
        self._sampler = ElasticSampler(dataset, job.cluster.max_workers)
        self._ends = EpochEnds()
        self._epoch = 0
        self._saving = saving
        self._best = BestCheckpoint(saving.store, job.environment.token)
        self._asked = Wishes()
        self._agreed = Wishes()
        self._changes: GroupChanges | None = None
        if can_regroup(framework):
            self._changes = GroupChanges(job, framework, lambda: find_place(job))

    @property
    def rank(self) -> int:
        """Rank of this member."""
        return self._place.rank

    @property
    def size(self) -> int:
        """Number of members."""
        return self._place.size

    @property
    def epoch(self) -> int:
        """Epoch of the next step, counted from 1."""
        return self._sampler.epoch

    @property
    def records_done(self) -> int:
        """The position in the data: the number of records that all members have trained so far, in all
        epochs.
        """
        return self._sampler.records_done

    @property
    def steps_left(self) -> int:
        """Steps that are left of the present epoch, within `epochs`, else of all; -1: there is no end."""
        return self._sampler.count_steps_left(self._epoch)

    def upcoming(self) -> Iterator[tuple[Sequence[int], ...]]:
        """What the iteration will yield from the next step on if the members stay the same, so that it can be
        read ahead (`edl_workflows.training.data.torch_data`)."""
        return self._sampler.upcoming(self.rank, self.size)

    def __iter__(self) -> Iterator[tuple[Sequence[int], ...]]:
        """Record indices of this member's mini-batches, step by step, until all epochs are done; within
        `epochs`, until the epoch is done.

        Call `step` once in each turn. Between two steps, the iteration follows the master's directive. If a
        member was lost during a step, the step's records are distributed anew among the remaining members.

        Raises:
            SystemExit: the process was asked to exit, or another version takes over.
        """
        while not (self._sampler.done or 0 < self._epoch < self._sampler.epoch):
            self._calls = 0
            yield self._sampler.mini_batches(self.rank, self.size)
            if self._calls != 1:
                raise InvalidError(f"{self._calls} steps for the mini-batches of one step: call step once")
            if self.step_made and not self._sampler.done:  # at the end all members save and exit anyway
                self._boundary()

    def epochs(self) -> Iterator[int]:
        """The numbers of the epochs, counted from 1, beginning with the present one.

        Within the loop, each iteration over this object, or over a loader of it, ends with the epoch. A loop
        that is left early ends the training, also after a restart; all members must leave it after the same
        epoch, such as because of `epochs_since_best`.

        Raises:
            InvalidError: the program left out records of an epoch.
        """
        try:
            while not (
                self._ends.stopped or (self._sampler.done and self._ends.ended >= self._sampler.epoch - 1)
            ):
                self._epoch = self._ends.ended + 1
                yield self._epoch
                if self._sampler.epoch <= self._epoch:
                    raise InvalidError(f"epoch {self._epoch} has more records: train until its loop ends")
                self._ends = replace(self._ends, ended=self._epoch)
        except GeneratorExit:
            self._ends = replace(self._ends, stopped=True)
            raise

    @property
    def epochs_since_best(self) -> int:
        """Epochs that have ended since the one whose validation was the best; 0 if it is the newest."""
        return self._ends.since_best

    @property
    def best(self) -> float:
        """The best value of the metric that `validate` monitors; nan before a validation."""
        return self._ends.best

    def validate(
        self,
        evaluate: Callable[[], Mapping[str, float]],
        monitor: str = "",
        *,
        maximize: bool = False,
        stop: Callable[[Mapping[str, float]], bool] | None = None,
    ) -> dict[str, float]:
        """End an epoch with a validation. Call it once, in a turn of `epochs`, when all records of the epoch
        are trained.

        The metrics are reported. If the model is better than after all earlier epochs, it is saved as the
        only checkpoint in the folder `best` of the checkpoints, for which training waits.

        Args:
            evaluate: returns metrics by name; called in all members, with the same model.
            monitor: the metric that says which model is the best; "" if there is only one.
            maximize: whether a greater value is better.
            stop: whether training ends with this epoch. Called in all members with the metrics of rank 0,
                whose decision counts, so it may depend on what differs between members, such as a clock.

        Returns:
            The metrics of rank 0, so that all members take the same decisions.

        Raises:
            InvalidError: it is not the end of an epoch, there is no such metric, or one is malformed.
            SystemExit: see `step`.
        """
        if not self._ends.ended < self._epoch < self._sampler.epoch:
            raise InvalidError("validate once at the end of each epoch, within a loop over epochs()")
        framework = self.framework
        with framework.guarding() if isinstance(framework, ReplicaFramework) else contextlib.nullcontext():
            metrics = {name: float(value) for name, value in evaluate().items()}
        monitor = choose_monitored(metrics, monitor)
        decision: bool | None = None
        stopped = False
        while self._ends.ended < self._epoch:
            try:
                metrics = dict(zip(metrics, self._of_rank_0(list(metrics.values())), strict=True))
                ends = self._ends.after(self._epoch, metrics[monitor], maximize=maximize)
                if ends.best_epoch == self._epoch:
                    self._save_best(ends)
                if stop is not None:
                    decision = stop(metrics) if decision is None else decision
                    stopped = bool(self._of_rank_0([decision])[0])
                self.framework.meet()
            except UnavailableError as error:
                self._go_on(str(error))
            else:
                self._ends = replace(ends, stopped=stopped)
        metrics[monitor] = self._ends.value  # if another member had already ended the epoch
        if self.rank == 0:
            self.job.report(self.global_step, metrics)
        return metrics

    def step(self, mini_batches: Sequence[Any]) -> tuple[int, float]:
        """Make one step together with the other members, and report it.

        If a member is lost before the step is made, no member updates its model, `step_made` is False, and
        the next turn of the loop repeats the step.

        Args:
            mini_batches: the framework's inputs for each of the mini-batches from the iteration.

        Returns:
            The global step after it, and the mean loss of the global batch; if the step must be repeated, the
            values of the previous step.

        Raises:
            SystemExit: the group broke, so this process must exit; the agent starts the next one.
        """
        self._asked = Wishes(
            drain=float(self.job.drain_requested),
            leave=float(self.job.terminated),
            save=float(self.job.checkpoint_wish()) if self._save_together else 0.0,
        )
        self._calls += 1
        try:
            reduced = self.framework.step(mini_batches, self._asked)
        except UnavailableError as error:
            self._go_on(str(error))
            return self.global_step, self.loss
        self.step_made = True
        if not self._reserved:  # an optimizer has its averages only after the first step
            self._reserved = True
            self.job.reserve_memory()
        self._agreed = reduced.wishes
        self._sampler.advance()
        self.global_step += 1
        self.loss = reduced.loss
        self.job.report_step(self.global_step, self.loss, self._sampler.records_done)
        return self.global_step, self.loss

    def enter(self) -> None:
        """Prepare, wait until this member's version is active, and get the state. Rank 0 restores the state
        and broadcasts it; with replica groups, the first group does so, each process its shards. A member
        that joins a group that continues in place gets the state from another member."""
        if self._changes is not None and self.job.cluster.in_place:
            self._resume(self._changes.join())
        else:
            self._begin_version()
        self.job.expect_records(self._sampler.records_total)
        self.job.save_in_two_stages(self._two_stages)

    def _begin_version(self) -> None:
        self._together(lambda: self.framework.join(self._place))
        self.job.wait_until_active(in_place=self._changes is not None)
        if self.rank < self.job.replica_size:
            checkpoint = self.job.start_from(self._saving.store)
            if checkpoint is not None:
                self._restore(checkpoint)
        numbers = self._together(lambda: self.framework.broadcast(self._progress.to_numbers()))
        self._resume(Progress.of_numbers(numbers))

    def finish(self) -> None:
        """Save the last checkpoint, and finish together: no member finishes before it is stored."""
        met = False
        while not met:
            self.job.save_last(always=True)
            met = self._meet()
        self.job.close()

    @property
    def _two_stages(self) -> TwoStages:
        """How checkpoints are saved. Known once the model is built."""
        saving = self._saving
        return TwoStages(
            self._state if self.job.replica_size == 1 else self._part,
            saving.store,
            saving.every_seconds,
            saving.memory_seconds,
            saving.replicate,
            self._part if isinstance(self.framework, PartFramework) else None,
        )

    @property
    def _progress(self) -> Progress:
        return Progress(self.global_step, self._sampler.epoch, self._sampler.completed, self._ends)

    def _resume(self, progress: Progress) -> None:
        """Continue from the progress that all members have."""
        self._place = find_place(self.job)
        self._agreed = Wishes()
        self._reserved = False  # parts of the state are larger if members have left
        self.global_step = progress.step
        self._sampler.go_to(progress.epoch, progress.completed)
        self._ends = progress.ends

    def _go_on(self, reason: str) -> None:
        """Continue in the next group, or exit."""
        self.step_made = False
        if self._changes is None:
            self.job.cluster_lost(reason)
        self._resume(self._changes.go_on(reason, self._progress))
        if self._sampler.done:  # no step follows that would report the progress
            self.job.report_step(self.global_step, self.loss, self._sampler.records_done)

    def _meet(self) -> bool:
        """Wait for all members. Returns False if this process continues in another group instead."""
        try:
            self.framework.meet()
        except UnavailableError as error:
            self._go_on(str(error))
            return False
        return True

    def _of_rank_0(self, values: Sequence[float]) -> list[float]:
        """The values that rank 0 passes, in all members."""
        numbers = [number for value in values for number in to_numbers(value)]
        if can_regroup(self.framework):
            numbers = [self.framework.compare(number)[0] for number in numbers]
        else:
            numbers = self.framework.broadcast(numbers)
        return [of_numbers(pair) for pair in zip(numbers[::2], numbers[1::2], strict=True)]

    def _save_best(self, ends: EpochEnds) -> None:
        part = self.job.replica_size > 1
        before, self._ends = self._ends, ends
        if part or self.job.is_chief:
            self._best.save(self._two_stages, self.job.version, part=part)
        self._ends = before

    def _boundary(self) -> None:
        if self._agreed.leave:
            self._let_go()
        elif self._agreed.drain:
            self.job.drain()
            if self._changes is not None and self._changes.due:
                self._go_on("the members change")
        elif self._save_together:
            if self._agreed.save:
                self.job.checkpoint_part(SaveWish(int(self._agreed.save)))
        elif self.job.should_checkpoint():
            self.job.checkpoint()

    def _let_go(self) -> None:
        """Handle members that were asked to exit. They stay until the chief has saved. If the others continue
        with the model in memory, the chief saves only before its own exit. With replica groups, all members
        save together."""
        if self.job.replica_size > 1 or (self.job.is_chief and (self._changes is None or self._asked.leave)):
            self.job.checkpoint(stored=True)
        asked = f"{self._agreed.leave:.0f} of {self.size} members were asked to exit"
        if self._asked.leave:
            with contextlib.suppress(UnavailableError):  # another member was lost
                self.framework.meet()
            self.job.close()
            raise SystemExit(TERMINATED)
        if self._meet():
            self._go_on(asked)

    def _together(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except CannotTakePartError as error:
            self.job.give_up(str(error), error.exit_code)
        except UnavailableError as error:
            if self.job.preparing:
                # Nothing is lost: the agent restarts this process, and then the group can form.
                log.warning("the group of cluster version %d did not form: %s", self.job.version, error)
                self.job.close()
                raise SystemExit(CLUSTER_LOST_EXIT_CODE) from error
            self.job.cluster_lost(str(error))

    def _restore(self, checkpoint: CheckpointRef) -> None:
        try:
            if self.job.replica_size == 1:
                with self.job.state(checkpoint, self._saving.store) as saved:
                    self._restore_position(saved.metadata, checkpoint)
                    self.framework.load(saved.tensors)
            else:
                self._restore_shards(checkpoint)
        except CheckpointError as error:
            self.job.checkpoint_damaged(checkpoint, error)
        self.global_step = checkpoint.step
        log.info("restored step %d from %s", checkpoint.step, checkpoint.uri)

    def _restore_shards(self, checkpoint: CheckpointRef) -> None:
        assert isinstance(self.framework, PartFramework)
        with self.job.state_parts(checkpoint, self._saving.store) as loaded_parts:
            parts = list(loaded_parts)
            self._restore_position(parts[0].metadata, checkpoint)
            self.framework.load_parts(parts, checkpoint.uri)

    def _restore_position(self, metadata: Mapping[str, str], checkpoint: CheckpointRef) -> None:
        try:
            position = json.loads(metadata[DATA])
            ends = json.loads(metadata.get(ENDS, "{}"))
        except (KeyError, ValueError) as error:
            raise CheckpointError(f"{checkpoint.uri}: holds no data position of a collective job") from error
        self._sampler.load_state_dict(position)
        self._ends = EpochEnds.of_saved({"ended": self._sampler.epoch - 1, **ends}, checkpoint.uri)

    @property
    def _save_together(self) -> bool:
        """Whether all members save periodic checkpoints together, each its part. Checkpoints for a change of
        members, and the last one, are saved by the chief alone."""
        return self.size > 1 and isinstance(self.framework, PartFramework)

    def _state(self) -> "State":
        return self.framework.state(self.global_step, self._metadata)

    def _part(self) -> "State":
        assert isinstance(self.framework, PartFramework)
        return self.framework.part_state(self.global_step, self._metadata, Part(self.rank, self.size))

    @property
    def _metadata(self) -> dict[str, str]:
        by_epochs = self._epoch or self._ends.stopped or self._ends.best_epoch
        ends = {ENDS: json.dumps(asdict(self._ends))} if by_epochs else {}
        return {DATA: json.dumps(self._sampler.state_dict()), **ends}


@contextlib.contextmanager
def training(job: Job, framework: Framework, dataset: Dataset, saving: Saving) -> Iterator[World]:
    """Train with the other workers of a collective job.

    On entry, model and optimizer have the state of the checkpoint that the master names, else of the newest
    checkpoint in the store, else the initial values of rank 0. When the block ends without an error, rank 0
    saves.

    Args:
        job: from `edl_workflows.training.connect`.
        framework: an adapter.
        dataset: the training data; the same in all members.
        saving: where and how often checkpoints are saved.

    Raises:
        InvalidError: the job is not collective, this node is not a member, the adapter lacks methods, or the
            checkpoint belongs to other data.
        SystemExit: the process was asked to exit, or the checkpoint to start from is damaged
            (`Job.start_from`).
    """
    world = World(job, framework, dataset, saving)
    world.enter()
    yield world
    world.finish()


def find_place(job: Job) -> Place:
    """The place of a job's process in its present version.

    Raises:
        InvalidError: the process has no place in it.
    """
    cluster = job.cluster
    rank = cluster.rank_of(job.node.type, job.node.id)
    if not cluster.collective or rank is None:
        raise InvalidError(
            f"{job.node} is not a member of a collective version of job {job.name}: its distributionStrategy "
            "must be AllreduceStrategy, and only workers train; an evaluator follows a CheckpointStore"
        )
    reached = addresses.resolve_all(member.address for member in cluster.workers)
    reached[rank] = job.environment.listen_address(cluster.version)
    return Place(cluster.version, rank, tuple(reached))
