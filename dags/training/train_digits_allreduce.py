"""Train on the digits with workers that sum their gradients: the program of a job with
``distributionStrategy: AllreduceStrategy``.

Run by the agent in each worker: ``edl agent run -- python train_digits_allreduce.py
--checkpoint-dir DIR``.
"""

import argparse
import logging
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from digits import CLASSES, HIDDEN, PIXELS, load

from edl_workflows.training import connect
from edl_workflows.training.frameworks.tensorflow_collective import (
    Dataset,
    MirroredModel,
    TrainingOptions,
    training,
)

LEARNING_RATE = 2e-3


def build() -> MirroredModel:
    """The network of `digits`, and its optimizer."""
    initial = tf.keras.initializers.GlorotUniform(seed=0)
    weights = {
        "digits/hidden/weights": tf.Variable(initial([PIXELS, HIDDEN])),
        "digits/hidden/biases": tf.Variable(tf.zeros([HIDDEN])),
        "digits/logits/weights": tf.Variable(initial([HIDDEN, CLASSES])),
        "digits/logits/biases": tf.Variable(tf.zeros([CLASSES])),
    }

    def losses(images: Any, labels: Any) -> Any:
        hidden = tf.nn.relu(
            images @ weights["digits/hidden/weights"] + weights["digits/hidden/biases"]
        )
        logits = hidden @ weights["digits/logits/weights"] + weights["digits/logits/biases"]
        return tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)

    return MirroredModel(
        weights=weights,
        losses=losses,
        optimizer=tf.keras.optimizers.Adam(LEARNING_RATE),
        example={"images": np.zeros((1, PIXELS), np.float32), "labels": np.zeros(1, np.int64)},
    )


def main() -> None:
    """Train until all epochs are over."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = connect()
    data, _ = load()
    dataset = Dataset(len(data), options.batch_size, options.epochs)
    settings = TrainingOptions(
        options.checkpoint_dir, options.save_seconds, threads=options.threads
    )
    with training(job, build, dataset, settings) as run:
        for mini_batches in run:
            epoch = run.epoch
            step, loss = run.step(
                [{"images": data.images[i], "labels": data.labels[i]} for i in mini_batches]
            )
            if step % options.log_steps == 0 and run.rank == 0:
                print(f"epoch {epoch} step {step} loss {loss:.4f}", flush=True)
            time.sleep(options.step_delay)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    parser.add_argument("--epochs", type=int, default=30, help="default %(default)s")
    parser.add_argument(
        "--batch-size",
        type=int,
        default=16,
        help="records of a mini-batch; a step has as many as there are workers at most "
        "(default %(default)s)",
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
        default=10.0,
        metavar="SECONDS",
        help="between checkpoints (default %(default)s)",
    )
    parser.add_argument(
        "--threads", type=int, default=1, help="of TensorFlow (default %(default)s)"
    )
    parser.add_argument(
        "--log-steps", type=int, default=50, help="steps between output lines (default %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
