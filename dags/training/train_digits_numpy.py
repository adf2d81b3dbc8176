"""Train on the digits with NumPy alone: a whole program of a job that is not
collective, in one file.

The model lives in the chief, the job's only worker. Run by the agent in its pod: ``edl
agent run -- python train_digits_numpy.py --checkpoint-dir DIR``.
"""

import argparse
import logging
import time

import numpy as np
from sklearn.datasets import load_digits

from edl_workflows.training import CheckpointRef, connect, json_lines, open_store

PIXELS, CLASSES = 64, 10
WEIGHTS = "weights.npy"
TRAINED = 1437
"""Number of digits to train with; the other 360 are held out."""


class Model:
    """Softmax regression, with the number of steps it was trained for."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self.weights = np.zeros((PIXELS, CLASSES))
        self.step = 0

    def train(self, images: np.ndarray, labels: np.ndarray) -> float:
        """Make one step of gradient descent. Returns its loss."""
        scores = np.exp(images @ self.weights)
        likely = scores / scores.sum(axis=1, keepdims=True)
        rows = np.arange(len(labels))
        loss = -np.log(likely[rows, labels]).mean()
        likely[rows, labels] -= 1.0
        self.weights -= self.rate * images.T @ likely / len(labels)
        self.step += 1
        return float(loss)

    def accuracy(self, images: np.ndarray, labels: np.ndarray) -> float:
        """The share of images that it recognizes."""
        return float(((images @ self.weights).argmax(axis=1) == labels).mean())


def main() -> None:
    """Train until the data is consumed."""
    options = _options()
    with connect() as job:
        logging.basicConfig(level=logging.INFO, handlers=[json_lines(job.environment, job.version)])
        data = load_digits()
        images, labels = data.data / 16.0, data.target
        model = Model(options.learning_rate)
        store = open_store(options.checkpoint_dir)

        def save() -> CheckpointRef:
            return store.publish(
                model.step,
                lambda folder: np.save(folder / WEIGHTS, model.weights),
                position=job.data_position,
            )

        job.wait_until_active()
        checkpoint = job.start_from(store)
        if checkpoint is not None:
            model.weights = np.load(store.local(checkpoint) / WEIGHTS)
            model.step = checkpoint.step
        job.save_with(save, every_seconds=options.save_seconds)
        for batch in job.batches(
            "train", size=TRAINED, shard_size=128, batch_size=32, num_epochs=3
        ):
            loss = model.train(images[batch.indices], labels[batch.indices])
            job.report_step(model.step, loss)
            time.sleep(options.step_delay)
        job.report(model.step, {"accuracy": model.accuracy(images[TRAINED:], labels[TRAINED:])})


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint-dir", required=True, help="folder of the checkpoints, or its URI"
    )
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--save-seconds", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--step-delay", type=float, default=0.0, metavar="SECONDS")
    return parser.parse_args()


if __name__ == "__main__":
    main()
