"""A training program that logs as the how-to page shows; `test_training_logs` runs it."""

import logging

from edl_workflows.training import Job, json_lines


def train(job: Job) -> None:
    """Log as JSON."""
    handler = json_lines(job.environment, job.version)
    logging.basicConfig(level=logging.INFO, handlers=[handler])

    logging.getLogger("digits").info("epoch %d", 2)
