"""What a program on a library with a loop of its own notes of its steps, for `tests.e2e.records` and
`tests.e2e.collective_jobs`."""

import os
from collections.abc import Sequence
from pathlib import Path

from edl_workflows.training.job import Job


def note_records(job: Job, folder: Path, epoch: int, step: int, records: Sequence[int]) -> None:
    """Note the records of a batch before it is computed; not those of the warm-up."""
    if job.active:
        with (folder / f"records-{job.node}-v{job.version}-{os.getpid()}").open("a") as file:
            file.write(f"{epoch} {step} {' '.join(map(str, records))}\n")


def print_steps(job: Job) -> None:
    """Print each step with its loss when it is reported."""
    inner = job.report_step

    def report(step: int, loss: float | None = None, records: int = 0) -> None:
        inner(step, loss, records)
        print(f"step {step} of {len(job.cluster.workers)} loss {loss!r}", flush=True)

    job.report_step = report  # type: ignore[method-assign]
