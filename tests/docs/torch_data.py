"""The excerpt on data loaders in "Write a training program";
`tests.torch.test_torch_data` runs it."""

from typing import Any

from edl_workflows.training.collective import World
from edl_workflows.training.frameworks.torch_collective import ElasticDataLoader


def train(run: World, records: Any) -> None:
    """Train to the end, with records that two other processes read ahead."""
    for mini_batches in ElasticDataLoader(run, records, num_workers=2, pin_memory=False):
        run.step(mini_batches)
