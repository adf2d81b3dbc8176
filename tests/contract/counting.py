"""A training program without a framework: its model is the records that it was trained with.

``python counting.py FOLDER RECORDS SECONDS``: checkpoints go to ``FOLDER/checkpoints``, and each process
writes the records that its model has at the end to ``FOLDER/trained-v<version>``.
"""

import json
import sys
import time
from pathlib import Path

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training import CheckpointStore, connect

folder, records, seconds = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
job = connect()
store = CheckpointStore(folder / "checkpoints")
job.wait_until_active()
begun = job.start_from(store)
model: list[int] = json.loads((Path(begun.uri) / "model").read_text()) if begun else []
step = begun.step if begun else 0


def save() -> CheckpointRef:
    """The model as it is now."""
    return store.publish(step, lambda place: (place / "model").write_text(json.dumps(model)))


job.save_with(save, every_seconds=0.5)
for batch in job.batches("train", size=records, shard_size=4, batch_size=2):
    model.extend(batch.indices)
    step += 1
    job.report_step(step)
    time.sleep(seconds)
(folder / f"trained-v{job.version}").write_text(json.dumps(sorted(model)))
