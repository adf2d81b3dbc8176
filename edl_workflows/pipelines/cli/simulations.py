"""The tables and files that ``edl simulate`` writes."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.pipelines.cli.output import Table

if TYPE_CHECKING:
    from edl_workflows.simulator.cluster import SimulationRun
    from edl_workflows.simulator.paddle import PaddleCase, PaddleResult
    from edl_workflows.simulator.study import Study, StudyResult, StudySummary

_RUN_COLUMNS = (
    "workload",
    "policy",
    "seed",
    "jobs",
    "unfinished",
    "jct mean",
    "p50",
    "p99",
    "makespan",
    "use",
    "pending",
    "restarts",
)


def label_of_run(study: "Study") -> str:
    """The label of a run in tables and pictures."""
    return f"{study.workload.name} {study.policy} seed {study.seed}"


def run_table(results: "Sequence[StudyResult]", published: Mapping[tuple[str, str], float]) -> Table:
    """A table with a row for each run.

    Args:
        results: the results of the runs.
        published: the published mean job completion time by (workload, policy).
    """
    rows = []
    for result in results:
        key, metrics = result.key, result.metrics
        times = (metrics.jct_mean, metrics.jct_p50, metrics.jct_p99, metrics.makespan)
        rows.append(
            (
                *(key["workload"], key["policy"], key["seed"], metrics.jobs, metrics.unfinished),
                *(f"{seconds:.0f}" for seconds in times),
                *(f"{metrics.utilisation:.1%}", f"{metrics.pending:.0f}", f"{metrics.restarts:.1f}"),
                *([_format_seconds(published.get((key["workload"], key["policy"])))] if published else []),
            )
        )
    return Table((*_RUN_COLUMNS, "published") if published else _RUN_COLUMNS, rows)


def summary_table(summaries: "Sequence[StudySummary]") -> Table:
    """A table with a row for each group of workloads and policy."""
    rows = [
        (
            *(
                summary.group,
                summary.policy,
                summary.runs,
                f"{summary.jct_mean:.0f}",
                f"{summary.jct_spread:.0f}",
            ),
            _format_seconds(summary.published),
            "" if summary.ratio is None else f"{summary.ratio:+.1%}",
        )
        for summary in summaries
    ]
    return Table(("workloads", "policy", "runs", "jct mean", "spread", "published", "ratio"), rows)


def save(
    folder: Path, answer: Any, studies: "Sequence[Study]", runs: "Sequence[SimulationRun | None]"
) -> None:
    """Write results and pictures.

    Args:
        folder: where to; made if it isn't there.
        answer: as printed in JSON.
        studies: the studies.
        runs: the run of each study, or None if its result was in the file; only runs can be drawn.

    Raises:
        InvalidError: a file can't be written.
    """
    from edl_workflows.simulator import pictures
    from edl_workflows.simulator.study import jobs_of

    made = [(study, run) for study, run in zip(studies, runs, strict=True) if run is not None]
    jobs = {label_of_run(study): jobs_of(run) for study, run in made}
    _write(folder, answer | {"jobs": jobs})
    together: dict[str, dict[str, SimulationRun]] = {}
    groups: dict[str, dict[str, list[SimulationRun]]] = {}
    for study, run in made:
        together.setdefault(f"{study.workload.name} seed {study.seed}", {})[study.policy] = run
        groups.setdefault(study.workload.group, {}).setdefault(study.policy, []).append(run)
        pictures.draw_jobs(run, label_of_run(study), _file(folder, "jobs", label_of_run(study)))
    for name, by_policy in together.items():
        pictures.draw_utilisation(by_policy, name, _file(folder, "use", name))
    for name, by_group in groups.items():
        if any(
            job.finished is not None for several in by_group.values() for run in several for job in run.jobs
        ):
            pictures.draw_completion(by_group, name, _file(folder, "completion", name))


def of_paddle(
    cases: "Mapping[str, PaddleCase]", outcomes: "Mapping[str, PaddleResult]"
) -> tuple[list[Any], Table]:
    """The results of PaddlePaddle EDL's experiment as plain values and as a table."""
    from edl_workflows.simulator.paddle import PUBLISHED_CPU, PUBLISHED_PENDING

    answer = [
        {
            "case": name,
            "jobs": case.jobs,
            "started": outcomes[name].running,
            "pending": outcomes[name].pending,
            "published_pending": PUBLISHED_PENDING.get(case),
            "cpu": outcomes[name].cpu,
            "published_cpu": PUBLISHED_CPU[case],
        }
        for name, case in cases.items()
    ]
    rows = [
        (
            *(record["case"], record["jobs"], record["started"], f"{record['pending']:.1f}"),
            "" if record["published_pending"] is None else record["published_pending"],
            *(f"{record['cpu']:.1%}", f"{record['published_cpu']:.1%}"),
        )
        for record in answer
    ]
    return answer, Table(("case", "jobs", "started", "pending", "published", "cpu", "published"), rows)


def save_paddle(folder: Path, name: str, answer: Any, outcomes: "Mapping[str, PaddleResult]") -> None:
    """Write results and the picture.

    Args:
        folder: where to; made if it isn't there.
        name: name of the scenario.
        answer: as printed in JSON.
        outcomes: name of the case → its measurements.

    Raises:
        InvalidError: a file can't be written.
    """
    from edl_workflows.simulator import pictures

    _write(folder, {"cases": answer})
    pictures.draw_paddle(outcomes, name, _file(folder, name))


def _format_seconds(seconds: float | None) -> str:
    return "" if seconds is None else f"{seconds:.0f}"


def _write(folder: Path, answer: Any) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "results.json").write_text(json.dumps(answer, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidError(f"can't write to {folder}: {error}; give a writable folder") from error


def _file(folder: Path, *words: str) -> Path:
    """The path of a picture, whose name contains only letters, digits, dots and dashes."""
    return folder / (re.sub(r"[^A-Za-z0-9.]+", "-", "-".join(words)) + ".png")
