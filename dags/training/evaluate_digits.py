"""Evaluate an example job's newest checkpoint on the held-out digits; prints one line
of JSON.

``python evaluate_digits.py --checkpoint-dir DIR`` → ``{"accuracy": 0.97, "checkpoint":
"…", "records": 360, "step": 1350}``
"""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

from digits import load, predict
from evaluation import evaluate_newest

from edl_workflows.training import CheckpointRef, open_model


def evaluate(checkpoint: CheckpointRef) -> dict[str, float | int]:
    """Accuracy of a checkpoint."""
    variables = open_model(checkpoint).tensors
    _, held_out = load()
    accuracy = float((predict(variables, held_out.images) == held_out.labels).mean())
    return {"accuracy": round(accuracy, 4), "records": len(held_out)}


if __name__ == "__main__":
    evaluate_newest(evaluate, __doc__)
