"""A store with the data of a cluster over some hours, always the same: for tests and pictures of the page."""

import math
import random
from collections.abc import Iterator

from edl_workflows.core.protocol.brain import JobDescription, JobLimits
from edl_workflows.core.scaling.dlrover.samples import JobSample, NodeSample
from edl_workflows.services.brain.observations import (
    ChangeObservation,
    ClusterObservation,
    JobObservation,
    RoleObservation,
)
from edl_workflows.services.brain.store.records import JobReport
from edl_workflows.services.brain.store.store import BrainStore

GIB = 2.0**30
HOUR = 3600.0
_NAMES = (
    "recommend-wide", "ctr-daily", "bert-finetune", "ranking-v7", "speech-ctc", "resnet-ablation",
    "deepfm-hourly",
    "forecast-eu", "forecast-us", "embeddings-nightly", "fraud-gbdt", "search-dssm",
)  # fmt: skip
_REASONS = (
    "parameter servers use 43 % of their CPU at most: 2 more workers still pay",
    "ps-0 used 94 % of its 8 cores in the last 5 samples: it is replaced by one of 12 cores",
    "speed grew by 3 % only with the last 2 workers: they are taken away",
    "worker-3 ran out of memory at 7.9 GiB: workers get twice as much",
)


def fill(store: BrainStore, now: float, jobs: int = 12) -> None:
    """Fill the store with six hours of a cluster with these jobs."""
    chance = random.Random(7)
    for index in range(360):
        hours = index / 60
        store.record_cluster(_cluster(now - (6 - hours) * HOUR, hours, chance))
    seen = [_job(index, now, chance) for index in range(jobs)]
    store.record_jobs(seen, [], now)
    for job in seen[:12]:
        if job.started is None:
            continue
        store.record(JobReport(_facts(job), tuple(_samples(job, now, chance))), now)
    plans = [plan for job in seen[:8] for plan in _plans(job, now)]
    store.record_plans(plans, [], now)


def _plans(job: JobObservation, now: float) -> Iterator[ChangeObservation]:
    """A plan before each change of the workers, and a migration for the first jobs."""
    begin, end = job.started or now, job.finished or now
    workers = job.replicas["worker"].ready
    for count in range(2, workers + 1):
        created = begin + (end - begin) * (count - 1) / workers - 45
        yield _plan(job, f"{count}", created, f"worker: {count} replicas", _REASONS[0], "Succeeded")
    if job.kind == "ElasticJob" and job.phase == "Running":
        yield _plan(
            job, "ps", begin + (end - begin) / 2, "replace ps 0 with 12 CPU", _REASONS[1], "Succeeded"
        )
        yield _plan(job, "now", now - 70, f"worker: {workers - 1} replicas", _REASONS[2], "Scaling")
    if job.phase == "Failed":
        yield _plan(job, "oom", end - 700, "worker: with 16Gi memory", _REASONS[3], "Failed")


def _plan(
    job: JobObservation, name: str, created: float, change: str, reason: str, phase: str
) -> ChangeObservation:
    return ChangeObservation(
        uid=f"plan-{job.uid}-{name}",
        namespace=job.namespace,
        name=f"{job.name}-{name}",
        job=job.name,
        changes=(change,),
        reason=reason,
        phase=phase,
        message="no step within 600 s: rolled back to the old servers" if phase == "Failed" else "",
        created=created,
        finished=None if phase == "Scaling" else created + 40,
    )


def _cluster(time: float, hours: float, chance: random.Random) -> ClusterObservation:
    """The cluster after some hours. In the first ones, four nodes are down."""
    nodes = 16 if hours > 1.5 else 12
    cores = nodes * 16.0
    load = 0.62 + 0.2 * math.sin(hours) + 0.05 * math.sin(hours * 7)
    requested = round(cores * min(0.96, max(0.2, load))) * 1.0
    return ClusterObservation(
        time=time,
        nodes=16,
        nodes_ready=nodes,
        allocatable={
            "cpu": cores,
            "memory": nodes * 64 * GIB,
            "nvidia.com/gpu": nodes * 2.0,
            "pods": nodes * 110.0,
        },
        requested={
            "cpu": requested,
            "memory": requested * 3.1 * GIB,
            "nvidia.com/gpu": 18.0,
            "pods": requested / 3,
        },
        used={"cpu": requested * (0.7 + chance.random() * 0.08), "memory": requested * 2.2 * GIB},
        pods_running=round(requested / 3),
        pods_pending=3 if load > 0.8 else 0,
    )


def _job(index: int, now: float, chance: random.Random) -> JobObservation:
    phase = ("Running", "Running", "Scaling", "Running", "Pending", "Succeeded", "Failed", "Suspended")[
        index % 8
    ]
    kind = ("ElasticJob", "ElasticJob", "ElasticJob", "TrainingJob", "DIJob", "TFJob")[index % 6]
    created = now - 5.5 * HOUR + index * min(1500.0, 5 * HOUR / (index + 1))
    workers, ready = 2 + index % 7, 0 if phase in ("Pending", "Suspended") else 2 + index % 7
    ended = phase in ("Succeeded", "Failed")
    running = phase in ("Running", "Scaling")
    replicas = {"worker": RoleObservation(workers, ready)}
    if kind == "ElasticJob":
        replicas["ps"] = RoleObservation(2, min(2, ready))
    return JobObservation(
        uid=f"uid-{index}",
        kind=kind,
        namespace=("ads", "search", "research")[index % 3],
        name=_NAMES[index] if index < len(_NAMES) else f"sweep-{index:04}",
        phase=phase,
        reason={"Failed": "WorkerFailed", "Pending": "Unschedulable"}.get(phase, ""),
        message={
            "Failed": "worker-1 ended with exit code 1 after 3 restarts: ValueError: labels out of range",
            "Pending": "2 of 2 pods wait: 0/16 nodes are available: 16 Insufficient nvidia.com/gpu",
        }.get(phase, ""),
        replicas=replicas,
        requests={"cpu": workers * 4.0},
        step=0 if phase == "Pending" else 12_000 * (index + 1),
        speed=round(chance.uniform(3, 140), 1) if running else 0.0,
        optimizer="brain" if kind == "ElasticJob" else "",
        stage="job_stage_running" if kind == "ElasticJob" and running else "",
        reasons={"ps-0" if index % 4 == 1 else "worker": _REASONS[index % 4]}
        if kind == "ElasticJob" and running
        else {},
        notes=("ps: used 43 % of their CPU at most: enough",) if kind == "ElasticJob" and running else (),
        created=created,
        started=None if phase == "Pending" else created + 35,
        finished=created + 2 * HOUR if ended else None,
    )


def _facts(job: JobObservation) -> JobDescription:
    limits = JobLimits(cpu=100, memory=200_000, gpu=8)
    return JobDescription(uid=job.uid, namespace=job.namespace, name=job.name, kind=job.kind, limits=limits)


def _samples(job: JobObservation, now: float, chance: random.Random) -> Iterator[JobSample]:
    """Speed that grows with the workers, and a migration during which it is zero."""
    begin, end = job.started or now, job.finished or now
    most = job.replicas["worker"].ready
    step, lost = 0, 2 + 9 * (int(job.uid.removeprefix("uid-")) % 4)
    for index in range(240):
        time = begin + (end - begin) * index / 239
        workers = 1 + index * most // 240
        stands = 120 <= index < 120 + lost
        speed = 0.0 if stands else 28.0 * workers**0.8 + chance.uniform(-2, 2)
        step += int(speed * (end - begin) / 240)
        nodes = [NodeSample(f"worker-{rank}", "worker", 3.0, 4000.0) for rank in range(workers)]
        nodes += [NodeSample(f"ps-{rank}", "ps", 5.0, 8000.0) for rank in range(2)]
        metrics = {"loss": 2.4 * math.exp(-index / 60), "reward": index / 120 - 1.0}
        yield JobSample(time, step, speed, tuple(nodes), metrics)
