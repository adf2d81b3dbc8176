"""An ordinary Hugging Face script for ``torchrun``, which knows nothing of this package: a ``Trainer`` with a
tiny random model, which saves every few steps, and resumes from its newest complete checkpoint.

Each start of a process leaves a line ``pid rank local-rank world-size restart step`` in ``starts``. Without a
file ``hurry`` in the folder it rests after each step.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

SAVE_STEPS = 5
TEXTS, LENGTH, TOKENS = 1000, 8, 32


class Texts(torch.utils.data.Dataset):  # type: ignore[misc]  # no types in the environment of the checks
    """Random tokens."""

    def __len__(self) -> int:
        return TEXTS

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = torch.randint(TOKENS, (LENGTH,), generator=torch.Generator().manual_seed(index))
        return {"input_ids": tokens, "labels": tokens}


class Resting(TrainerCallback):  # type: ignore[misc]
    """Rests after each step until there is a file ``hurry``."""

    def __init__(self, folder: Path, seconds: float) -> None:
        self._hurry, self._seconds = folder / "hurry", seconds

    def on_step_end(self, *_arguments: Any, **_more: Any) -> None:
        """Rest."""
        if not self._hurry.exists():
            time.sleep(self._seconds)


def main() -> None:
    """Train as one of the ranks."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, help="steps, in fact")
    parser.add_argument("--step-delay", type=float, default=0.0)
    options = parser.parse_args()
    arguments = TrainingArguments(
        output_dir=str(options.folder / "out"),
        max_steps=options.epochs,
        per_device_train_batch_size=4,
        save_steps=SAVE_STEPS,
        save_total_limit=3,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    torch.manual_seed(0)
    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 16, "n_positions": LENGTH, "vocab_size": TOKENS}
    model = GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0))
    newest = newest_checkpoint(options.folder / "out")
    with (options.folder / "starts").open("a") as starts:
        restart, local = os.environ["TORCHELASTIC_RESTART_COUNT"], os.environ["LOCAL_RANK"]
        step = newest.name.rpartition("-")[2] if newest else 0
        size = arguments.world_size
        starts.write(f"{os.getpid()} {arguments.process_index} {local} {size} {restart} {step}\n")
    resting = Resting(options.folder, options.step_delay)
    trainer = Trainer(model=model, args=arguments, train_dataset=Texts(), callbacks=[resting])
    trainer.train(resume_from_checkpoint=str(newest) if newest else None)


def newest_checkpoint(folder: Path) -> Path | None:
    """The newest checkpoint that was written to its end: ``trainer_state.json`` is the last file."""
    complete = [file.parent for file in folder.glob("checkpoint-*/trainer_state.json")]
    return max(complete, key=lambda path: int(path.name.rpartition("-")[2]), default=None)


if __name__ == "__main__":
    main()
