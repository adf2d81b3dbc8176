"""The agent of a training pod (``edl agent run``), and the library for training code.

::

    job = edl_workflows.agent.connect()
    for batch in job.batches("train", size=60_000, batch_size=64, num_epochs=3):
        ...
        job.report_step(step, loss)

This package needs the base install only. These modules must be imported separately: the adapters for
TensorFlow, `edl_workflows.agent.tensorflow` (parameter servers) and
`edl_workflows.agent.tensorflow_collective` (collective jobs); the adapter for PyTorch,
`edl_workflows.agent.torch_collective`; the adapters for the training loops of Hugging Face and Lightning,
`edl_workflows.agent.hugging_face` and `edl_workflows.agent.lightning`; and the framework-independent loop of
collective jobs, `edl_workflows.agent.world`.
"""

from edl_workflows.agent.checkpoints import CheckpointStore
from edl_workflows.agent.connecting import connect
from edl_workflows.agent.function import report_result
from edl_workflows.agent.job import Job
from edl_workflows.agent.remote_store import open_store
from edl_workflows.agent.shards import Batch

__all__ = ["Batch", "CheckpointStore", "Job", "connect", "open_store", "report_result"]
