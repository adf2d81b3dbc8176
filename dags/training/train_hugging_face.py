"""Train a small language model to add, with Hugging Face's ``Trainer`` and workers that
come and go: the program of a job with ``distributionStrategy: AllreduceStrategy``.

Run by the agent in each worker: ``edl agent run -- python train_hugging_face.py
--checkpoint-dir DIR``. Needs the extra ``huggingface``. Nothing is downloaded: model
and data are made here.
"""

import argparse
import logging
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from edl_workflows.training.frameworks.hugging_face import TrainingOptions, connect, make_elastic

LETTERS = "0123456789+="
NUMBERS = 30
"""Both addends of a sum are below this number."""


class Sums(torch.utils.data.Dataset):
    """Texts such as ``07+25=32``; record *i* adds ``i // NUMBERS`` and ``i % NUMBERS``."""

    def __len__(self) -> int:
        return NUMBERS**2

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        first, second = divmod(index, NUMBERS)
        text = f"{first:02}+{second:02}={first + second:02}"
        tokens = torch.tensor([LETTERS.index(letter) for letter in text])
        return {"input_ids": tokens, "labels": tokens}


def network() -> GPT2LMHeadModel:
    """A GPT-2 with random weights, small enough for a CPU. It has no dropout, so that
    the losses don't depend on which worker computes which records."""
    torch.manual_seed(0)
    size = {"n_layer": 2, "n_head": 4, "n_embd": 32, "n_positions": 16, "vocab_size": len(LETTERS)}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    return GPT2LMHeadModel(GPT2Config(**size, **no_dropout, bos_token_id=0, eos_token_id=0))


def make_trainer(options: argparse.Namespace, kind: type[Trainer] = Trainer) -> Trainer:
    """The ``Trainer``, which knows nothing of the job."""
    arguments = TrainingArguments(
        output_dir=str(options.checkpoint_dir / "trainer"),
        num_train_epochs=options.epochs,
        per_device_train_batch_size=options.batch_size,
        learning_rate=5e-4,
        logging_steps=options.log_steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    return kind(model=network(), args=arguments, train_dataset=Sums())


def main() -> None:
    """Train until all epochs are over; rank 0 writes the model in Hugging Face's format."""
    options = parse(argparse.ArgumentParser(description=__doc__))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    job = connect()
    trainer = make_trainer(options)
    make_elastic(
        trainer, job, TrainingOptions(options.checkpoint_dir, options.save_seconds, threads=1)
    )
    trainer.train()
    trainer.save_model(str(options.checkpoint_dir / "model"))


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    """The command line."""
    parser.add_argument(
        "--checkpoint-dir", type=Path, required=True, help="folder of the checkpoints"
    )
    parser.add_argument("--epochs", type=int, default=30, help="default %(default)s")
    parser.add_argument(
        "--batch-size", type=int, default=16, help="records of a mini-batch (%(default)s)"
    )
    parser.add_argument(
        "--save-seconds", type=float, default=10.0, help="between checkpoints (%(default)s)"
    )
    parser.add_argument(
        "--log-steps", type=int, default=50, help="steps between lines (%(default)s)"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
