"""Evaluate the newest checkpoint of `train_digits_torch` on the held-out digits; prints one line of JSON.

``python evaluate_digits_torch.py --checkpoint-dir DIR`` → ``{"accuracy": 0.97, "checkpoint": "…", "records":
360, "step": 1350}``
"""

import argparse
import json
import sys
from pathlib import Path

import torch
from train_digits_torch import build, load  # type: ignore[import-not-found]  # beside this script

from edl_workflows.agent import CheckpointStore, tensors
from edl_workflows.agent.checkpoints import STATE_FILE
from edl_workflows.agent.torch_state import from_saved_state


def evaluate(folder: Path) -> dict[str, float | int | str]:
    """Accuracy of the newest complete checkpoint in a folder.

    Raises:
        SystemExit: there is none.
    """
    checkpoint = CheckpointStore(folder).newest()
    if checkpoint is None:
        sys.exit(f"{folder}: no complete checkpoint; the job saves one at its end")
    model = build().model
    model.load_state_dict(from_saved_state(tensors.load(Path(checkpoint.uri) / STATE_FILE).tensors)["model"])
    *_, images, labels = load()
    with torch.no_grad():
        accuracy = float((model(images).argmax(1) == labels).float().mean())
    return {
        "accuracy": round(accuracy, 4),
        "records": len(labels),
        "step": checkpoint.step,
        "checkpoint": checkpoint.uri,
    }


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints")
    print(json.dumps(evaluate(parser.parse_args().checkpoint_dir), sort_keys=True))  # noqa: T201 - its output


if __name__ == "__main__":
    main()
