"""How long training stands still while the workers of a collective job change, against stop-and-resubmit, in
one run.

    python tests/benchmarks/bench_allreduce.py [--ring] [--json]

Real TensorFlow (``MultiWorkerMirroredStrategy``) on the embedded cluster: 1 worker becomes 3 and then 2, once
by ScalePlans, and once as users do without them: delete the job (its chief saves), submit it anew with
another number on the same checkpoints. The stall is the time from the last step before to the first step
after, read from what the training program writes. ``--ring``: numpy over TCP in place of TensorFlow, which
starts in a moment and so has less to gain.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from edl_workflows.core.jobs.scale_plan.model import ReplicaResourceSpec, ScalePlanPhase
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.pipelines.stages.scale import SCALE, ScaleRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster
from tests.benchmarks.bench_migration import stall
from tests.e2e.collective_jobs import MIRRORED, RING, CollectiveJob, CollectiveTraining

EPOCHS = 100_000
DELAY = 0.1
WARM_STEPS = 30
WORKERS = (1, 3, 2)
SECONDS = 400.0
GOAL = 1 / 3


def changes(cluster: Cluster, training: CollectiveTraining) -> list[tuple[float, float]]:
    """For each change by a plan: the stall as measured here, and as the plan's status says."""
    job = CollectiveJob.submit(cluster, training.manifest("changes"))
    found = []
    for workers in WORKERS[1:]:
        _wait_steps(job)
        wanted = {names.WORKER_TYPE: ReplicaResourceSpec(replicas=workers)}
        request = ScaleRequest(job=job.name, replicas=wanted)
        plan = SCALE.begin(cluster, request, StageIdentity(owner=f"bench/allreduce/{workers}")).name
        measured = stall(training.folder, lambda: None)
        status = job.await_plan(plan, ScalePlanPhase.SUCCEEDED, ScalePlanPhase.FAILED, seconds=SECONDS).status
        if status.phase is not ScalePlanPhase.SUCCEEDED or status.stall_seconds is None:
            sys.exit(f"the change did not succeed: {status}")
        found.append((measured, status.stall_seconds))
    job.run(DELETE, DeleteRequest(name=job.name))
    return found


def resubmissions(cluster: Cluster, training: CollectiveTraining) -> list[float]:
    """For each change by delete and submit: the stall."""
    job = CollectiveJob.submit(cluster, training.manifest("resubmits"))
    found = []
    for workers in WORKERS[1:]:
        _wait_steps(job)

        def change(count: int = workers) -> None:
            job.run(DELETE, DeleteRequest(name=job.name))
            CollectiveJob.submit(cluster, replace(training, workers=count).manifest("resubmits"))

        found.append(stall(training.folder, change))
    job.run(DELETE, DeleteRequest(name=job.name))
    return found


def _wait_steps(job: CollectiveJob) -> None:
    """Some steps from now."""
    job.until(lambda: job.get().status.progress, SECONDS, "the job trains")
    progress = job.get().status.progress
    job.wait_step((progress.step if progress else 0) + WARM_STEPS, SECONDS)


def main() -> None:
    """Run both, print the figures and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ring", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edl-bench-") as root:
        folders = {name: Path(root) / name for name in ("cluster", "changes", "resubmits")}
        for folder in folders.values():
            folder.mkdir()
        training = CollectiveTraining(
            RING if options.ring else MIRRORED, folders["changes"], EPOCHS, DELAY, WORKERS[0]
        )
        settings = local_cluster.Settings(controller=True, grace=5.0)
        with local_cluster.cluster(folders["cluster"], settings) as running:
            changed = changes(running.client(), training)
            resubmitted = resubmissions(running.client(), replace(training, folder=folders["resubmits"]))
    rows: list[dict[str, Any]] = [
        {
            "workers": f"{before} → {after}",
            "change_stall_s": round(measured, 2),
            "plan_status_stall_s": said,
            "resubmission_stall_s": round(again, 2),
            "ratio": round(measured / again, 4),
        }
        for before, after, (measured, said), again in zip(
            WORKERS, WORKERS[1:], changed, resubmitted, strict=False
        )
    ]
    if options.json:
        print(json.dumps({"changes": rows, "goal": round(GOAL, 4)}, ensure_ascii=False))
        return
    for row in rows:
        verdict = "met" if row["ratio"] <= GOAL else "missed"
        print(
            f"{row['workers']} workers: {row['change_stall_s']} s (plan says {row['plan_status_stall_s']} "
            f"s), resubmitted {row['resubmission_stall_s']} s, ratio {row['ratio']}    goal ≤ 1/3: {verdict}"
        )


if __name__ == "__main__":
    main()
