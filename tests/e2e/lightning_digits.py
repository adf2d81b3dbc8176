"""The Lightning example's training, with the records of each step noted."""

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[2] / "dags" / "training")]

import train_lightning as example  # type: ignore[import-not-found]  # of the example

from edl_workflows.training.frameworks.lightning import ElasticStrategy, TrainingOptions, connect
from tests.e2e.noted_records import note_records, print_steps
from tests.e2e.torchrun_lightning import Resting


def main() -> None:
    """Train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--step-delay", type=float, default=0.0)
    sys.argv += ["--checkpoint-dir", str(Path(sys.argv[1]) / "checkpoints")]
    options = example.parse(parser)
    job = connect()
    print_steps(job)

    class Noting(example.Network):  # type: ignore[misc]
        """Notes the records of each batch before it is computed."""

        def training_step(self, batch: dict[str, Any]) -> Any:
            epoch, step = self.trainer.current_epoch + 1, self.trainer.global_step + 1
            note_records(job, options.folder, epoch, step, batch["index"].tolist())
            return super().training_step(batch)

    settings = TrainingOptions(options.folder / "checkpoints", save_seconds=3.0, threads=1)
    resting = Resting(options.folder, options.step_delay)
    trainer = example.make_trainer(ElasticStrategy(job, settings), options, callbacks=[resting])
    trainer.fit(Noting(), *example.loaders(options.batch_size))


if __name__ == "__main__":
    main()
