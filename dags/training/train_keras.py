"""Train a Keras model on the digits with workers that sum their gradients: a program with
``compile`` and ``fit`` as an elastic job, ``distributionStrategy: AllreduceStrategy``.

Run by the agent in each worker: ``edl agent run -- python train_keras.py --output DIR``.
"""

import argparse
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import keras
from digits import CLASSES, HIDDEN, PIXELS, load

from edl_workflows.training import connect
from edl_workflows.training.frameworks.keras import (
    KerasModel,
    TrainingOptions,
    export_keras,
    fit,
)


def build() -> KerasModel:
    """A network, and what `compile` would be given."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((PIXELS,))
    hidden = keras.layers.Dense(HIDDEN, activation="relu", name="hidden")(inputs)
    outputs = keras.layers.Dense(CLASSES, activation="softmax", name="classes")(hidden)
    return KerasModel(
        keras.Model(inputs, outputs),
        loss="sparse_categorical_crossentropy",
        optimizer=keras.optimizers.Adam(2e-3),
        metrics=["accuracy"],
    )


def main() -> None:
    """Train, and export the model of the best epoch."""
    options = _options()
    job = connect()
    data, held_out = load()
    checkpoints = options.output / "checkpoints"
    fit(
        job,
        build,
        data.images,
        data.labels,
        TrainingOptions(checkpoints, save_seconds=10, threads=1),
        batch_size=options.batch_size,
        epochs=options.epochs,
        validation_data=(held_out.images, held_out.labels),
        callbacks=[
            keras.callbacks.EarlyStopping("val_loss", patience=options.patience),
            keras.callbacks.CSVLogger(str(options.output / "metrics.csv"), append=True),
        ],
    )
    if job.rank == 0:
        export_keras(checkpoints / "best", build, options.output / "digits.keras")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, required=True, help="folder of the results")
    parser.add_argument("--epochs", type=int, default=30, help="at most (default %(default)s)")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="records of a mini-batch (%(default)s)"
    )
    parser.add_argument(
        "--patience", type=int, default=3, help="epochs without progress (default %(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
