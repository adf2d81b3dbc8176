"""Evaluate the newest checkpoint of `train_recommender` on the held-out clicks, in one
process without parameter servers; prints one line of JSON.

``python evaluate_recommender.py --checkpoint-dir DIR`` → ``{"auc": 0.82, "checkpoint":
"…", "records": 20000, "step": 3520}``
"""

from evaluation import evaluate_newest
from train_recommender import PREDICTIONS, auc, build, load

from edl_workflows.training import CheckpointRef, open_model


def evaluate(checkpoint: CheckpointRef) -> dict[str, float | int]:
    """How well a checkpoint ranks the held-out clicks."""
    _, held_out = load()
    with open_model(checkpoint, build) as model:
        predictions = model.run(PREDICTIONS, users=held_out.users, items=held_out.items)
    return {"auc": round(auc(predictions, held_out.clicked), 4), "records": len(held_out)}


if __name__ == "__main__":
    evaluate_newest(evaluate, __doc__)
