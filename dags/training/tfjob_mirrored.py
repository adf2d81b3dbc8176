"""Train on the digits as a TFJob of workers only: each holds all weights, and gradients
are averaged at every step.

``tf.distribute.MultiWorkerMirroredStrategy`` reads ``TF_CONFIG``. Such workers go on
together or not at all: when one is lost, the others end with an exit code that the
restart policy ExitCode restarts, and all begin anew at the newest checkpoint.
"""

import argparse
import hashlib
import os
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import tensorflow as tf
from digits import CLASSES, HIDDEN, PIXELS, Digits, load

LEARNING_RATE = 0.3
TERMINATED = 143
"""Exit code of a worker that was told to end: 128 + SIGTERM."""
PEER_LOST = 138
"""Exit code of a worker whose peers are gone: 128 + SIGUSR1, which TFJobs leave to
programs that want to be restarted."""
LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.InternalError,
    tf.errors.CancelledError,
)
"""The errors that an all-reduce raises when a peer is gone."""


class Perceptron(tf.Module):
    """The network. Updates of a weight are averaged over all workers, which is the all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        random = tf.random.Generator.from_seed(0)
        mean = tf.VariableAggregation.MEAN
        self.weights = [
            tf.Variable(random.normal(shape) * shape[0] ** -0.5, aggregation=mean)
            for shape in ((PIXELS, HIDDEN), (HIDDEN, CLASSES))
        ]
        self.biases = [tf.Variable(tf.zeros(size), aggregation=mean) for size in (HIDDEN, CLASSES)]
        self.step = tf.Variable(
            0, dtype=tf.int64, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA
        )

    def __call__(self, images: Any) -> Any:
        """Logits of the classes."""
        hidden = tf.nn.relu(images @ self.weights[0] + self.biases[0])
        return hidden @ self.weights[1] + self.biases[1]

    def learn(self, images: Any, labels: Any) -> Any:
        """Make one step on this worker's batch. Returns its loss."""
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self(images))
            loss = tf.reduce_mean(losses)
        variables = [*self.weights, *self.biases]
        for variable, gradient in zip(variables, tape.gradient(loss, variables), strict=True):
            variable.assign_sub(LEARNING_RATE * gradient)
        self.step.assign_add(1)
        return loss

    @property
    def steps(self) -> int:
        """The number of steps that the network has learned."""
        return int(self.step.numpy())

    def digest(self) -> str:
        """A hash of the weights."""
        data = b"".join(one.numpy().tobytes() for one in (*self.weights, *self.biases))
        return hashlib.sha256(data).hexdigest()[:16]


def train(options: argparse.Namespace) -> None:
    """Train this worker's replica from the newest checkpoint until the last step."""
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    task = strategy.cluster_resolver.task_id or 0
    with strategy.scope():
        net = Perceptron()
    # All workers must take part in saving, but only the first worker's files are used.
    folder = str(options.checkpoint_dir) if task == 0 else tempfile.mkdtemp()
    checkpoint = tf.train.Checkpoint(net=net)
    checkpoints = tf.train.CheckpointManager(
        checkpoint, folder, max_to_keep=2, checkpoint_name="model.ckpt"
    )
    checkpoint.restore(tf.train.latest_checkpoint(str(options.checkpoint_dir)))
    say(f"restored step {net.steps} weights {net.digest()}")

    @tf.function
    def learn(images: Any, labels: Any) -> Any:
        return strategy.reduce("MEAN", strategy.run(net.learn, (images, labels)), axis=None)

    data, held_out = load()
    while (step := net.steps) < options.steps:
        loss = learn(*batch(data, options.batch_size, task, step))
        step += 1
        if step % options.save_steps == 0 or step == options.steps:
            checkpoints.save(checkpoint_number=step)
            say(f"step {step} loss {float(loss):.4f}")
        time.sleep(options.step_delay)
    accuracy = (np.argmax(net(held_out.images), axis=1) == held_out.labels).mean()
    say(f"trained step {net.steps} weights {net.digest()} accuracy {accuracy:.4f}")


def batch(data: Digits, size: int, worker: int, step: int) -> tuple[Any, Any]:
    """A worker's records of a step: the same ones after a restart."""
    picked = np.random.default_rng((worker, step)).choice(len(data), size)
    return tf.constant(data.images[picked]), tf.constant(data.labels[picked])


def say(text: str) -> None:
    """Write a line of output."""
    print(text, flush=True)


def main() -> None:
    """Train. Exit with `PEER_LOST` if the other workers can't be reached any more."""
    # Always exit by `_exit`: TensorFlow's shutdown waits for the other workers, and
    # fails if they have already ended.
    signal.signal(signal.SIGTERM, lambda _number, _frame: os._exit(TERMINATED))
    try:
        train(_options())
    except LOST as error:
        say(f"lost the other workers: {type(error).__name__}")
        os._exit(PEER_LOST)
    os._exit(0)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder that all workers share"
    )
    parser.add_argument("--steps", type=int, default=500, help="default %(default)s")
    parser.add_argument(
        "--batch-size", type=int, default=32, help="records a step and worker (default %(default)s)"
    )
    parser.add_argument("--save-steps", type=int, default=50, help="steps between checkpoints")
    parser.add_argument(
        "--step-delay", type=float, default=0.0, metavar="SECONDS", help="pause after each step"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
