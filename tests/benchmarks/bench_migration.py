"""How long training stands still while parameter servers change: a migration against stop-and-resubmit, in
one run.

    python tests/benchmarks/bench_migration.py [--json]

Real TensorFlow on the embedded cluster: 2 servers and 2 workers become 3 servers and 2 workers, once by a
ScalePlan and once as users do without one: delete the job (its chief saves), submit it anew with 3 servers on
the same checkpoints. The stall is the time from the last step before to the first step after, read from what
the training program writes.
"""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from edl_workflows.core.jobs.scale_plan.model import ScalePlanPhase
from edl_workflows.pipelines.stages.delete import DELETE, DeleteRequest
from edl_workflows.pipelines.stages.migrate_ps import MIGRATE_PS, MigratePsRequest
from edl_workflows.pipelines.waiting.identity import StageIdentity
from edl_workflows.runtime.kube.connect import Cluster
from tests import local_cluster

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.e2e.embedded import EmbeddedJob, manifest

EPOCHS = 100_000
DELAY = 0.05
WARM_STEPS = 50
GOAL = 0.1


def files(folder: Path) -> set[Path]:
    """What training processes have written so far; a process without a step has an empty file."""
    return {file for file in folder.glob("records-*") if file.stat().st_size}


def stall(folder: Path, change: Callable[[], object]) -> float:
    """Seconds without a step around a change, by the files of the processes before and after."""
    before = files(folder)
    change()
    while not (after := files(folder) - before):
        time.sleep(0.005)
    # A file's first write is seen within milliseconds; later ones move its mtime, so look at once.
    first = min(file.stat().st_mtime for file in after)
    last = max(file.stat().st_mtime for file in before)
    return first - last


def migration(cluster: Cluster, folder: Path) -> tuple[float, float]:
    """(stall as measured here, stall as the plan's status says)."""
    job = EmbeddedJob.submit(cluster, manifest("migrates", folder, EPOCHS, DELAY, {"ps": 2, "worker": 2}))
    job.wait_step(WARM_STEPS)
    request = MigratePsRequest(job=job.name, replicas=3)
    handle = MIGRATE_PS.begin(cluster, request, StageIdentity(owner="bench/migrate"))
    measured = stall(folder, lambda: None)
    plan = job.await_plan(handle.name, ScalePlanPhase.SUCCEEDED, ScalePlanPhase.FAILED)
    if plan.status.phase is not ScalePlanPhase.SUCCEEDED or plan.status.stall_seconds is None:
        sys.exit(f"the migration did not succeed: {plan.status}")
    job.run(DELETE, DeleteRequest(name=job.name))
    return measured, plan.status.stall_seconds


def resubmission(cluster: Cluster, folder: Path) -> float:
    """Stall of delete and submit."""
    job = EmbeddedJob.submit(cluster, manifest("resubmits", folder, EPOCHS, DELAY, {"ps": 2, "worker": 2}))
    job.wait_step(WARM_STEPS)

    def change() -> None:
        job.run(DELETE, DeleteRequest(name=job.name))
        EmbeddedJob.submit(cluster, manifest("resubmits", folder, EPOCHS, DELAY, {"ps": 3, "worker": 2}))

    measured = stall(folder, change)
    job.run(DELETE, DeleteRequest(name=job.name))
    return measured


def main() -> None:
    """Run both, print the figures and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="edl-bench-") as root:
        folders = {name: Path(root) / name for name in ("cluster", "migrates", "resubmits")}
        for folder in folders.values():
            folder.mkdir()
        settings = local_cluster.Settings(controller=True, grace=5.0)
        with local_cluster.cluster(folders["cluster"], settings) as running:
            migrated, said = migration(running.client(), folders["migrates"])
            resubmitted = resubmission(running.client(), folders["resubmits"])
    figures = {
        "migration_stall_s": round(migrated, 2),
        "plan_status_stall_s": said,
        "resubmission_stall_s": round(resubmitted, 2),
        "ratio": round(migrated / resubmitted, 4),
        "goal": GOAL,
    }
    if options.json:
        print(json.dumps(figures))
        return
    print(
        f"{'migration 2 → 3 parameter servers':38} {figures['migration_stall_s']:>8} s  (plan says {said} s)"
    )
    print(f"{'delete and submit with 3':38} {figures['resubmission_stall_s']:>8} s")
    verdict = "met" if figures["ratio"] <= GOAL else "missed"
    print(f"{'ratio':38} {figures['ratio']:>8}    goal ≤ {GOAL}: {verdict}")


if __name__ == "__main__":
    main()
