"""The Hugging Face example's ``Trainer``, with the records of each step noted."""

import argparse
import os
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "dags" / "training")]

import train_hugging_face as example  # type: ignore[import-not-found]  # of the example
from transformers import Trainer

from edl_workflows.training.frameworks.hugging_face import TrainingOptions, connect, make_elastic
from tests.e2e.noted_records import note_records, print_steps
from tests.e2e.torchrun_hugging_face import Resting

BATCH_SIZE = 16


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-delay", type=float, default=0.0)
    sys.argv += ["--checkpoint-dir", str(Path(sys.argv[1]) / "checkpoints"), "--save-seconds", "3"]
    options = example.parse(parser)
    os.environ["HF_HUB_OFFLINE"] = "1"
    job = connect()
    print_steps(job)

    class Noting(Trainer):  # type: ignore[misc]
        """Notes the records of each batch before it is computed."""

        def compute_loss(self, model: Any, inputs: dict[str, Any], **more: Any) -> Any:
            numbers = [row[:5] for row in inputs["input_ids"]]
            found = [int(example.NUMBERS * (10 * n[0] + n[1]) + 10 * n[3] + n[4]) for n in numbers]
            state = self.state
            note_records(job, options.folder, int(state.epoch or 0) + 1, state.global_step + 1, found)
            return super().compute_loss(model, inputs, **more)

    trainer = example.make_trainer(options, Noting)
    # The losses of two trainings are compared. Adam amplifies differences of rounding from step to step.
    trainer.args.optim, trainer.args.learning_rate = "sgd", 0.1
    trainer.add_callback(Resting(options.folder, options.step_delay))
    make_elastic(trainer, job, TrainingOptions(options.folder / "checkpoints", save_seconds=3.0, threads=1))
    trainer.train()


if __name__ == "__main__":
    main()
