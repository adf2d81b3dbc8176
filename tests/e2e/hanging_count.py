"""A training program without a framework whose model says how often it has seen each record. Arguments:
folder, and the step at which the process of version 1 waits for ever."""

import json
import sys
import threading
import time
from pathlib import Path

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training import CheckpointStore, connect

RECORDS = 4000

folder, hangs_at = Path(sys.argv[1]), int(sys.argv[2])
store = CheckpointStore(folder / "checkpoints")
model, step = bytearray(RECORDS), 0


def waits_for_a_lost_peer() -> None:
    """Never ends."""
    threading.Event().wait()


def save() -> CheckpointRef:
    """The counts, as a checkpoint."""
    return store.publish(step, lambda path: (path / "counts").write_bytes(model))


with connect() as job:
    job.save_with(save, every_seconds=0.5)
    job.wait_until_active()
    if (start := job.start_from(store)) is not None:
        model, step = bytearray((Path(start.uri) / "counts").read_bytes()), start.step
    for batch in job.batches("train", size=RECORDS, shard_size=40, batch_size=20):
        if job.version == 1 and step >= hangs_at:
            waits_for_a_lost_peer()
        for record in batch.indices:
            model[record] += 1
        step += 1
        job.report_step(step)
        time.sleep(0.02)
    job.checkpoint(patience=10)
(folder / "result.json").write_text(json.dumps({"counts": list(model), "version": job.version}))
