"""Writes the results of the demo: ``result.json``, pictures of the jobs' timelines, and a table."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.jobs.view import JobView
from edl_workflows.pipelines import timeline
from tests.demo.progress import STATE_STYLES, TaskState


@dataclass(frozen=True)
class DemoResult:
    """The result of the demo.

    Attributes:
        seconds: duration of the pipelines, without the start of the services.
        runs: the state of the run for each DAG id.
        tasks: the tasks for each DAG id.
        metrics: the return value of the evaluation task.
    """

    seconds: float
    runs: Mapping[str, str]
    tasks: Mapping[str, Sequence[TaskState]]
    jobs: Sequence[JobView]
    plans: Sequence[ScalePlan]
    metrics: Mapping[str, Any]

    @property
    def succeeded(self) -> bool:
        """Whether all runs and all their tasks succeeded."""
        states = [*self.runs.values(), *(task.state for tasks in self.tasks.values() for task in tasks)]
        return bool(states) and all(state == "success" for state in states)


def write_report(outcome: DemoResult, timelines: Sequence[timeline.Timeline], folder: Path) -> list[Path]:
    """Write ``result.json`` and a picture for each job.

    Returns:
        The files.
    """
    result = folder / "result.json"
    result.write_text(json.dumps(_result(outcome, timelines), indent=2, default=str) + "\n")
    pictures = []
    for line in timelines:
        picture = folder / f"timeline-{line.job.split('/')[-1]}.png"
        timeline.draw_timeline(line, picture)
        pictures.append(picture)
    return [result, *pictures]


def _result(outcome: DemoResult, timelines: Sequence[timeline.Timeline]) -> dict[str, Any]:
    return {
        "succeeded": outcome.succeeded,
        "seconds": round(outcome.seconds, 1),
        "runs": dict(outcome.runs),
        "tasks": {dag: {task.task_id: task.state for task in tasks} for dag, tasks in outcome.tasks.items()},
        "metrics": dict(outcome.metrics),
        "jobs": [
            {"name": job.name, "phase": job.phase, "step": job.progress.step, "records": job.progress.records}
            for job in outcome.jobs
        ],
        "plans": [plan.to_dict() for plan in outcome.plans if not plan.auto],
        "timelines": [line.to_json() for line in timelines],
    }


def show_report(outcome: DemoResult, files: Sequence[Path], console: Console) -> None:
    """Print the tables and the paths of the files."""
    console.print(_stages(outcome))
    console.print(_plans(outcome))
    for name, value in outcome.metrics.items():
        console.print(f"{name}: {value}", soft_wrap=True)
    for file in files:
        console.print(f"wrote {file}", soft_wrap=True)
    verdict = "Every stage succeeded" if outcome.succeeded else "A stage FAILED"
    console.print(
        f"{verdict} in {outcome.seconds:.0f} s.", style="bold green" if outcome.succeeded else "bold red"
    )


def _stages(outcome: DemoResult) -> Table:
    table = Table(title="Stages")
    for name in ("DAG", "task", "state", "seconds"):
        table.add_column(name, justify="right" if name == "seconds" else "left", overflow="fold")
    for dag_id, tasks in outcome.tasks.items():
        for task in tasks:
            state = Text(task.state, style=STATE_STYLES.get(task.state, ""))
            table.add_row(dag_id, task.task_id, state, f"{task.seconds:.1f}")
    return table


def _plans(outcome: DemoResult) -> Table:
    table = Table(title="Changes to the running job")
    for name in ("ScalePlan", "phase", "checkpoint step", "resumed at", "stall"):
        table.add_column(name, justify="left" if name in ("ScalePlan", "phase") else "right", overflow="fold")
    for plan in outcome.plans:
        if not plan.auto:
            status = plan.status
            stall = f"{status.stall_seconds:.2f} s" if status.stall_seconds is not None else ""
            step = str(status.checkpoint.step) if status.checkpoint else ""
            resumed = "" if status.resumed_step is None else str(status.resumed_step)
            table.add_row(plan.metadata.name, str(status.phase), step, resumed, stall)
    return table
