"""The library for training programs, on the base install.

::

    job = edl_workflows.training.connect()
    for batch in job.batches("train", size=60_000, batch_size=64, num_epochs=3):
        ...
        job.report_step(step, loss)

The names below are the public API, together with the adapters in `edl_workflows.training.frameworks`, each of
which must be imported separately because it imports its framework. `edl_workflows.training.collective` is the
loop of collective jobs for any other framework. Names that need numpy, which the base install lacks, are
imported on first use, and so is `KerasProgress`, which needs Keras.
"""

from typing import TYPE_CHECKING, Any

from edl_workflows import import_on_use
from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.core.protocol.nodes import ServerChanges
from edl_workflows.training.addresses import listen, resolve
from edl_workflows.training.checkpoints.checkpoint_parts import Part
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.checkpoints.saving import SaveWish
from edl_workflows.training.connecting import connect
from edl_workflows.training.data.shards import Batch
from edl_workflows.training.function import report_result
from edl_workflows.training.job import Job
from edl_workflows.training.logs import json_lines
from edl_workflows.training.telemetry import progress

if TYPE_CHECKING:
    from edl_workflows.training.checkpoints.tensor_parts import load_checkpoint
    from edl_workflows.training.checkpoints.tensors import State
    from edl_workflows.training.checkpoints.two_stages import TwoStages
    from edl_workflows.training.frameworks.keras_model import KerasProgress
    from edl_workflows.training.frameworks.saved_model import export_safetensors, open_model

__all__ = [
    "Batch",
    "CheckpointRef",
    "CheckpointStore",
    "Job",
    "KerasProgress",
    "Part",
    "SaveWish",
    "ServerChanges",
    "State",
    "TwoStages",
    "connect",
    "export_safetensors",
    "json_lines",
    "listen",
    "load_checkpoint",
    "open_model",
    "open_store",
    "progress",
    "report_result",
    "resolve",
]

_MODULES = {
    "KerasProgress": "edl_workflows.training.frameworks.keras_model",
    "State": "edl_workflows.training.checkpoints.tensors",
    "TwoStages": "edl_workflows.training.checkpoints.two_stages",
    "export_safetensors": "edl_workflows.training.frameworks.saved_model",
    "load_checkpoint": "edl_workflows.training.checkpoints.tensor_parts",
    "open_model": "edl_workflows.training.frameworks.saved_model",
}


def __getattr__(name: str) -> Any:
    return import_on_use(__name__, _MODULES, name)
