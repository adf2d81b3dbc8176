"""A ``tf.compat.v1`` program's graph in one process, with the values of a checkpoint of parameter servers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import tensorflow as tf

from edl_workflows.core.exceptions import CheckpointError, InvalidError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.manifest import Layout, describe_difference
from edl_workflows.training.checkpoints.tensor_parts import WholeTensors
from edl_workflows.training.checkpoints.tensors import Array
from edl_workflows.training.frameworks.saved_model import SavedModel
from edl_workflows.training.frameworks.tf1.tf_graph import Model, ModelGraph, find_index
from edl_workflows.training.frameworks.tf1.tf_layout import VARIABLES
from edl_workflows.training.frameworks.tf1.tf_partitions import Partitions

tf1 = tf.compat.v1


class BuiltModel(SavedModel):
    """A checkpoint with the program's graph and its values; close it, or use it as a context manager.

    Args:
        checkpoint, store: see `SavedModel`.
        build: builds the model.

    Raises:
        CheckpointError: the checkpoint belongs to another model.
    """

    def __init__(self, checkpoint: CheckpointRef, store: CheckpointStore, build: Callable[[], Model]) -> None:
        super().__init__(checkpoint, store)
        saved = self._layout()
        if saved is None:
            raise CheckpointError(
                f"{checkpoint.uri}: does not record how its variables are cut: it was not saved by a job "
                "with parameter servers, or by an early version"
            )
        # Tables that only the library had cut are whole here.
        graph = ModelGraph(build, Partitions(None, saved))
        self._restored = graph
        self.graph, self.model = graph.graph, graph.model
        cut = [name for name, variable in graph.layout.items() if variable.order and name in saved]
        if difference := describe_difference(
            {name: saved[name] for name in cut}, {name: graph.layout[name] for name in cut}
        ):
            raise CheckpointError(f"{checkpoint.uri}: can't be restored into this model: {difference}")
        self.session = tf1.Session(graph=self.graph)
        self._restore()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session."""
        self.session.close()

    @property
    def tensors(self) -> Mapping[str, Array]:
        """See `SavedModel.tensors`. If the checkpoint does not record the order of the rows, it is that in
        which the graph looks them up."""
        return WholeTensors(self._saved(), self._ordered(self._layout() or {}), self.checkpoint.uri)

    def run(self, fetches: Any, **inputs: Any) -> Any:
        """Compute tensors of the graph.

        Args:
            fetches: tensors or their names, as for a session.
            inputs: values of the model's inputs.
        """
        return self.session.run(fetches, {self.model.inputs[name]: value for name, value in inputs.items()})

    def export_saved_model(self, folder: Path | str, outputs: Mapping[str, Any]) -> None:
        """Export the graph, with the variables that the outputs depend on, as a SavedModel of TensorFlow with
        the signature ``serving_default``.

        Args:
            folder: folder to write; it must not exist.
            outputs: tensors or their names, by the output's name. The signature's inputs are those of the
                model on which they depend.

        Raises:
            InvalidError: the folder exists, or an output is no tensor of the graph.
        """
        folder = Path(folder)
        if folder.exists():
            raise InvalidError(f"{folder}: exists already")
        try:
            targets = {name: self.graph.as_graph_element(tensor) for name, tensor in outputs.items()}
        except (KeyError, ValueError, TypeError) as error:
            raise InvalidError(f"an output is no tensor of the graph: {error}") from error
        needed = _ancestors([tensor.op for tensor in targets.values()])
        inputs = {name: tensor for name, tensor in self.model.inputs.items() if tensor.op in needed}
        with self.graph.as_default():
            variables = [v for v in self.graph.get_collection(VARIABLES) if _operation(v) in needed]
            builder = tf1.saved_model.Builder(str(folder))
            builder.add_meta_graph_and_variables(
                self.session,
                [tf1.saved_model.SERVING],
                {"serving_default": tf1.saved_model.predict_signature_def(inputs, targets)},
                main_op=self._restored.initialise_local,
                saver=tf1.train.Saver(variables) if variables else None,
                clear_devices=True,
            )
            builder.save()

    def _restore(self) -> None:
        self.session.run(self._restored.initialise_local)
        index = find_index(self.folder)
        if index is not None:
            self._restored.restore_files(self.session, index, self.checkpoint.uri)
        else:
            self._restored.variables.restore(self.session, self._saved(), self.checkpoint.uri)

    def _ordered(self, saved: Layout) -> Layout:
        built = self._restored.layout
        return {
            name: variable.model_copy(update={"order": built[name].order})
            if variable.order is None and name in built
            else variable
            for name, variable in saved.items()
        }


def _ancestors(operations: list[Any]) -> set[Any]:
    """The operations on which some operations depend, and these."""
    needed: set[Any] = set()
    while operations:
        operation = operations.pop()
        if operation not in needed:
            needed.add(operation)
            operations += [tensor.op for tensor in operation.inputs]
            operations += operation.control_inputs
    return needed


def _operation(variable: Any) -> Any:
    """The operation that is the variable."""
    handle = getattr(variable, "handle", None)
    return variable.op if handle is None else handle.op
