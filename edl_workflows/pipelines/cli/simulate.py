"""``edl simulate``: simulates how a scheduler would run a workload."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edl_workflows.core.exceptions import InvalidError
from edl_workflows.core.scaling.policies import policy_help
from edl_workflows.pipelines.cli import simulations
from edl_workflows.pipelines.cli.options import Output, OutputFormat
from edl_workflows.pipelines.cli.output import emit, print_line, say
from edl_workflows.simulator.schedulers.catalog import SCHEDULERS

if TYPE_CHECKING:
    from edl_workflows.simulator.cluster import SimulationRun, SimulationSettings
    from edl_workflows.simulator.study import Study, StudyResult, Workload

app = typer.Typer(no_args_is_help=True)

_WORKLOAD, _CLUSTER, _RESULTS = "Workload", "Cluster", "Results"
_HOUR = 3600.0
_DEFAULT_POLICY = "pollux"
_OF_PADDLE = {"scenario", "save", "output"}
"""The options that apply to PaddlePaddle EDL's experiment."""
_OF_POLLUX = {"load", "number"}
_OF_WORKLOAD = {"status"}


class Scenario(StrEnum):
    """Predefined scenarios."""

    PADDLE = "paddle"
    PADDLE_MIXED = "paddle-mixed"
    POLLUX = "pollux"


if TYPE_CHECKING:
    PolicyName = str
else:  # typer shows the members of an Enum as choices
    PolicyName = StrEnum("PolicyName", {entry.name: entry.name for entry in SCHEDULERS})

_Scenario = Annotated[
    Scenario | None,
    typer.Argument(
        help="paddle: PaddlePaddle EDL's experiment; paddle-mixed: the same with Nginx; pollux: the "
        "evaluation of the Pollux paper, which needs --data. Without a scenario: the jobs of --workload.",
        show_default=False,
    ),
]
_WorkloadFile = Annotated[
    Path | None,
    typer.Option(
        help="CSV of jobs: name,time,application,num_replicas,batch_size as in the Pollux artifact (needs "
        "--data), or a trace of a "
        "cluster with submit_time (or timestamp), num_gpus, duration and optionally job_id and "
        "status.",
        show_default=False,
        rich_help_panel=_WORKLOAD,
    ),
]
_Data = Annotated[
    Path | None,
    typer.Option(
        help="Folder with traces/ and workloads*/, such as simulator/ in branch osdi21-artifact of "
        "petuum/adaptdl.",
        show_default=False,
        rich_help_panel=_WORKLOAD,
    ),
]
_Loads = Annotated[
    list[float] | None,
    typer.Option(
        help="Relative load of scenario pollux: 0.5, 1, 1.5 or 2. May be repeated.",
        rich_help_panel=_WORKLOAD,
    ),
]
_Numbers = Annotated[
    list[int] | None,
    typer.Option(
        help="Number of a workload, 1 to 8. May be repeated; by default all.", rich_help_panel=_WORKLOAD
    ),
]
_Statuses = Annotated[
    list[str] | None,
    typer.Option(
        help="Use only jobs of a trace with this status, such as Pass. May be repeated.",
        rich_help_panel=_WORKLOAD,
    ),
]
_Policies = Annotated[
    list[PolicyName] | None,
    typer.Option(
        metavar="NAME",
        help=f"Policy to simulate. May be repeated; default {_DEFAULT_POLICY}. {policy_help(SCHEDULERS)}",
    ),
]
_Seeds = Annotated[
    list[int] | None,
    typer.Option(min=0, help="Random seed of the failures of --node-failures. May be repeated; default 0."),
]
_Nodes = Annotated[int, typer.Option(min=1, max=100_000, rich_help_panel=_CLUSTER)]
_GpusPerNode = Annotated[int, typer.Option(min=1, max=1_000, rich_help_panel=_CLUSTER)]
_Interval = Annotated[float, typer.Option(help="Seconds between two decisions.", rich_help_panel=_CLUSTER)]
_RestartPenalty = Annotated[
    float,
    typer.Option(help="Seconds that a job does not train after its nodes change.", rich_help_panel=_CLUSTER),
]
_CheckpointInterval = Annotated[
    float, typer.Option(help="Seconds of training between checkpoints.", rich_help_panel=_CLUSTER)
]
_NodeFailures = Annotated[
    str | None,
    typer.Option(
        help="Mean hours between failures of a node, or a CSV with time,node,seconds: the time of a "
        "failure, the number of the node (from 0), and the duration.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
_RepairTime = Annotated[
    float,
    typer.Option(help="Seconds until a node is back after a random failure.", rich_help_panel=_CLUSTER),
]
_Services = Annotated[
    Path | None,
    typer.Option(
        help="CSV with GPUs that services take from jobs: time,gpus or time,service,gpus, each from that "
        "time on.",
        show_default=False,
        rich_help_panel=_CLUSTER,
    ),
]
_ResultsFile = Annotated[
    Path | None,
    typer.Option(
        help="File for results, one line each. Runs whose result is in the file are skipped, so that a "
        "long study can be continued.",
        show_default=False,
        rich_help_panel=_RESULTS,
    ),
]
_Folder = Annotated[
    Path | None,
    typer.Option(
        help="Folder for results.json and pictures of the runs.",
        show_default=False,
        rich_help_panel=_RESULTS,
    ),
]


@dataclass(frozen=True)
class _Source:
    """The source of the workloads: a scenario or a file."""

    scenario: Scenario | None
    workload: Path | None
    data: Path | None
    loads: Sequence[float]
    numbers: Sequence[int]
    statuses: Sequence[str]


@dataclass(frozen=True)
class _Disturbance:
    """Failures and services, which take nodes away from jobs."""

    failures: str | None
    repair_time: float
    services: Path | None


@app.command()
def simulate(
    context: typer.Context,
    scenario: _Scenario = None,
    workload: _WorkloadFile = None,
    data: _Data = None,
    load: _Loads = None,
    number: _Numbers = None,
    status: _Statuses = None,
    policy: _Policies = None,
    seed: _Seeds = None,
    nodes: _Nodes = 16,
    gpus_per_node: _GpusPerNode = 4,
    interval: _Interval = 60.0,
    restart_penalty: _RestartPenalty = 30.0,
    checkpoint_interval: _CheckpointInterval = 600.0,
    node_failures: _NodeFailures = None,
    repair_time: _RepairTime = 600.0,
    services: _Services = None,
    results: _ResultsFile = None,
    save: _Folder = None,
    output: Output = OutputFormat.TABLE,
) -> None:
    """Simulate a cluster and print completion times, waiting times and the use of GPUs under each policy.

    The same call gives the same result. Times are in simulated seconds.
    """
    from edl_workflows.simulator import evaluation
    from edl_workflows.simulator.cluster import SimulationSettings
    from edl_workflows.simulator.study import Study, summarize_results

    _check(context, scenario)
    if scenario in (Scenario.PADDLE, Scenario.PADDLE_MIXED):
        _paddle(scenario, save, output)
        return
    source = _Source(scenario, workload, data, load or [1.0], number or range(1, 9), status or [])
    disturbance = _Disturbance(node_failures, repair_time, services)
    settings = SimulationSettings(
        nodes, gpus_per_node, interval, restart_penalty, checkpoint_interval=checkpoint_interval
    )
    studies = [
        Study(study_workload, chosen, chance, _disturbed(settings, disturbance, study_workload, chance))
        for study_workload in _workloads(source)
        for chosen in policy or [_DEFAULT_POLICY]
        for chance in seed or [0]
    ]
    study_results, runs = _run(studies, results)
    alike = scenario is Scenario.POLLUX and all(study.settings == SimulationSettings() for study in studies)
    totals = summarize_results(study_results, evaluation.PUBLISHED_MEANS if alike else {})
    answer = {
        "runs": [study_result.to_json() for study_result in study_results],
        "summaries": [summary.to_json() for summary in totals],
    }
    if save is not None:
        simulations.save(save, answer, studies, runs)
    emit(output, answer, simulations.run_table(study_results, evaluation.PUBLISHED_RUNS if alike else {}))
    if output is OutputFormat.TABLE and (len(study_results) > len(totals) or totals[0].published):
        print_line()
        emit(output, None, simulations.summary_table(totals))


def _check(context: typer.Context, scenario: Scenario | None) -> None:
    """Reject options that do not apply to the scenario.

    Raises:
        InvalidError: such an option was given.
    """
    fixed = scenario in (Scenario.PADDLE, Scenario.PADDLE_MIXED)
    subject = f"scenario {scenario}" if scenario else "--workload"
    for name in context.params:
        source = context.get_parameter_source(name)
        given = source is not None and source.name == "COMMANDLINE"
        fits = name in _OF_PADDLE if fixed else name not in (_OF_WORKLOAD if scenario else _OF_POLLUX)
        if given and not fits:
            raise InvalidError(f"--{name.replace('_', '-')} does not apply to {subject}; leave it out")


def _workloads(source: _Source) -> "list[Workload]":
    """The workloads to simulate.

    Raises:
        InvalidError: the options don't fit together, or a file can't be read.
    """
    from edl_workflows.simulator import evaluation, readers
    from edl_workflows.simulator.study import Workload
    from edl_workflows.simulator.workload import workload_of

    if (source.scenario is None) == (source.workload is None):
        raise InvalidError("no workload: give a scenario (paddle, paddle-mixed, pollux) or --workload FILE")
    if source.workload is None:
        return evaluation.read_evaluation(_needed(source.data), source.loads, source.numbers)
    path = source.workload
    if readers.is_pollux_workload(path):
        applications = evaluation.read_applications(_needed(source.data) / "traces")
        jobs = readers.read_workload(path)
        return [Workload(path.stem, path.stem, jobs, applications, evaluation.SINGLE_REPLICA)]
    jobs, applications = workload_of(readers.read_cluster_jobs(path, source.statuses))
    return [Workload(path.stem, path.stem, jobs, applications, {})]


def _needed(data: Path | None) -> Path:
    if data is None:
        raise InvalidError(
            "the traces of the applications are required: give --data, the folder simulator/ in "
            "branch osdi21-artifact of petuum/adaptdl"
        )
    return data


def _disturbed(
    settings: "SimulationSettings", by: _Disturbance, workload: "Workload", seed: int
) -> "SimulationSettings":
    """The settings with node failures and services added.

    Raises:
        InvalidError: a file can't be read, or a number is out of range.
    """
    from edl_workflows.simulator import capacity, readers

    nodes, changes = settings.capacity(), []
    if by.services is not None:
        for name, demand in readers.read_services(by.services).items():
            changes += capacity.service_changes(name, nodes, demand)
    if by.failures is not None:
        hours = _number(by.failures)
        if hours is None:
            changes += readers.read_failures(Path(by.failures), nodes)
        else:
            last = max(job.submitted for job in workload.jobs)
            changes += capacity.draw_failures(
                nodes,
                mean_time_between=hours * _HOUR,
                repair_time=by.repair_time,
                until=last + settings.horizon,
                seed=seed,
            )
    return replace(settings, changes=tuple(changes))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _run(
    studies: "Sequence[Study]", path: Path | None
) -> "tuple[list[StudyResult], list[SimulationRun | None]]":
    """Run the studies. Return their results, and the runs; None for results that were in the file."""
    from edl_workflows.core.scaling.pollux.goodput_fit import FitCache
    from edl_workflows.simulator.store import ResultFile
    from edl_workflows.simulator.study import StudyResult

    file, fits = None if path is None else ResultFile(path), FitCache()
    results: list[StudyResult] = []
    runs: list[SimulationRun | None] = []
    for number, study in enumerate(studies, 1):
        run, result = None, None if file is None else file.find(study.key)
        if result is None:
            run = study.run(fits)
            result = StudyResult.of(study, run)
            if file is not None:
                file.add(result)
        results.append(result)
        runs.append(run)
        if len(studies) > 1:
            done = "already in the file" if run is None else f"mean {result.metrics.jct_mean:.0f} s"
            say(f"{number} of {len(studies)}: {simulations.label_of_run(study)}: {done}")
    return results, runs


def _paddle(scenario: Scenario, save: Path | None, output: OutputFormat) -> None:
    """Run PaddlePaddle EDL's experiment with and without autoscaling."""
    from edl_workflows.simulator import paddle

    cases = paddle.SCENARIOS[scenario]
    outcomes = {name: paddle.run_case(case) for name, case in cases.items()}
    answer, table = simulations.of_paddle(cases, outcomes)
    if save is not None:
        simulations.save_paddle(save, scenario, answer, outcomes)
    emit(output, answer, table)
