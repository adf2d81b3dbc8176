"""How soon the steps of one Argo workflow that wait for a training step have their results, after the job's
status says that the step is made.

No controller and no master look at the jobs here: the bench writes their statuses.
"""

import time

from edl_workflows.core.jobs.elastic_job.awaited_steps import read_waiters
from edl_workflows.pipelines.argo.agent.tasks import is_result
from edl_workflows.pipelines.argo.api import WORKFLOW_TASK_SETS
from edl_workflows.pipelines.cli.services import crds
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.cache import ObjectChange
from edl_workflows.runtime.kube.connect import Cluster, ClusterSource
from edl_workflows.runtime.kube.informer import Informer
from edl_workflows.runtime.kube.resources import ELASTIC_JOBS, Scope
from tests.benchmarks.cluster.waiting import fresh_namespace
from tests.cluster.bed.bed import Bed
from tests.cluster.bed.wait import until
from tests.cluster.plugin_workflows import Argo, agent, job, template

STEPS = 24
"""Steps of a workflow that wait at the same time."""
ROUNDS = 5
AWAITED = 100
PATIENCE = 120.0


def measure(bed: Bed, jobs: int) -> list[float]:
    """Let the steps of a workflow wait, several times in turn.

    Args:
        bed: where.
        jobs: for how many jobs the steps wait: with one, all learn of the same event.

    Returns:
        Seconds from the write of a job's status until a step's result is in the task set, in order.
    """
    crds.install(["all"], kubeconfig=bed.kubeconfig)
    with fresh_namespace(bed, "bench-steps") as cluster, agent(bed, cluster.namespace):
        return sorted(delay for turn in range(ROUNDS) for delay in _measure_once(cluster, f"w{turn}", jobs))


def _measure_once(cluster: Cluster, workflow: str, jobs: int) -> list[float]:
    names = [f"{workflow}-{number}" for number in range(jobs)]
    for name in names:
        client.create(cluster, job(name))
        _write_step(cluster, name, 1)
    awaited = {f"s{number}": names[number % jobs] for number in range(STEPS)}
    templates = [template(step, "wait", name=name, step=AWAITED) for step, name in awaited.items()]
    Argo(cluster).start(workflow, templates, [list(awaited)])
    until(lambda: _count_waiters(cluster, names) == STEPS, f"the steps of {workflow} wait", PATIENCE)
    results = _Results(cluster, workflow)
    made = {}
    for name in names:
        _write_step(cluster, name, AWAITED)
        made[name] = time.monotonic()
    until(lambda: len(results.times) == STEPS, f"the steps of {workflow} have results", PATIENCE)
    results.close()
    return [at - made[awaited[step]] for step, at in results.times.items()]


def _write_step(cluster: Cluster, name: str, step: int) -> None:
    status = {"phase": "Running", "observedGeneration": 1, "progress": {"step": step}}
    client.patch_status(cluster, ELASTIC_JOBS, name, status)


def _count_waiters(cluster: Cluster, names: list[str]) -> int:
    found = (client.get(cluster, ELASTIC_JOBS, name)["metadata"].get("annotations") or {} for name in names)
    return sum(len(read_waiters(annotations)) for annotations in found)


class _Results:
    """Watches a task set, and notes when each step has its result.

    Attributes:
        times: by the name of the step's template, on the monotonic clock.
    """

    def __init__(self, cluster: Cluster, workflow: str) -> None:
        self.times: dict[str, float] = {}
        self._workflow = workflow
        self._templates: dict[str, str] = {}
        scope = Scope(WORKFLOW_TASK_SETS, cluster.namespace)
        self._task_sets = Informer(ClusterSource.of(cluster), scope)
        self._task_sets.on_change(self._take)
        self._task_sets.start()
        assert self._task_sets.wait_synced(PATIENCE)

    def close(self) -> None:
        """End the watch."""
        self._task_sets.stop()

    def _take(self, change: ObjectChange) -> None:
        task_set = change.object
        if task_set["metadata"]["name"] != self._workflow:
            return
        for node, body in (task_set["spec"].get("tasks") or {}).items():
            self._templates[node] = body["name"]
        for node, entry in ((task_set.get("status") or {}).get("nodes") or {}).items():
            if is_result(entry):
                self.times.setdefault(self._templates[node], time.monotonic())
