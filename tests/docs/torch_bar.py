"""The excerpt on bars and schedules in "Make your training loop elastic";
`tests.torch.test_torch_epochs` runs it."""

from pathlib import Path

import torch
from torch.nn.functional import cross_entropy
from tqdm import tqdm

import edl_workflows.training.frameworks.torch_collective as elastic
from edl_workflows.training import connect


def train(images: torch.Tensor, labels: torch.Tensor, folder: Path) -> None:
    """Train with a bar for each epoch and a schedule that knows the number of all steps."""
    job = connect()
    data = elastic.Dataset(len(images), batch_size=8, num_epochs=3, global_batch=16)
    model = torch.nn.Linear(images.shape[1], 10)
    optimizer = torch.optim.AdamW(model.parameters())
    steps = data.num_epochs * data.count_steps(job.cluster.max_workers)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.01, total_steps=steps)

    def update() -> None:
        optimizer.step()
        schedule.step()

    def losses(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return cross_entropy(model(images), labels, reduction="none")

    example, more = (images[:2], labels[:2]), {"schedule": schedule}
    parts = elastic.TorchModel(model, optimizer, losses, example, update, more)
    settings = elastic.TrainingOptions(folder, save_seconds=60)
    with elastic.training(job, lambda: parts, data, settings) as run:
        records = torch.utils.data.TensorDataset(images, labels)
        loader = elastic.ElasticDataLoader(run, records)
        for epoch in run.epochs():
            with tqdm(total=len(loader), desc=f"epoch {epoch}", disable=run.rank > 0) as bar:
                for mini_batches in loader:
                    _, loss = run.step(mini_batches)
                    bar.update(int(run.step_made))
                    bar.set_postfix(loss=loss)
