"""The library for training programs, on the base install.

::

    job = edl_workflows.training.connect()
    for batch in job.batches("train", size=60_000, batch_size=64, num_epochs=3):
        ...
        job.report_step(step, loss)

The names below are the public API, together with these modules, which must be imported separately because
they import a framework: `edl_workflows.training.frameworks.tensorflow` (parameter servers),
`edl_workflows.training.frameworks.tensorflow_collective`,
`edl_workflows.training.frameworks.torch_collective`, `edl_workflows.training.frameworks.torch_replica`,
`edl_workflows.training.frameworks.hugging_face` and `edl_workflows.training.frameworks.lightning`.
`edl_workflows.training.collective` is the loop of collective jobs for any other framework.
"""

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.addresses import listen, resolve
from edl_workflows.training.checkpoints.checkpoints import CheckpointStore
from edl_workflows.training.checkpoints.remote_store import open_store
from edl_workflows.training.connecting import connect
from edl_workflows.training.data.shards import Batch
from edl_workflows.training.function import report_result
from edl_workflows.training.job import Job
from edl_workflows.training.logs import json_lines

__all__ = [
    "Batch",
    "CheckpointRef",
    "CheckpointStore",
    "Job",
    "connect",
    "json_lines",
    "listen",
    "open_store",
    "report_result",
    "resolve",
]
