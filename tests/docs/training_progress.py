"""Excerpts of pages: progress of programs that stay as they are."""

from typing import Any


def report(step: int, loss: float, accuracy: float) -> None:
    """Report a step of a training loop."""
    from edl_workflows.training import progress

    progress(step, loss=loss, accuracy=accuracy)


def fit(model: Any, x: Any, y: Any) -> None:
    """Train a compiled model."""
    from edl_workflows.training import KerasProgress

    model.fit(x, y, 32, 2, callbacks=[KerasProgress()])
