"""Train a recommender with embedding tables on parameter servers, in workers and
parameter servers alike.

Run by the agent in each pod: ``edl agent run -- python train_recommender.py
--checkpoint-dir DIR``. The tables are looked up with ``embedding_lookup`` as TensorFlow
has it by default, and the number of parameter servers may change at any time: neither
program nor checkpoint depends on it.
"""

import argparse
import logging
import os
import time
from dataclasses import dataclass
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from edl_workflows.training import connect
from edl_workflows.training.frameworks.tensorflow import Model, TrainingOptions, tf1, training

USERS, ITEMS, WIDTH = 20_000, 5_000, 16
TASTES = 4
"""How many numbers describe the taste of a made-up user, and how many describe a made-up item."""
LEARNING_RATE = 0.02
PREDICTIONS = "recommender/predictions:0"


@dataclass(frozen=True)
class Clicks:
    """Which user was shown which item, and whether the item was clicked."""

    users: NDArray[np.int64]
    items: NDArray[np.int64]
    clicked: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.clicked)

    def at(self, indices: Any) -> dict[str, Any]:
        """The model's inputs for some records."""
        return {
            "users": self.users[indices],
            "items": self.items[indices],
            "clicked": self.clicked[indices],
        }


def load(records: int = 200_000, held_out: int = 20_000) -> tuple[Clicks, Clicks]:
    """Made-up clicks, the same each time: the training part and the held-out part."""
    random = np.random.default_rng(0)
    likes, like = random.normal(size=(USERS, TASTES)), random.normal(size=(ITEMS, TASTES))
    users, items = random.integers(USERS, size=records), random.integers(ITEMS, size=records)
    score = (likes[users] * like[items]).sum(axis=1)
    clicked = (random.random(records) < 1 / (1 + np.exp(-2 * score))).astype(np.float32)
    every = Clicks(users, items, clicked)
    parts = [slice(0, records - held_out), slice(records - held_out, records)]
    train, test = (Clicks(**every.at(part)) for part in parts)
    return train, test


def build() -> Model:
    """The tables, the network over them, and its optimizer."""
    users = tf1.placeholder(tf.int64, [None], name="users")
    items = tf1.placeholder(tf.int64, [None], name="items")
    clicked = tf1.placeholder(tf.float32, [None], name="clicked")
    with tf1.variable_scope("recommender"):
        user = look_up("users", USERS, users)
        item = look_up("items", ITEMS, items)
        logits = tf1.reduce_sum(user * item, axis=1)
        tf1.sigmoid(logits, name="predictions")
    loss = tf1.losses.sigmoid_cross_entropy(clicked, logits)
    optimizer = tf1.train.AdagradOptimizer(LEARNING_RATE * 10)
    train = optimizer.minimize(loss, global_step=tf1.train.get_global_step())
    one = {"users": np.zeros(1), "items": np.zeros(1), "clicked": np.zeros(1)}
    return Model(train, loss, {"users": users, "items": items, "clicked": clicked}, example=one)


def look_up(name: str, rows: int, ids: Any) -> Any:
    """The rows of an embedding table that belong to some ids."""
    start = tf1.random_normal_initializer(stddev=0.3, seed=1)
    return tf1.nn.embedding_lookup(tf1.get_variable(name, [rows, WIDTH], initializer=start), ids)


def auc(predictions: NDArray[np.float32], clicked: NDArray[np.float32]) -> float:
    """Area under the ROC curve: how often a clicked item is ranked above an item that
    was not clicked."""
    ranks = np.argsort(np.argsort(predictions)) + 1
    ones = int(clicked.sum())
    zeros = len(clicked) - ones
    return float((ranks[clicked == 1].sum() - ones * (ones + 1) / 2) / (ones * zeros))


def main() -> None:
    """Train until the data is consumed by all workers together. Then the chief prints
    how good the model is."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = connect()
    data, held_out = load()
    settings = TrainingOptions(options.checkpoint_dir, save_seconds=options.save_seconds, threads=1)
    with training(job, build, settings) as run:
        for batch in job.batches(
            "clicks",
            size=len(data),
            shard_size=8 * options.batch_size,
            batch_size=options.batch_size,
            num_epochs=options.epochs,
            splitter="text",
            shuffle=True,
        ):
            step, loss = run.step(**data.at(batch.indices))
            if step % options.log_steps == 0:
                print(f"epoch {batch.epoch} step {step} loss {loss:.4f}", flush=True)
            time.sleep(options.step_delay)
        if job.is_chief:
            ids = {
                run.model.inputs[name]: value for name, value in held_out.at(slice(None)).items()
            }
            quality = auc(run.session.run(PREDICTIONS, ids), held_out.clicked)
            print(f"held-out AUC {quality:.3f}", flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint-dir", required=True, help="folder or URI of the checkpoints")
    parser.add_argument("--epochs", type=int, default=5, help="default %(default)s")
    parser.add_argument(
        "--batch-size", type=int, default=256, help="records a step (default %(default)s)"
    )
    parser.add_argument(
        "--step-delay",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="pause after each step, to watch it train",
    )
    parser.add_argument(
        "--save-seconds",
        type=float,
        default=60.0,
        metavar="SECONDS",
        help="between checkpoints (default %(default)s)",
    )
    parser.add_argument(
        "--log-steps", type=int, default=50, help="steps between output lines (default %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
