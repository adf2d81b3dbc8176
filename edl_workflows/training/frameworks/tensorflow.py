"""TensorFlow adapter for parameter servers: between-graph training with ``tf.compat.v1`` in an elastic
cluster.

A training program defines how to build its model, and runs steps in a ``with training(...)`` block. In a
parameter server, the same ``with`` statement serves until the process is told to exit. As much as possible is
done before a cluster version becomes active: imports, the graph with its save and restore operations, the
server, the session, the variables' initial values. Only restoring and stepping remain for the switch.

Each process runs a TensorFlow server that knows no other task. The worker's session passes the cluster to the
servers (ClusterSpec propagation). That cluster lists the parameter servers and only this worker, so parameter
servers need not know workers that are added later. Two properties of TensorFlow matter here: it rejects a
server that was started as the same task that the propagated cluster assigns to it, hence the job name
``local``; and sessions share variables only with ``share_session_state_in_clusterspec_propagation``.
"""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tensorflow as tf

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.kubernetes import names
from edl_workflows.core.protocol.cluster import CheckpointRef, TrainingCluster
from edl_workflows.core.protocol.nodes import ServerChanges
from edl_workflows.training import addresses
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import Layout, describe_difference
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.tensors import State
from edl_workflows.training.checkpoints.two_stages import TwoStages
from edl_workflows.training.frameworks.tf1.tf_check import BATCH_FILE, BATCH_TENSOR, LossCheck
from edl_workflows.training.frameworks.tf1.tf_graph import MODEL_FILE, Model, ModelGraph, find_index, one_line
from edl_workflows.training.frameworks.tf1.tf_layout import (
    VARIABLES,
    find_layout,
    layout_of_checkpoint,
    unsaved_state,
)
from edl_workflows.training.frameworks.tf1.tf_partitions import (
    PARTS,
    Partitions,
    partition_by_size,
    warn_of_layout,
)
from edl_workflows.training.frameworks.tf1.tf_state import VariableSample
from edl_workflows.training.job import Job
from edl_workflows.training.options import TrainingOptions

__all__ = ["MODEL_FILE", "Model", "ParameterServerTraining", "TrainingOptions", "tf1", "training"]

tf1 = tf.compat.v1

CONNECT_SECONDS = 0.05
INITIALISED_SECONDS = 0.02
"""Interval at which a worker checks whether the chief has initialized the variables. It adds to the pause of
a switch."""

_LOST = (
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.FailedPreconditionError,
    tf.errors.NotFoundError,
    tf.errors.UnavailableError,
)
"""Errors of a step when a parameter server was lost, or was restarted without its variables."""

log = logging.getLogger(__name__)

Evaluated = TypeVar("Evaluated")


class ParameterServerTraining:
    """A worker's or chief's running training. Created by `training`."""

    def __init__(self, job: Job, graph: "_Graph", session: Any) -> None:
        self.job = job
        self.model = graph.model
        self.graph = graph.graph
        self.session = session
        self._save = graph.save
        self._step = graph.make_step
        self._check = graph.check

    def step(self, **values: Any) -> tuple[int, float]:
        """Make one step and report it.

        Args:
            values: values of the model's inputs.

        Returns:
            The global step after it, and the loss.

        Raises:
            SystemExit: the cluster broke, so this process must exit; the agent starts the next one.
        """
        try:
            step, loss = self._step(self.session, values)
            self._check.last = values
        except _LOST as error:
            self.job.cluster_lost(one_line(error))
        self.job.report_step(step, loss)
        return step, loss

    def save(self, store: CheckpointStore, position: Mapping[str, Any] | None = None) -> CheckpointRef:
        """Save a checkpoint in a store of one's own, such as the best one so far, which the job does not
        restore.

        Args:
            store: the store.
            position: for its manifest.

        Raises:
            CheckpointError: the storage failed.
        """
        return self._save(self.session, store, position)


@contextlib.contextmanager
def training(
    job: Job, build: Callable[[], Model], options: TrainingOptions
) -> Iterator[ParameterServerTraining]:
    """Train with the job's parameter servers. In a parameter server, this call serves and never enters the
    block.

    On entry, the variables have the values of the checkpoint that the master names, else of the newest
    checkpoint in the store, else their initial values. When the block ends without an error, the chief saves.

    Args:
        job: from `edl_workflows.training.connect`.
        build: builds the model in the default graph with ``tf.compat.v1``. Variables are partitioned and
            placed on the parameter servers automatically. Changing the number of servers does not change the
            partitions.
        options: how to train.

    Raises:
        InvalidError: the job has no parameter servers, or this node is an evaluator.
        SystemExit: the process was asked to exit, or the checkpoint to start from is damaged
            (`Job.start_from`).
    """
    if job.node.type == names.EVALUATOR_TYPE:
        raise InvalidError(
            f"{job.node} does not train: use a program that follows a CheckpointStore for evaluators"
        )
    tf1.disable_eager_execution()
    server = _boot(job, options)
    if job.node.type == names.PS_TYPE:
        job.serve()
    cluster = job.cluster
    if not cluster.ps:
        raise InvalidError(f"job {job.name} has no parameter servers: add replicas of type ps")
    store = open_store(options.checkpoint_dir, options.keep)
    graph = _Graph(job, cluster, build, options.partitions, _layout_to_keep(store))
    _report_server_changes(job, graph, options)
    session = _connect(job, server, cluster, graph, options)
    try:
        _initialise(job, graph, session, store)
    except _LOST as error:
        job.cluster_lost(one_line(error))
    _set_saving(job, graph, session, store, options)
    job.model_check.evaluate_with(lambda: graph.check.before(session), lambda: graph.fingerprints(session))
    yield ParameterServerTraining(job, graph, session)
    job.save_last(always=True)
    job.close()


def _set_saving(
    job: Job, graph: "_Graph", session: Any, store: CheckpointStore, options: TrainingOptions
) -> None:
    if not options.async_save:
        job.save_with(lambda: graph.save(session, store, job.data_position), options.save_seconds)
        return
    job.save_in_two_stages(
        TwoStages(
            lambda: graph.state(session),
            store,
            every_seconds=options.save_seconds,
            memory_seconds=options.memory_seconds,
            replicate=options.replicate,
        )
    )


class _Graph(ModelGraph):
    """The graph of a process of the cluster, with the operations for saving and the check of the model."""

    def __init__(
        self,
        job: Job,
        cluster: TrainingCluster,
        build: Callable[[], Model],
        partitions: int,
        layout: Layout | None,
    ) -> None:
        self._partitions_set = bool(partitions)
        self.started_from = layout
        me = f"/job:{job.node.type}/task:{job.rank}"
        count = len(cluster.ps)
        cut = tf1.fixed_size_partitioner(partitions) if partitions else partition_by_size(max(PARTS, count))
        # The files are read and written by the chief, not by the servers, so that it can publish them
        # atomically.
        placement = tf1.train.replica_device_setter(ps_tasks=count, worker_device=me)
        super().__init__(build, Partitions(cut, layout), placement=placement, files_device=f"{me}/cpu:0")
        with self.graph.as_default(), tf1.device(placement):
            # This variable marks the others as ready, so it is neither saved nor initialized with them.
            marker = tf1.get_variable(
                "edl_initialised", shape=(), dtype=tf.int32, trainable=False, collections=["edl"]
            )
            self.is_initialised = tf1.is_variable_initialized(marker)
            self.mark_initialised = marker.assign(1)
            self._sample: VariableSample | None = None
            with contextlib.suppress(InvalidError):  # a variable without a known shape: nothing is compared
                self._sample = VariableSample(self.graph.get_collection(VARIABLES))
        self.graph.finalize()
        self.check = LossCheck(
            self.model.loss if self.model.check is None else self.model.check, self.model.inputs
        )
        self.batch = b""
        """The batch that was stored with the checkpoint that was restored last."""

    def make_step(self, session: Any, values: Mapping[str, Any]) -> tuple[int, float]:
        """Make one step; returns the global step after it, and the loss."""
        feed = {self.model.inputs[name]: value for name, value in values.items()}
        fetches = [self.model.train, self.model.loss, self._step_after]
        _, loss, step = session.run(fetches, feed_dict=feed)
        return int(step), float(loss)

    def fingerprints(self, session: Any) -> dict[str, str]:
        """Digests of the variables' sampled rows, those of optimizer slots included; none if they can't be
        sampled."""
        return {} if self._sample is None else self._sample.fingerprints(session)

    def state(self, session: Any) -> State:
        """The current values of all variables."""
        return self.variables.state(session, int(session.run(self.step)), self.layout, self.check.pop_batch())

    def save(
        self, session: Any, store: CheckpointStore, position: Mapping[str, Any] | None = None
    ) -> CheckpointRef:
        """Save all variables as a new checkpoint, in TensorFlow's format."""
        step = int(session.run(self.step))

        batch = self.check.pop_batch()

        def write(folder: Path) -> None:
            if batch:
                (folder / BATCH_FILE).write_bytes(batch)
            self.saver.save(session, str(folder / MODEL_FILE), write_meta_graph=False, write_state=False)

        return store.publish(step, write, position=position, variables=self.layout)

    def restore(self, session: Any, checkpoint: CheckpointRef, job: Job, store: CheckpointStore) -> None:
        """Set all variables from a checkpoint in either format.

        Raises:
            CheckpointError: it belongs to another model, or its variables are cut differently.
        """
        in_memory = job.holds(checkpoint)
        self._require_same_layout(checkpoint, store, may_be_gone=in_memory)
        index = None if in_memory else find_index(store.local(checkpoint))
        if index is not None:
            self.restore_files(session, index, checkpoint.uri)
            kept = index.with_name(BATCH_FILE)
            self.batch = kept.read_bytes() if kept.exists() else b""
        else:
            with job.state(checkpoint, store) as state:
                self.variables.restore(session, state.tensors, checkpoint.uri)
                self.batch = state.tensors[BATCH_TENSOR].tobytes() if BATCH_TENSOR in state.tensors else b""
        log.info("restored step %d from %s", checkpoint.step, checkpoint.uri)

    def _require_same_layout(
        self, checkpoint: CheckpointRef, store: CheckpointStore, *, may_be_gone: bool
    ) -> None:
        try:
            saved = layout_of_checkpoint(checkpoint, store)
        except CheckpointError:
            if may_be_gone:
                return
            raise
        if saved is None and not self._partitions_set:
            raise CheckpointError(
                f"{checkpoint.uri}: does not record how its variables are cut. The version that saved it "
                "cut each into as many parts as there were parameter servers: set "
                "TrainingOptions(partitions=…) to their number"
            )
        if saved is not None and (difference := describe_difference(saved, self.layout)):
            raise CheckpointError(f"{checkpoint.uri}: can't be restored into this model: {difference}")


def _report_server_changes(job: Job, graph: _Graph, options: TrainingOptions) -> None:
    """Report which changes of parameter servers the model survives. If this process prepares a version whose
    change the model would not survive, reject that version before any training stops for it."""
    lost = unsaved_state(graph.graph, in_two_stages=options.async_save)
    changes = ServerChanges.NEVER if lost else ServerChanges.ANY
    job.allow_server_changes(changes, lost, warn_of_layout(graph.graph, graph.layout))
    if (
        job.preparing
        and graph.started_from
        and (difference := describe_difference(graph.started_from, graph.layout))
    ):
        job.refuse_version(f"its variables depend on the number of parameter servers: {difference}")


def _layout_to_keep(store: CheckpointStore) -> Layout | None:
    try:
        return find_layout(store)
    except CheckpointError as error:  # the chief reports a damaged checkpoint when it restores it
        log.warning("%s", error)
        return None


def _session_config(options: TrainingOptions) -> Any:
    return tf1.ConfigProto(
        intra_op_parallelism_threads=options.threads, inter_op_parallelism_threads=options.threads
    )


def _boot(job: Job, options: TrainingOptions) -> Any:
    """Start this process's TensorFlow server on the port of its cluster version.

    The server is given the address that other nodes dial: TensorFlow listens on all interfaces anyway, but
    the session finds its own task in the propagated cluster only by this address.
    """
    address = job.environment.listen_address(job.version)
    return tf1.train.Server(
        {"local": [address]}, job_name="local", task_index=0, config=_session_config(options)
    )


def _connect(job: Job, server: Any, cluster: TrainingCluster, graph: _Graph, options: TrainingOptions) -> Any:
    """Create a session over the cluster; waits for its parameter servers."""
    servers = {member.rank: _await_server(job, member.address) for member in cluster.ps}
    spec = tf1.train.ClusterSpec(
        {
            names.PS_TYPE: servers,
            job.node.type: {job.rank: job.environment.listen_address(cluster.version)},
        }
    )
    config = _session_config(options)
    config.cluster_def.CopyFrom(spec.as_cluster_def())
    config.device_filters.extend([f"/job:{names.PS_TYPE}", f"/job:{job.node.type}/task:{job.rank}"])
    config.experimental.share_session_state_in_clusterspec_propagation = True
    return tf1.Session(server.target, graph=graph.graph, config=config)


def _await_server(job: Job, address: str) -> str:
    """Wait until a parameter server listens, and return its address, which may not be known before."""
    while not job.terminated:
        reachable = addresses.resolve(address)
        host, _, port = reachable.rpartition(":")
        with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return reachable
        time.sleep(CONNECT_SECONDS)
    raise SystemExit(143)


def _initialise(job: Job, graph: _Graph, session: Any, store: CheckpointStore) -> None:
    """Prepare, wait until the version is active, and set its variables."""
    session.run(graph.initialise_local)
    rehearsed = not job.active and job.is_chief and not session.run(graph.is_initialised)
    if rehearsed:
        _rehearse(job, graph, session, store)
    job.wait_until_active()
    while not session.run(graph.is_initialised):
        if job.is_chief:
            _set_values(job, graph, session, store, keep=rehearsed)
            session.run(graph.mark_initialised)
        else:
            job.between_steps()
            time.sleep(INITIALISED_SECONDS)


def _set_values(job: Job, graph: _Graph, session: Any, store: CheckpointStore, *, keep: bool) -> None:
    """Set the variables to the checkpoint's values, or to their initial values if there is no checkpoint.
    `keep`: they have been initialized already."""
    checkpoint = job.start_from(store)
    if not keep or checkpoint is None:
        session.run(graph.initialise)
    if checkpoint is not None:
        try:
            graph.restore(session, checkpoint, job, store)
        except CheckpointError as error:
            job.checkpoint_damaged(checkpoint, error)
        if refused := job.model_check.confirm(
            lambda: _of_restored(job, lambda: graph.check.of(session, graph.batch)),
            lambda: _of_restored(job, lambda: graph.fingerprints(session)),
        ):
            job.cluster_lost(refused)


def _of_restored(job: Job, evaluate: Callable[[], Evaluated]) -> Evaluated:
    """What `evaluate` returns of a model that was just restored."""
    try:
        return evaluate()
    except _LOST as error:
        job.cluster_lost(one_line(error))


def _rehearse(job: Job, graph: _Graph, session: Any, store: CheckpointStore) -> None:
    """While the previous version still trains, run once everything that the switch will need, since the first
    run is the slowest.

    Only the chief may do this, and only before its version is active: it sets all variables again afterwards.
    """
    session.run(graph.initialise)
    with contextlib.suppress(CheckpointError):  # `Job.start_from` reports a damaged one later
        newest = store.newest()
        if newest is not None:
            graph.restore(session, newest, job, store)
    # There may be no batch, or the batch of another model.
    with contextlib.suppress(InvalidError, ValueError, tf.errors.InvalidArgumentError):
        graph.check.of(session, graph.batch)
    if graph.model.example:
        graph.make_step(session, graph.model.example)
