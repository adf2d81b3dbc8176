"""OpenLineage: the data sets of a task, and the events of its job. The job is a run of its own, a child of
the task's run.

Airflow's OpenLineage provider emits the events of tasks and asks operators for their data sets
(`describe_task`). `emit_job_event` emits those of jobs. If the provider is missing or disabled, nothing
happens.

**The run id of a job is the job's uid.** The id that the provider derives for a task differs between attempts
and does not tell which job an attempt continues with. The uid stays the same as long as it is the same job,
however often its task is deferred, killed or retried; a new job is a new run.
"""

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal, Self
from urllib.parse import urlsplit

from edl_workflows import __version__
from edl_workflows.airflow.hooks.task_owner import TaskOwner
from edl_workflows.core.jobs import kinds
from edl_workflows.core.jobs.view import JobView
from edl_workflows.core.kubernetes import names
from edl_workflows.pipelines.waiting.goals import Handle
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION
from edl_workflows.pipelines.waiting.outputs import OutputCheckpoint

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import Dataset, InputDataset, OutputDataset, RunEvent
    from openlineage.client.facet_v2 import RunFacet

JobState = Literal["START", "RUNNING", "COMPLETE", "FAIL", "ABORT"]
"""OpenLineage's run states. ABORT: the job was deleted before its end."""
PRODUCER = f"https://{names.GROUP}/edl-workflows/{__version__}"
MAX_DATA_SETS = 100
MAX_MESSAGE = 10_000

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class JobEvent:
    """An event of a job.

    Attributes:
        state: what has happened.
        kind, uid: kind and uid of the job.
        owner: its owner annotation, which names the task that created it. A job that no Airflow task created
            has no events.
        data: URIs of the data sets that it reads.
        checkpoint: the newest checkpoint that it has written.
        error: why it failed.
    """

    state: JobState
    kind: str
    uid: str
    owner: str
    data: tuple[str, ...] = ()
    checkpoint: OutputCheckpoint | None = None
    error: str = ""

    @classmethod
    def deleted(cls, handle: Handle) -> Self:
        """The end of a job that was deleted before its end.

        Args:
            handle: handle of the stage that created it.
        """
        return cls(state="ABORT", kind=handle.kind, uid=handle.uid, owner=handle.owner)


def is_active() -> bool:
    """Whether Airflow's OpenLineage provider is installed, and turned on in this process."""
    try:
        from airflow.providers.openlineage.api.core import is_openlineage_active
    except ImportError:
        return False
    return bool(is_openlineage_active())


def owner_of(job: JobView) -> str:
    """The owner annotation of a job; "" if it has none."""
    return job.annotations.get(OWNER_ANNOTATION, "")


def declared_data(manifest: Mapping[str, Any]) -> tuple[str, ...]:
    """The URIs in the annotation `names.DATA_ANNOTATION` of a job's manifest, separated by spaces or
    commas."""
    metadata = manifest.get("metadata")
    annotations = metadata.get("annotations") if isinstance(metadata, Mapping) else None
    text = annotations.get(names.DATA_ANNOTATION) if isinstance(annotations, Mapping) else None
    return tuple(str(text or "").replace(",", " ").split()[:MAX_DATA_SETS])


def describe_task(
    task: Any, data: Iterable[str], checkpoint: OutputCheckpoint | None = None, ti: Any = None
) -> "OperatorLineage[Dataset, RunFacet]":
    """What a task reads and writes: the data of its job, the checkpoint, and its inlets and outlets as far as
    the provider can translate them.

    Args:
        task: the operator.
        data: URIs of data sets.
        checkpoint: the checkpoint that the job has written.
        ti: the task instance, when the task has ended.
    """
    from airflow.providers.openlineage.extractors import ExtractorManager, OperatorLineage

    lineage: OperatorLineage[Dataset, RunFacet] = OperatorLineage(
        inputs=[*_read(data)], outputs=[*_written(checkpoint)]
    )
    ExtractorManager().extract_inlets_and_outlets(lineage, task, ti)
    return lineage


def emit_job_event(event: JobEvent, ti: Any = None) -> None:
    """Emit an event of a job through the transport of Airflow's OpenLineage provider. Errors are logged but
    not raised, because lineage must not fail a task.

    Args:
        event: what has happened.
        ti: a worker's task instance; None in a triggerer. If it created the job, its run is the parent of the
            job's run.
    """
    owner = TaskOwner.parse(event.owner)
    job_kind = next((kind for kind in kinds.KINDS if kind.name == event.kind), None)
    if owner is None or not event.uid or job_kind is None or job_kind.view is None or not is_active():
        return
    from airflow.providers.openlineage.api.core import emit

    try:
        if ti is None or _is_wanted(ti):
            emit(_run_event(event, owner, ti))
    except Exception as error:  # noqa: BLE001 - whatever goes wrong in the provider or its transport
        _log.warning("OpenLineage event %s of job %s was not emitted: %s", event.state, event.uid, error)


def _is_wanted(ti: Any) -> bool:
    """Whether the administrator's emission policy wants events of the task."""
    from airflow.providers.openlineage.utils.emission_policy import resolve_task_emission_policy

    policy = resolve_task_emission_policy(operator=ti.task, dag_id=ti.dag_id, task_id=ti.task_id)
    return bool(policy.emit)


def _run_event(event: JobEvent, owner: TaskOwner, ti: Any) -> "RunEvent":
    from airflow.providers.openlineage.conf import namespace
    from openlineage.client.event_v2 import Job, Run, RunEvent, RunState
    from openlineage.client.facet_v2 import error_message_run, job_type_job, processing_engine_run

    facets: dict[str, RunFacet] = {
        "processing_engine": processing_engine_run.ProcessingEngineRunFacet(
            version=__version__, name="edl-workflows", producer=PRODUCER
        )
    }
    if event.error:
        facets["errorMessage"] = error_message_run.ErrorMessageRunFacet(
            message=event.error[:MAX_MESSAGE], programmingLanguage="python", producer=PRODUCER
        )
    if ti is not None and owner.is_instance(ti):
        facets |= _parent(ti)
    job_type = job_type_job.JobTypeJobFacet(
        processingType="BATCH", integration="EDL_WORKFLOWS", jobType=event.kind.upper(), producer=PRODUCER
    )
    # Not the name of the EDL job, which may differ in each run of the DAG.
    name = f"{owner.dag_id}.{owner.task_id}.{event.kind.lower()}"
    return RunEvent(
        eventType=RunState[event.state],
        eventTime=datetime.now(UTC).isoformat(),
        run=Run(runId=event.uid, facets=facets),
        job=Job(namespace=namespace(), name=name, facets={"jobType": job_type}),
        inputs=_read(event.data),
        outputs=_written(event.checkpoint),
        producer=PRODUCER,
    )


def _parent(ti: Any) -> "dict[str, RunFacet]":
    """The facet that makes a run the child of the task's run."""
    from airflow.providers.openlineage.plugins import macros
    from openlineage.client.facet_v2 import parent_run

    root = parent_run.Root(
        run=parent_run.RootRun(runId=macros.lineage_root_run_id(ti)),
        job=parent_run.RootJob(
            namespace=macros.lineage_root_job_namespace(ti), name=macros.lineage_root_job_name(ti)
        ),
    )
    parent = parent_run.ParentRunFacet(
        run=parent_run.Run(runId=macros.lineage_run_id(ti)),
        job=parent_run.Job(namespace=macros.lineage_job_namespace(), name=macros.lineage_job_name(ti)),
        root=root,
        producer=PRODUCER,
    )
    return {"parent": parent}


def _read(uris: Iterable[str]) -> "list[InputDataset]":
    from openlineage.client.event_v2 import InputDataset

    return [InputDataset(namespace=space, name=name) for space, name in map(_name_of, uris) if name]


def _written(checkpoint: OutputCheckpoint | None) -> "list[OutputDataset]":
    from openlineage.client.event_v2 import OutputDataset
    from openlineage.client.facet_v2 import dataset_version_dataset

    namespace, name = _name_of(checkpoint.uri) if checkpoint is not None else ("", "")
    if checkpoint is None or not name:
        return []
    version = dataset_version_dataset.DatasetVersionDatasetFacet(
        datasetVersion=f"step {checkpoint.step}", producer=PRODUCER
    )
    return [OutputDataset(namespace=namespace, name=name, facets={"version": version})]


def _name_of(uri: str) -> tuple[str, str]:
    """Namespace and name of a data set by OpenLineage's convention, without credentials and parameters; both
    are empty if the text is not a URI."""
    try:
        parts = urlsplit(uri)
    except ValueError:  # users and programs may pass any text as a URI
        return "", ""
    host = parts.netloc.rpartition("@")[2]
    if parts.scheme in ("", "file"):
        return (f"file://{host}" if host else "file"), parts.path
    return f"{parts.scheme}://{host}", parts.path.lstrip("/") or "/"
