"""The agent of a training pod (``edl agent run``), and the library for training code.

::

    job = edl_workflows.agent.connect()
    for batch in job.batches("train", size=60_000, batch_size=64, num_epochs=3):
        ...
        job.report_step(step, loss)

Imports the base install only. Apart stand TensorFlow's adapters, `edl_workflows.agent.tensorflow` (parameter servers) and
`edl_workflows.agent.mwms` (collective jobs), and the loop of collective jobs of any framework, `edl_workflows.agent.world`.
"""

from edl_workflows.agent.checkpoints import CheckpointStore
from edl_workflows.agent.job import Job, connect
from edl_workflows.agent.remote_store import open_store
from edl_workflows.agent.shards import Batch

__all__ = ["Batch", "CheckpointStore", "Job", "connect", "open_store"]
