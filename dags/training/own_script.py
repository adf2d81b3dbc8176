"""Train on the digits with NumPy: the script of the tutorial "Your own script", without
options.

``edl run own_script.py``
"""

import time

import numpy as np
from sklearn.datasets import load_digits

from edl_workflows.training import CheckpointRef, connect, open_store

EPOCHS, RATE, PAUSE = 5, 0.1, 0.02
data = load_digits()
images, labels = data.data / 16.0, data.target
weights, step = np.zeros((64, 10)), 0


def train(x: np.ndarray, y: np.ndarray) -> float:
    """One step of gradient descent on a batch; its loss."""
    likely = np.exp(x @ weights)
    likely /= likely.sum(axis=1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(likely[rows, y]).mean()
    likely[rows, y] -= 1.0
    weights[:] -= RATE * x.T @ likely / len(y)
    return float(loss)


with connect() as job:
    store = open_store(job.checkpoint_dir)

    def save() -> CheckpointRef:
        """Save the model with the data position."""
        return store.publish(
            step,
            lambda folder: np.save(folder / "weights.npy", weights),
            position=job.data_position,
        )

    job.wait_until_active()
    if (checkpoint := job.start_from(store)) is not None:
        weights, step = np.load(store.local(checkpoint) / "weights.npy"), checkpoint.step
        print(f"continue from step {step}", flush=True)
    job.save_with(save, every_seconds=10)

    for batch in job.batches(
        "digits", size=len(labels), batch_size=32, shard_size=128, num_epochs=EPOCHS
    ):
        loss = train(images[batch.indices], labels[batch.indices])
        step += 1
        job.report_step(step, loss)
        if step % 50 == 0:
            print(f"step {step} loss {loss:.3f}", flush=True)
        time.sleep(PAUSE)
