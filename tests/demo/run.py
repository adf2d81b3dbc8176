"""Runs the demo: starts the services, triggers the pipeline, follows it, writes the report, and always cleans
up."""

import contextlib
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from edl_workflows.core.exceptions import StageTimeoutError, UnavailableError
from edl_workflows.core.jobs.elastic_job.kind import ELASTIC_JOBS
from edl_workflows.core.jobs.elastic_job.model import ElasticJob
from edl_workflows.core.jobs.kinds import kind_of
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.pipelines import timeline
from edl_workflows.pipelines.live import FigureReader, Measurement, status_figures
from edl_workflows.runtime.kube import client, resources
from edl_workflows.runtime.kube.connect import Cluster
from tests.demo import report
from tests.demo.airflow import Airflow
from tests.demo.processes import Child
from tests.demo.progress import Display, JobState, Moment, TaskState, choose_display, task_states

TRAIN_DAG = "example_elastic_training"
RETRAIN_DAG = "example_retrain_on_data"
PIPELINES = {"tensorflow": (TRAIN_DAG, RETRAIN_DAG), "torch": ("example_torch_training",)}
"""The DAGs by training framework. The demo triggers the first DAG, whose asset event triggers the next."""
EVALUATE_TASK = "evaluate"
NAMESPACE = "default"
CLUSTER_SECONDS = 60.0
RUN_SECONDS = 900.0
LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class DemoOptions:
    """What the demo runs, and where.

    Attributes:
        output: folder for the report and the state of the services.
        dags: folder with the example DAGs.
        framework: a key of `PIPELINES`.
        python: interpreter of the training containers, which has the framework.
    """

    output: Path
    dags: Path
    framework: str = "tensorflow"
    python: Path = Path(sys.executable)


def run(options: DemoOptions, console: Console) -> bool:
    """Run the demo.

    Returns:
        Whether every stage succeeded.

    Raises:
        UnavailableError: a service did not start or has ended; the message names its log.
        StageTimeoutError: the pipelines did not end in time.
    """
    state = options.output / "state"
    state.mkdir(parents=True, exist_ok=True)
    with choose_display(console) as screen:
        begun = time.monotonic()
        screen.show(Moment(0.0, {}, (), note="starting the embedded cluster and its controller"))
        with _cluster(state) as kubeconfig:
            screen.show(Moment(time.monotonic() - begun, {}, (), note="starting Airflow"))
            env = _airflow_env(kubeconfig, state, options.python)
            with Airflow(state / "airflow", options.dags, env) as airflow:
                pipelines = PIPELINES[options.framework]
                for dag_id in pipelines:
                    airflow.await_dag(dag_id)
                watcher = _Watcher(airflow, Cluster.from_kubeconfig(kubeconfig), pipelines, screen, begun)
                outcome, timelines = watcher.follow()
    files = report.write_report(outcome, timelines, options.output)
    report.show_report(outcome, files, console)
    return outcome.succeeded


@contextmanager
def _cluster(state: Path) -> Iterator[Path]:
    """Run the embedded cluster with its controller. Yields the path of the kubeconfig."""
    folder = state / "cluster"
    folder.mkdir(exist_ok=True)
    kubeconfig = folder / "kubeconfig"
    kubeconfig.unlink(missing_ok=True)
    command = [sys.executable, "-m", "edl_workflows", "local", "up", "--foreground", "--dir", str(folder)]
    child = Child("edl local up", command, os.environ, state / "cluster.log")
    try:
        _await_nodes(child, kubeconfig)
        yield kubeconfig
    finally:
        child.terminate()
        child.reap(grace=20.0)


def _await_nodes(child: Child, kubeconfig: Path) -> None:
    deadline = time.monotonic() + CLUSTER_SECONDS
    while time.monotonic() < deadline:
        child.check()
        if kubeconfig.exists():
            # The kubeconfig is written before the API server listens.
            with contextlib.suppress(UnavailableError):
                cluster = Cluster.from_kubeconfig(kubeconfig)
                if client.list_objects(cluster, resources.Scope(resources.NODES)).items:
                    return
        time.sleep(0.2)
    raise UnavailableError(
        f"the embedded cluster was not ready within {CLUSTER_SECONDS:.0f} s; its output is in {child.log}"
    )


def _airflow_env(kubeconfig: Path, state: Path, python: Path) -> dict[str, str]:
    connection = {
        "conn_type": "kubernetes",
        "extra": {"kube_config_path": str(kubeconfig), "namespace": NAMESPACE},
    }
    work = state / "work"
    work.mkdir(exist_ok=True)
    return {
        "AIRFLOW_CONN_KUBERNETES_DEFAULT": json.dumps(connection),
        "AIRFLOW_VAR_EDL_WORK_DIR": str(work),
        "AIRFLOW_VAR_EDL_PYTHON": str(python),
    }


class _Watcher:
    """Follows the runs of the pipelines' DAGs and their jobs."""

    def __init__(
        self, airflow: Airflow, cluster: Cluster, pipelines: Sequence[str], screen: Display, begun: float
    ) -> None:
        self._airflow = airflow
        self._cluster = cluster
        self._pipelines = pipelines
        self._screen = screen
        self._begun = begun
        self._reader = FigureReader()
        self._samples: defaultdict[str, list[timeline.TimelineSample]] = defaultdict(list)

    def follow(self) -> tuple[report.DemoResult, list[timeline.Timeline]]:
        """Trigger the first DAG, and follow it and the others, which asset events trigger, until all have
        succeeded or one has failed."""
        first, last = self._pipelines[0], self._pipelines[-1]
        started = time.monotonic()
        run_id = self._airflow.trigger(first, {})
        while time.monotonic() - started < RUN_SECONDS:
            self._airflow.check()
            runs, tasks = self._runs(run_id)
            states = self._jobs()
            jobs = [state.view for state in states]
            self._screen.show(Moment(time.monotonic() - self._begun, tasks, states, note="the pipeline runs"))
            if "failed" in runs.values() or runs.get(last) == "success":
                plans = self._plans()
                seconds = time.monotonic() - started
                metrics = self._metrics(run_id) if runs[first] == "success" else {}
                return report.DemoResult(seconds, runs, tasks, jobs, plans, metrics), self._timelines(plans)
            time.sleep(LOOK_SECONDS)
        raise StageTimeoutError(
            f"the pipelines did not end within {RUN_SECONDS:.0f} s; see the logs in the output folder"
        )

    def _runs(self, run_id: str) -> tuple[dict[str, str], dict[str, tuple[TaskState, ...]]]:
        runs: dict[str, str] = {}
        tasks: dict[str, tuple[TaskState, ...]] = {}
        for dag_id in self._pipelines:
            for dag_run in self._airflow.runs(dag_id)[:1]:
                runs[dag_id] = dag_run["state"]
                tasks[dag_id] = task_states(self._airflow.tasks(dag_id, dag_run["dag_run_id"]))
        runs.setdefault(self._pipelines[0], f"unknown run {run_id}")
        return runs, tasks

    def _jobs(self) -> tuple[JobState, ...]:
        """The jobs; those that run with the figures of their masters."""
        kind = kind_of(ELASTIC_JOBS.api.kind)
        listed = client.list_objects(self._cluster, resources.Scope(resources.ELASTIC_JOBS, NAMESPACE))
        jobs = [ElasticJob.read_stored(item)[0] for item in listed.items]
        running = [job for job in jobs if job.status.phase is not None and not job.status.phase.final]
        answers = iter(self._reader.measure(self._cluster, running))
        measured = [
            next(answers) if job in running else Measurement(status_figures(job), "the job does not run")
            for job in jobs
        ]
        states = tuple(
            JobState(kind.view_stored(figures.show_in(item)), figures)
            for item, figures in zip(listed.items, measured, strict=True)
        )
        for view in (state.view for state in states):
            samples = self._samples[view.name]
            if not (view.phase.final and samples and samples[-1].phase == view.phase):
                samples.append(timeline.sample_job(view, time.time()))
        return states

    def _plans(self) -> list[ScalePlan]:
        scope = resources.Scope(resources.SCALE_PLANS, NAMESPACE)
        plans = [ScalePlan.read_stored(item)[0] for item in client.list_objects(self._cluster, scope).items]
        return sorted(plans, key=lambda plan: str(plan.metadata.creation_timestamp))

    def _timelines(self, plans: list[ScalePlan]) -> list[timeline.Timeline]:
        return [
            timeline.Timeline(
                name,
                tuple(samples),
                timeline.plan_spans([plan for plan in plans if plan.job == name], time.time()),
            )
            for name, samples in self._samples.items()
        ]

    def _metrics(self, run_id: str) -> dict[str, object]:
        value = self._airflow.result(self._pipelines[0], run_id, EVALUATE_TASK)
        return dict(value) if isinstance(value, dict) else {"result": value}
