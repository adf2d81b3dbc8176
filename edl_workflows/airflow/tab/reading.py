"""Reads the jobs of tasks from their clusters: status, plans, the last log lines, and Brain's history."""

import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from edl_workflows.airflow.hooks.elastic_job import ConnectionSettings, ElasticJobHook
from edl_workflows.airflow.hooks.task_owner import engine_of
from edl_workflows.airflow.tab import brain_history
from edl_workflows.airflow.tab.decisions import read_plans
from edl_workflows.airflow.tab.describe import (
    add_figures,
    add_history,
    describe_history,
    describe_job,
    without_output,
)
from edl_workflows.airflow.tab.document import MAX_LOG_LINES, JobDocument, LogDocument
from edl_workflows.airflow.tab.task_jobs import TaskWork, connection_of, dag_of_job
from edl_workflows.core.exceptions import EdlError, ForbiddenError, NotFoundError
from edl_workflows.core.jobs import kinds, manifests
from edl_workflows.core.jobs.elastic_job.model import KIND as ELASTIC_JOB
from edl_workflows.core.jobs.elastic_job.model import ElasticJob, ElasticJobPhase
from edl_workflows.core.jobs.kind import Kind
from edl_workflows.core.jobs.scale_plan.model import KIND as SCALE_PLAN
from edl_workflows.core.jobs.scale_plan.model import ScalePlan
from edl_workflows.core.kubernetes import pod_state
from edl_workflows.core.protocol.log_lines import render_own_line
from edl_workflows.core.protocol.reported_text import escape_controls
from edl_workflows.pipelines.live import FigureReader, Measurement, status_figures
from edl_workflows.pipelines.waiting.training_logs import choose_pods
from edl_workflows.runtime.kube import client, logs
from edl_workflows.runtime.kube.connect import CallPolicy, Cluster
from edl_workflows.runtime.kube.logs import LogOptions
from edl_workflows.runtime.kube.resources import PODS, SCALE_PLANS, Object, Scope

MAX_JOBS = 20
"""Most jobs in one document."""
MAX_LOG_BYTES = 2**18
"""Most bytes read from the end of a log, since its lines may have any length."""
DOCUMENT_SECONDS = 20.0
"""Time after which no further job is read. The page requests the data again later, and Airflow serves few
requests at a time."""
MASTERS_SECONDS = 6.0
"""At most so many of these are for masters. Other jobs have the figures of their status."""
CALL_POLICY = CallPolicy(attempts=2, retry_seconds=5.0, read_seconds=10.0)
_SERVED = {ElasticJobPhase.RUNNING, ElasticJobPhase.SCALING, ElasticJobPhase.RESTARTING}
"""The phases in which a job has a master that trains it."""
CLIENT_SECONDS = 300.0
"""How long a connection to a cluster is reused; it is limited because credentials may change."""


@dataclass(frozen=True)
class Rights:
    """What the user may do with a DAG, by its id."""

    read: Callable[[str], bool]
    edit: Callable[[str], bool]
    logs: Callable[[str], bool]


@dataclass(frozen=True)
class FoundJob:
    """A job that the user may see.

    Attributes:
        dag_id: the DAG whose access rights apply to the job.
        manifest: the object; None for a job that the cluster no longer has.
    """

    work: TaskWork
    hook: ElasticJobHook
    cluster: Cluster
    kind: Kind
    namespace: str
    name: str
    dag_id: str
    manifest: Object | None


class Clusters:
    """Connections to clusters, shared by all requests.

    Attributes:
        figures: asks the masters of jobs.
    """

    def __init__(self) -> None:
        self.figures = FigureReader()
        self._lock = threading.Lock()
        self._open: dict[str, tuple[float, Cluster]] = {}

    def connect(self, settings: ConnectionSettings) -> tuple[ElasticJobHook, Cluster]:
        """The hook and the cluster of a connection.

        Raises:
            InvalidError: there is no such connection, or it leads to no cluster.
        """
        hook = ElasticJobHook(settings)
        source = hook.source()
        now = time.monotonic()
        with self._lock:
            self._open = {key: kept for key, kept in self._open.items() if now - kept[0] < CLIENT_SECONDS}
            if source.key not in self._open:
                self._open[source.key] = (now, source.connect().with_policy(CALL_POLICY))
            return hook, self._open[source.key][1]


class JobReader:
    """Reads documents for one user.

    Args:
        clusters: the connections.
        rights: what the user may do.
    """

    def __init__(self, clusters: Clusters, rights: Rights) -> None:
        self._clusters = clusters
        self._rights = rights
        self._masters_seconds = MASTERS_SECONDS

    def read_jobs(self, work: Iterable[TaskWork], *, with_logs: bool) -> tuple[list[JobDocument], list[str]]:
        """The documents of the jobs, each once, and notes on what could not be read.

        Args:
            work: what the tasks work on.
            with_logs: whether to read the last log lines.
        """
        documents: dict[tuple[str, str, str], JobDocument] = {}
        notes: list[str] = []
        self._masters_seconds = MASTERS_SECONDS
        deadline = time.monotonic() + DOCUMENT_SECONDS
        for task_work in work:
            if len(documents) == MAX_JOBS:
                notes.append(f"The run has more jobs; these are the newest {MAX_JOBS}.")
                break
            if time.monotonic() > deadline:
                notes.append("The cluster or Brain answers slowly; the run may have more jobs.")
                break
            try:
                job = self.find_job(task_work)
                existing = documents.get((job.kind.name, job.namespace, job.name))
                tasks = [*(existing.tasks if existing else []), task_work.task]
                document = existing or self._describe(job, with_logs=with_logs)
            except EdlError as error:
                notes.append(f"{task_work.task.task_id}: {error}")
                continue
            documents[job.kind.name, job.namespace, job.name] = document.model_copy(update={"tasks": tasks})
        return list(documents.values()), list(dict.fromkeys(notes))

    def find_job(self, work: TaskWork) -> FoundJob:
        """The job that a task works on, if the user may see it.

        Raises:
            ForbiddenError: the user may not see it, or the task's arguments name a kubeconfig.
            NotFoundError: the cluster has no such job, and nothing proves that the job belonged to this task.
            EdlError: the cluster can't be reached.
        """
        settings = connection_of(work)
        if settings is None:
            raise NotFoundError("Airflow no longer has the rendered arguments of this task")
        hook, cluster = self._clusters.connect(settings)
        target, kind, name = work.target, work.target.kind, work.target.name
        if kind == SCALE_PLAN:
            plan = client.find(cluster, SCALE_PLANS, name, target.namespace)
            name = ScalePlan.read_stored(plan)[0].job if plan else work.arguments.get("job", "")
            kind = ELASTIC_JOB
            if not name:
                raise NotFoundError(f"{target.namespace}/{target.name}: the ScalePlan is gone")
        job_kind = kinds.kind_of(kind)
        if job_kind.view is None:
            raise NotFoundError(f"{kind} {target.namespace}/{name} is no job")
        manifest = client.find(cluster, job_kind.source.api, name, target.namespace)
        engine, subject = engine_of(hook.installation), f"{kind} {target.namespace}/{name}"
        dag_id = dag_of_job(manifest, name, work, engine, cluster.namespace)
        if dag_id is None:
            raise NotFoundError(
                f"{subject} was deleted" if manifest is None else f"{subject} is not this task's"
            )
        if not self._rights.read(dag_id):
            raise ForbiddenError(f"{subject} belongs to the DAG {dag_id}, which you have no right to see")
        return FoundJob(work, hook, cluster, job_kind, target.namespace, name, dag_id, manifest)

    def _describe(self, job: FoundJob, *, with_logs: bool) -> JobDocument:
        notes: list[str] = []
        if job.manifest is None:
            document = self._read_former(job)
        else:
            document = self._describe_present(job, job.manifest, notes)
            document = self._with_history(job, document, notes)
        extra: dict[str, object] = {
            "dashboard": job.hook.link(job.kind.name, job.namespace, job.name),
            "may_edit": job.manifest is not None and self._rights.edit(job.dag_id),
            "notes": notes,
        }
        if not self._rights.logs(job.dag_id):
            document = without_output(document)
        elif with_logs and job.manifest is not None:
            extra["log"] = read_last_lines(job)
        return document.model_copy(update=extra)

    def _describe_present(self, job: FoundJob, manifest: Object, notes: list[str]) -> JobDocument:
        """A job that the cluster has, with the figures of its master, if it runs."""
        if job.kind.model is not ElasticJob:
            return describe_job(job.kind.view_stored(manifest), None, (), time.time())
        elastic, plans = ElasticJob.read_stored(manifest)[0], _try_plans(job, notes)
        measured = self._measure(job.cluster, elastic)
        if measured is None:
            return describe_job(job.kind.view_stored(manifest), elastic, plans, time.time())
        newest = measured.show_in(manifest)
        elastic = ElasticJob.read_stored(newest)[0]
        document = describe_job(job.kind.view_stored(newest), elastic, plans, time.time())
        return add_figures(document, measured)

    def _measure(self, cluster: Cluster, job: ElasticJob) -> Measurement | None:
        """None for a job that no master serves now."""
        if job.status.phase not in _SERVED:
            return None
        if self._masters_seconds <= 0:
            return Measurement(status_figures(job), "not read: other masters took the time for it")
        began = time.monotonic()
        try:
            return self._clusters.figures.measure(cluster, [job])[0]
        except ForbiddenError as error:
            return Measurement(status_figures(job), str(error))
        finally:
            self._masters_seconds -= time.monotonic() - began

    def _read_former(self, job: FoundJob) -> JobDocument:
        """The Brain's data on a job that was deleted."""
        subject = f"{job.kind.name} {job.namespace}/{job.name}"
        url, token = job.hook.brain
        uid = job.work.target.uid if job.work.target.kind == job.kind.name else ""
        if not url or not uid:
            raise NotFoundError(
                f"{subject} was deleted; with edl_brain_url in the connection, its history stays in Brain"
            )
        answer = brain_history.read_history(url, token, uid)
        if answer is None or (answer.job.namespace, answer.job.name) != (job.namespace, job.name):
            raise NotFoundError(f"{subject} was deleted, and Brain has not seen it")
        return describe_history(answer)

    def _with_history(self, job: FoundJob, document: JobDocument, notes: list[str]) -> JobDocument:
        url, token = job.hook.brain
        if not url:
            return document
        try:
            answer = brain_history.read_history(url, token, document.uid)
        except EdlError as error:
            notes.append(str(error))
            return document
        return add_history(document, describe_history(answer)) if answer is not None else document


def _try_plans(job: FoundJob, notes: list[str]) -> list[ScalePlan]:
    try:
        return read_plans(job.cluster, job.name, job.namespace)
    except EdlError as error:
        notes.append(f"Plans can't be read: {error}")
        return []


def read_last_lines(job: FoundJob) -> LogDocument:
    """The last lines of the chief, or of the first worker of a job without one."""
    scope = Scope(PODS, job.namespace, label_selector=job.kind.pods_of(job.name))
    try:
        chosen = choose_pods(job.kind, client.list_objects(job.cluster, scope).items, "chief")
        if not chosen:
            return LogDocument(note="No pod has started.")
        pod = chosen[0]
        container = pod_state.own_container(pod)
        options = LogOptions(container, tail_lines=MAX_LOG_LINES)
        text = logs.read_end(job.cluster, manifests.name_of(pod), job.namespace, options, MAX_LOG_BYTES)
    except EdlError as error:
        return LogDocument(note=f"The log can't be read: {error}")
    name = manifests.name_of(pod)
    lines = [escape_controls(render_own_line(line, name)) for line in text.splitlines()[-MAX_LOG_LINES:]]
    return LogDocument(pod=name, node=job.kind.node_of(pod), lines=lines)
