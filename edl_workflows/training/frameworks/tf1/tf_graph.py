"""The graph of a ``tf.compat.v1`` model, with the operations that initialize, save and restore it: in a
process of the cluster, or in one that only reads a checkpoint."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import tensorflow as tf

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.training.frameworks.tf1.tf_layout import VARIABLES, layout_of_graph
from edl_workflows.training.frameworks.tf1.tf_partitions import Partitions
from edl_workflows.training.frameworks.tf1.tf_state import GraphVariables

tf1 = tf.compat.v1

MODEL_FILE = "model.ckpt"
"""Prefix of TensorFlow's files in a checkpoint's folder."""
_ERROR_CHARACTERS = 500

_UNFIT = (tf.errors.DataLossError, tf.errors.InvalidArgumentError, tf.errors.NotFoundError)
"""Errors of a restore if the files don't fit the model's variables."""


@dataclass(frozen=True)
class Model:
    """The model that a training program builds.

    Attributes:
        train: operation that makes one step and increments the global step.
        loss: scalar tensor with the step's loss.
        inputs: placeholders by name.
        example: input values for a warm-up step. TensorFlow optimizes and places the graph in its first step,
            so the chief's process for the next version makes and discards one while the previous version
            still trains. Without an example, this work prolongs the pause of a switch.
        check: scalar tensor whose value for the last batch is compared before and after the servers change;
            None: the loss. If the loss is random, as with dropout, give the loss without the randomness.
    """

    train: Any
    loss: Any
    inputs: Mapping[str, Any]
    example: Mapping[str, Any] = field(default_factory=dict)
    check: Any = None


class ModelGraph:
    """The graph of a model.

    Attributes:
        model: what the program's `build` has returned.
        layout: how the variables are cut.

    Args:
        build: builds the model.
        partitions: cuts its variables.
        placement: device or device function of the operations.
        files_device: device that reads and writes the files.
    """

    def __init__(
        self,
        build: Callable[[], Model],
        partitions: Partitions,
        *,
        placement: Any = "",
        files_device: str = "",
    ) -> None:
        self.graph = tf.Graph()
        with self.graph.as_default(), tf1.device(placement):
            with partitions.building():
                self.step = tf1.train.get_or_create_global_step()
                self.model = build()
            with tf1.control_dependencies([self.model.train]):
                self._step_after = tf.identity(self.step.read_value())
            self.initialise = tf1.global_variables_initializer()
            self.initialise_local = tf1.group(tf1.local_variables_initializer(), tf1.tables_initializer())
            with tf1.device(files_device):
                self.saver = tf1.train.Saver(max_to_keep=None)
            self.layout = layout_of_graph(self.graph, partitions)

    @cached_property
    def variables(self) -> GraphVariables:
        """What a checkpoint in two stages holds. TensorFlow's files hold lookup tables, too.

        Raises:
            InvalidError: a variable can't be saved so.
        """
        return GraphVariables(self.graph.get_collection(VARIABLES))

    def restore_files(self, session: Any, index: Path, where: str) -> None:
        """Set all variables and lookup tables from TensorFlow's files.

        Args:
            session: a session of the graph.
            index: from `find_index`.
            where: path or URI of the checkpoint, for errors.

        Raises:
            CheckpointError: the files belong to another model.
        """
        try:
            with self.graph.as_default():  # for a caller with eager execution
                self.saver.restore(session, str(index.with_suffix("")))
        except _UNFIT as error:
            raise CheckpointError(f"{where}: can't be restored into this model: {one_line(error)}") from error


def find_index(folder: Path) -> Path | None:
    """The index of the files that TensorFlow has saved in a checkpoint's folder; None if there is none."""
    index = folder / f"{MODEL_FILE}.index"
    return index if index.exists() else None


def one_line(error: Exception) -> str:
    """The message of an error of TensorFlow, shortened."""
    return " ".join(str(error).split())[:_ERROR_CHARACTERS]
