"""A checkpoint outside of its job: its tensors as numpy arrays, the program's graph with its values, and
exports to other formats."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, overload

from edl_workflows.core.exceptions import CheckpointError
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoint_parts import state_files
from edl_workflows.training.checkpoints.checkpoints import PREFIX, CheckpointStore
from edl_workflows.training.checkpoints.manifest import Layout
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.tensor_parts import WholeTensors, read_state_files
from edl_workflows.training.checkpoints.tensors import Array, State

if TYPE_CHECKING:
    from edl_workflows.training.frameworks.tf1.tf_graph import Model
    from edl_workflows.training.frameworks.tf1.tf_saved_model import BuiltModel

_INDEX = "*.index"
"""The file that is part of all checkpoints in TensorFlow's format."""


@dataclass(frozen=True)
class SavedModel:
    """A complete checkpoint.

    Attributes:
        checkpoint: its step and URI.
        store: where it is.
    """

    checkpoint: CheckpointRef
    store: CheckpointStore

    @property
    def folder(self) -> Path:
        """A local folder with the checkpoint's files. If they are in an object store, it is a copy, which
        goes with this object."""
        return self.store.local(self.checkpoint)

    @property
    def tensors(self) -> Mapping[str, Array]:
        """The whole tensors by name, however they were saved; each is read when it is accessed. The rows of
        an embedding table are in the order of the ids.

        Raises:
            CheckpointError: the checkpoint holds only files of its program's own format. Accessing a tensor
                raises it if the order of the rows is not known.
        """
        return WholeTensors(self._saved(), self._layout() or {}, self.checkpoint.uri)

    @property
    def _metadata(self) -> Mapping[str, str]:
        files = state_files(self.store.manifest(self.checkpoint))
        return read_state_files(self.folder, files).metadata if files else {}

    def _saved(self) -> Mapping[str, Array]:
        """The tensors as they are in the files."""
        if files := state_files(self.store.manifest(self.checkpoint)):
            return read_state_files(self.folder, files).tensors
        index = next(self.folder.glob(_INDEX), None)
        if index is None:
            raise CheckpointError(
                f"{self.checkpoint.uri}: holds no tensors but files of its program: "
                f"{', '.join(sorted(self.store.manifest(self.checkpoint).files))}"
            )
        from edl_workflows.training.frameworks.tf1.tf_layout import SavedFiles

        return SavedFiles(index, self.store)

    def _layout(self) -> Layout | None:
        """How the variables are cut; None if the checkpoint does not record that."""
        recorded = self.store.manifest(self.checkpoint).variables
        if recorded is not None or next(self.folder.glob(_INDEX), None) is None:
            return recorded
        from edl_workflows.training.frameworks.tf1.tf_layout import layout_of_checkpoint

        return layout_of_checkpoint(self.checkpoint, self.store)


@overload
def open_model(checkpoint: CheckpointRef | Path | str) -> SavedModel: ...
@overload
def open_model(checkpoint: CheckpointRef | Path | str, build: "Callable[[], Model]") -> "BuiltModel": ...
def open_model(
    checkpoint: CheckpointRef | Path | str, build: "Callable[[], Model] | None" = None
) -> SavedModel:
    """Open a checkpoint outside of its job, such as to evaluate it, after its checksums were verified.

    Args:
        checkpoint: path or URI of a checkpoint, or of a folder of checkpoints, whose newest complete one is
            opened.
        build: the function of the training program that builds its model for parameter servers. The graph is
            built in this process, with the checkpoint's values.

    Returns:
        The checkpoint; with `build`, as a context manager with a session.

    Raises:
        CheckpointError: there is no complete checkpoint, or it belongs to another model.
    """
    saved = _find(checkpoint)
    if build is None:
        return saved
    from edl_workflows.training.frameworks.tf1.tf_saved_model import BuiltModel

    return BuiltModel(saved.checkpoint, saved.store, build)


def _find(checkpoint: CheckpointRef | Path | str) -> SavedModel:
    place = checkpoint.uri if isinstance(checkpoint, CheckpointRef) else str(checkpoint).rstrip("/")
    folder, _, name = place.rpartition("/")
    if name.startswith(PREFIX):
        store = open_store(folder or ".")
        step = store.manifest(CheckpointRef(uri=f"{store.place}/{name}", step=0)).step
        return SavedModel(store.verify(CheckpointRef(uri=f"{store.place}/{name}", step=step)), store)
    store = open_store(place)
    newest = store.newest()
    if newest is None:
        raise CheckpointError(f"{place}: there is no complete checkpoint")
    return SavedModel(newest, store)


def export_safetensors(checkpoint: CheckpointRef | Path | str, file: Path) -> None:
    """Write the tensors of a checkpoint to one file in safetensors format, which any safetensors library
    reads.

    Args:
        checkpoint: see `open_model`.
        file: the file to write; it is replaced if it exists.

    Raises:
        CheckpointError: see `open_model`.
        InvalidError: a tensor has a type that the format lacks, such as text.
        OSError: the storage failed.
    """
    model = open_model(checkpoint)
    unfinished = file.with_name(f".{file.name}.unfinished")
    tensors.write_state(unfinished, State.of(0, dict(model.tensors), model._metadata))  # noqa: SLF001
    unfinished.replace(file)
