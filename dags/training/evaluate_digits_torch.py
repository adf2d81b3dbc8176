"""Evaluate the newest checkpoint of `train_digits_torch` on the held-out digits; prints
one line of JSON.

``python evaluate_digits_torch.py --checkpoint-dir DIR`` → ``{"accuracy": 0.97,
"checkpoint": "…", "records": 360, "step": 1350}``
"""

import torch
from evaluation import evaluate_newest
from train_digits_torch import build, load

from edl_workflows.training import CheckpointRef, open_model
from edl_workflows.training.frameworks.torch_collective import from_saved_state


def evaluate(checkpoint: CheckpointRef) -> dict[str, float | int]:
    """Accuracy of a checkpoint."""
    model = build().model
    state = from_saved_state(open_model(checkpoint).tensors)
    model.load_state_dict(state["model"])
    *_, images, labels = load()
    with torch.no_grad():
        accuracy = float((model(images).argmax(1) == labels).float().mean())
    return {"accuracy": round(accuracy, 4), "records": len(labels)}


if __name__ == "__main__":
    evaluate_newest(evaluate, __doc__)
