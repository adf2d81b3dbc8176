"""How long a job takes to its first step in real pods, and a lost worker to its successor's: TensorFlow, 1
server, 2 workers."""

import shutil
import time
from dataclasses import dataclass

from edl_workflows.core.jobs.view import JobPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.cli.services import crds
from tests.benchmarks.cluster.waiting import fresh_namespace
from tests.cluster.bed.bed import Bed
from tests.cluster.training import Controllers, PodJob
from tests.e2e.records import consumed
from tests.e2e.submitted import Training

WORKERS = 2
EPOCHS = 200
"""More than are trained before `Training.hurry`'s end is asked for."""


@dataclass
class Starts:
    """Seconds.

    Attributes:
        master: from submitting the job to its running master.
        workers: to running workers.
        first_step: to the first training step; most of it is TensorFlow's own start.
        relaunch: from a worker pod's deletion to its successor running.
        relaunch_step: to its first step.
    """

    master: float
    workers: float
    first_step: float
    relaunch: float
    relaunch_step: float


def measure(bed: Bed) -> Starts:
    """One job, one lost worker."""
    crds.install(["all"], kubeconfig=bed.kubeconfig)
    with fresh_namespace(bed, "bench-starts") as cluster:
        folder = bed.data_dir / cluster.namespace
        folder.mkdir(parents=True)
        controllers = Controllers(bed, cluster, folder)
        try:
            controllers.start()
            controllers.await_leader()
            began = time.perf_counter()
            training = Training(folder / "job", EPOCHS, 0.1, {names.PS_TYPE: 1, names.WORKER_TYPE: WORKERS})
            job = PodJob.start(bed, cluster, "starts", training)
            first = _start(job, began)
            lost = _lose_a_worker(job)
            training.hurry()
            job.wait_phase(JobPhase.SUCCEEDED)
        finally:
            controllers.stop()
            shutil.rmtree(folder, ignore_errors=True)
    return Starts(*(round(seconds, 1) for seconds in (*first, *lost)))


def _start(job: PodJob, began: float) -> list[float]:
    times = []
    for role, count in ((names.MASTER_TYPE, 1), (names.WORKER_TYPE, WORKERS)):
        job.until(lambda role=role, count=count: len(job.running(role)) == count, 120, f"{role} runs")  # type: ignore[misc]
        times.append(time.perf_counter() - began)
    job.wait_step(1)
    return [*times, time.perf_counter() - began]


def _lose_a_worker(job: PodJob) -> list[float]:
    job.wait_step(30)
    victim = job.pod(names.WORKER_TYPE, 1)
    name = victim["metadata"]["name"]
    before = set(job.running(names.WORKER_TYPE))
    began = time.perf_counter()
    job.delete_pod(victim)
    (fresh,) = set(job.await_running(names.WORKER_TYPE, WORKERS, frozenset({name}))) - before
    running = time.perf_counter() - began
    node = fresh.removeprefix(f"{job.name}-edljob-")
    notes = f"records-{node}-v"
    job.until(
        lambda: any(file.startswith(notes) for file, *_ in consumed(job.training.folder)),
        120,
        f"{fresh} trains",
    )
    return [running, time.perf_counter() - began]
