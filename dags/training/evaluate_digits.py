"""Evaluate an example job's newest checkpoint on the held-out digits; prints one line of JSON.

``python evaluate_digits.py --checkpoint-dir DIR`` → ``{"accuracy": 0.97, "checkpoint": "…", "records": 360,
"step": 1350}``
"""

import os
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import tensorflow as tf
from digits import load, predict  # type: ignore[import-not-found]  # beside this script
from evaluation import evaluate_newest  # type: ignore[import-not-found]  # beside this script

from edl_workflows.core.protocol.cluster import CheckpointRef
from edl_workflows.training.checkpoints import tensors
from edl_workflows.training.checkpoints.checkpoint_parts import STATE_FILE
from edl_workflows.training.frameworks.tensorflow import MODEL_FILE


def evaluate(checkpoint: CheckpointRef) -> dict[str, float | int]:
    """Accuracy of a checkpoint."""
    variables = saved_in_two_stages(checkpoint) or saved_by_tensorflow(checkpoint)
    _, held_out = load()
    accuracy = float((predict(variables, held_out.images) == held_out.labels).mean())
    return {"accuracy": round(accuracy, 4), "records": len(held_out)}


def saved_in_two_stages(checkpoint: CheckpointRef) -> dict[str, Any]:
    """The variables in a checkpoint of a collective job or of a job with ``async_save``; none if the
    checkpoint has another format."""
    file = Path(checkpoint.uri) / STATE_FILE
    return dict(tensors.load(file).tensors) if file.exists() else {}


def saved_by_tensorflow(checkpoint: CheckpointRef) -> dict[str, Any]:
    """The variables in TensorFlow's own format."""
    reader = tf.train.load_checkpoint(str(Path(checkpoint.uri) / MODEL_FILE))
    return {
        name: reader.get_tensor(name)
        for name in reader.get_variable_to_shape_map()
        if name.startswith("digits/") and name.endswith(("weights", "biases"))
    }


if __name__ == "__main__":
    evaluate_newest(evaluate, __doc__)
