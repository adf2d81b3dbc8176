"""A job with a long and eventful life: for tests of the tab's bounds, and of its look."""

import math
from datetime import UTC, datetime, timedelta
from typing import Any

STEPS, RESTARTS = 10_000, 200
CAUSES = {"Preempted": 110, "OOMKilled": 40, "NodeLost": 30, "Hang": 20}
HOURS = 6.0
SPENT = {
    "training": 17_900,
    "queued": 320,
    "import": 510,
    "rendezvous": 260,
    "restore": 430,
    "save": 190,
    "redone": 1_300,
    "hang": 480,
    "masterDown": 40,
    "suspended": 900,
    "other": 170,
}
"""Seconds by cause; those that are no suspension are the six hours."""


def crowded_status(now: datetime) -> dict[str, Any]:
    """The status of an ElasticJob that has trained for six hours, as its master writes it."""
    return {
        "phase": "Running",
        "startTime": _at(now, 0.0),
        "observedGeneration": 1,
        "replicaStatuses": {"worker": {"desired": 6, "ready": 5}, "ps": {"desired": 2, "ready": 2}},
        "progress": {
            "step": 6_804,
            "records": 6_804 * 64,
            "recordsTotal": STEPS * 64,
            "speed": 0.31,
            "recordsPerSecond": 19.9,
            "metrics": {"loss": 0.31, "accuracy": 0.953},
            "time": _at(now, 0.9999),
        },
        "checkpoint": {"uri": "s3://models/recommender/6750", "step": 6_750, "time": _at(now, 0.993)},
        "history": _history(now),
        "goodput": {
            "ratio": 0.83,
            "usefulSeconds": 17_900,
            "redoneSeconds": 1_300,
            "elapsedSeconds": 21_600,
            "seconds": SPENT,
            "cause": "training",
            "time": _at(now, 0.9999),
        },
        "restarts": {"counts": dict(CAUSES), "recent": _recent_restarts(now)},
        "autoscaling": {
            "optimizer": "local",
            "stage": "job_stage_running",
            "replicaResourceSpecs": {"worker": {"replicas": 8}},
            "reasons": {
                "worker": "parameter servers use 43 % of their CPU at most: 2 more workers still pay"
            },
            "notes": ["ps: their CPU is used evenly, none is replaced"],
            "time": _at(now, 0.99),
        },
        "warnings": [
            "2 workers are stragglers: worker-181 and worker-187 take 1.9 times as long as the others"
        ],
    }


def _at(now: datetime, share: float) -> str:
    """The time when this share of the training was over."""
    return (now - timedelta(hours=HOURS * (1 - share))).astimezone(UTC).isoformat()


def _history(now: datetime) -> list[dict[str, Any]]:
    """Samples in equal distances."""
    return [
        {
            "time": _at(now, index / 120),
            "step": round(6_800 * index / 119),
            "records": round(6_800 * 64 * index / 119),
            "nodes": {"worker": 4 + round(2 * math.sin(index / 9)), "ps": 2},
            "metrics": {"loss": 0.3 + 2.0 * math.exp(-index / 30) + 0.03 * math.sin(index)},
        }
        for index in range(120)
    ]


def _recent_restarts(now: datetime) -> list[dict[str, Any]]:
    """A tenth of the restarts of each cause."""
    assert sum(CAUSES.values()) == RESTARTS
    names = [cause for cause, count in CAUSES.items() for _ in range(count // 10)]
    return [
        {
            "time": _at(now, 0.9 + index / 200),
            "subject": f"worker-{200 - len(names) + index}",
            "cause": cause,
            "message": "exit code 137 on gpu-node-17" if cause == "OOMKilled" else "",
        }
        for index, cause in enumerate(names)
    ]


def crowded_plans(job: str, now: datetime) -> list[dict[str, Any]]:
    """Plans of that job: some carried out, one that failed, one that has not begun."""

    def plan(number: int, workers: int, phase: str, **status: Any) -> dict[str, Any]:
        created = (now - timedelta(minutes=5 + 20 * (12 - number))).astimezone(UTC).isoformat()
        return {
            "apiVersion": "elastic.iml.github.io/v1alpha1",
            "kind": "ScalePlan",
            "metadata": {
                "name": f"{job}-scale-{number}",
                "creationTimestamp": created,
                "labels": {"elasticjob.dlrover/name": job, "scale-type": "manual"},
            },
            "spec": {
                "ownerJob": job,
                "replicaResourceSpecs": {"worker": {"replicas": workers}},
                "reason": f"speed grew by {number} % with the last workers",
            },
            "status": {"phase": phase, **status},
        }

    done = [plan(n, 2 + n // 2, "Succeeded", stallSeconds=1.5 + n / 10) for n in range(10)]
    failed = plan(
        10, 9, "Failed", reason="StepTimeout", message="Restarting took longer than 600 s; rolled back"
    )
    return [*done, failed, plan(11, 6, "Pending")]
