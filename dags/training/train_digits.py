"""Train on the digits with parameter servers: the program of the example job, in
workers and parameter servers alike.

Run by the agent in each pod:
``edl agent run -- python train_digits.py --checkpoint-dir DIR``.
"""

import argparse
import logging
import os
import time
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
from digits import PIXELS, load, network

from edl_workflows.training import connect
from edl_workflows.training.frameworks.tensorflow import Model, TrainingOptions, tf1, training

LEARNING_RATE = 2e-3


def build() -> Model:
    """The network and its optimizer."""
    net = network()
    optimizer = tf1.train.AdamOptimizer(LEARNING_RATE)
    train = optimizer.minimize(net.loss, global_step=tf1.train.get_global_step())
    return Model(
        train=train,
        loss=net.loss,
        inputs={"images": net.images, "labels": net.labels},
        example={"images": np.zeros((1, PIXELS)), "labels": np.zeros(1)},
    )


def main() -> None:
    """Train until all workers together have consumed the data."""
    options = _options()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = connect()
    data, _ = load()
    settings = TrainingOptions(
        options.checkpoint_dir, options.save_seconds, threads=options.threads
    )
    with training(job, build, settings) as run:
        for batch in job.batches(
            "train",
            size=len(data),
            shard_size=options.shard_size,
            batch_size=options.batch_size,
            num_epochs=options.epochs,
            splitter="text",
            shuffle=True,
        ):
            step, loss = run.step(
                images=data.images[batch.indices], labels=data.labels[batch.indices]
            )
            if step % options.log_steps == 0:
                print(f"epoch {batch.epoch} step {step} loss {loss:.4f}", flush=True)
            time.sleep(options.step_delay)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    parser.add_argument("--epochs", type=int, default=30, help="default %(default)s")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="records a step (default %(default)s)"
    )
    parser.add_argument(
        "--shard-size", type=int, default=128, help="records a shard (default %(default)s)"
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
