"""An ElasticJob on the embedded cluster with its controller: everything real, as one pipeline would use
it."""

import sys
from pathlib import Path
from typing import Any

from tests.e2e.submitted import Container, SubmittedJob, Training


def manifest(name: str, folder: Path, epochs: int, delay: float, replicas: dict[str, int]) -> dict[str, Any]:
    """A job that trains the digits and records what it trains on in `folder`."""
    return Training(folder, epochs, delay, replicas).manifest(name, Container("local", sys.executable))


class EmbeddedJob(SubmittedJob):
    """A submitted job on the embedded cluster."""
