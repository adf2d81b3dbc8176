"""Common parts of the programs that evaluate a checkpoint: their command line, and the
line of JSON that they print."""

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from edl_workflows.training import CheckpointRef, CheckpointStore


def evaluate_newest(
    evaluate: Callable[[CheckpointRef], dict[str, Any]], description: str | None
) -> None:
    """Run the command line: evaluate the newest complete checkpoint of
    ``--checkpoint-dir``.

    Args:
        evaluate: metrics of a checkpoint; its step and place are printed with them.
        description: help text of the program.

    Raises:
        SystemExit: the folder has no complete checkpoint.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    folder: Path = parser.parse_args().checkpoint_dir
    checkpoint = CheckpointStore(folder).newest()
    if checkpoint is None:
        sys.exit(f"{folder}: no complete checkpoint; the job saves one at its end")
    result = {**evaluate(checkpoint), "step": checkpoint.step, "checkpoint": checkpoint.uri}
    print(json.dumps(result, sort_keys=True))
