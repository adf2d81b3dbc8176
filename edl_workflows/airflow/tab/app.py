"""The endpoints of the tab.

Airflow does not protect the endpoints of plugins. So each endpoint requires a user authenticated by Airflow
(session cookie or bearer token; otherwise 401) who has a right on the DAG (otherwise 403): to read its task
instances or, for a decision about a plan, to edit the DAG. Only the files of the page are served to
everybody.
"""

import time
from datetime import UTC, datetime
from functools import cache
from importlib import resources
from typing import Annotated, Any

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.models.dag import DagModel
from fastapi import Depends, FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel

from edl_workflows.airflow.tab.decisions import Decider, Decision, carry_out
from edl_workflows.airflow.tab.document import TabDocument
from edl_workflows.airflow.tab.reading import DOCUMENT_SECONDS, Clusters, FoundJob, JobReader, Rights
from edl_workflows.airflow.tab.task_jobs import TaskSelection, find_work
from edl_workflows.core import exceptions
from edl_workflows.core.jobs.elastic_job.model import ElasticJob

_TYPES = {".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
_FILE_HEADERS = {"Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
_DATA_HEADERS = {"Cache-Control": "no-store"}
_STATUSES: dict[type[exceptions.EdlError], int] = {
    exceptions.NotFoundError: 404,
    exceptions.ForbiddenError: 403,
    exceptions.ConflictError: 409,
    exceptions.InvalidError: 422,
    exceptions.UnavailableError: 503,
}

DagId = Annotated[str, Path(min_length=1, max_length=250)]
RunId = Annotated[str, Query(min_length=1, max_length=250)]
TaskId = Annotated[str | None, Query(min_length=1, max_length=250)]
MapIndex = Annotated[int, Query(ge=-1, le=1_000_000)]


def _selection(
    dag_id: DagId, run_id: RunId, task_id: TaskId = None, map_index: MapIndex = -1
) -> TaskSelection:
    return TaskSelection(dag_id, run_id, task_id, map_index)


class DecisionAnswer(BaseModel):
    """What was done."""

    message: str


@cache
def shared_app() -> FastAPI:
    """The application of this process."""
    return make_app()


def make_app() -> FastAPI:
    """A new application."""
    app = FastAPI(title="Elastic jobs", docs_url=None, redoc_url=None, openapi_url=None)
    clusters = Clusters()

    @app.exception_handler(exceptions.EdlError)
    async def answer_error(_request: Request, error: Exception) -> JSONResponse:
        codes = (code for kind, code in _STATUSES.items() if isinstance(error, kind))
        return JSONResponse({"detail": str(error)}, next(codes, 500), _DATA_HEADERS)

    @app.get(
        "/dags/{dag_id}/jobs",
        response_model=TabDocument,
        dependencies=[Depends(requires_access_dag("GET", DagAccessEntity.TASK_INSTANCE))],
    )
    def read_tab(
        response: Response,
        user: GetUserDep,
        selection: Annotated[TaskSelection, Depends(_selection)],
    ) -> TabDocument:
        response.headers.update(_DATA_HEADERS)
        work = find_work(selection)
        reader = JobReader(clusters, rights_of(user))
        jobs, notes = reader.read_jobs(work, with_logs=selection.task_id is not None)
        return TabDocument(now=datetime.now(UTC).timestamp(), jobs=jobs, notes=notes)

    @app.post(
        "/dags/{dag_id}/decisions", dependencies=[Depends(require_json), Depends(requires_access_dag("PUT"))]
    )
    def decide(
        response: Response,
        user: GetUserDep,
        decision: Decision,
        selection: Annotated[TaskSelection, Depends(_selection)],
    ) -> DecisionAnswer:
        response.headers.update(_DATA_HEADERS)
        rights = rights_of(user)
        job = _find_decided(JobReader(clusters, rights), selection, decision)
        if not rights.edit(job.dag_id):
            raise exceptions.ForbiddenError(f"you have no right to edit the DAG {job.dag_id}")
        assert job.manifest is not None, "one that was deleted is not found"
        decider = Decider(user.get_name(), selection.dag_id, datetime.now(UTC))
        elastic = ElasticJob.read_stored(job.manifest)[0]
        return DecisionAnswer(message=carry_out(job.cluster, elastic, decision, decider))

    @app.get("/files/{name}", include_in_schema=False)
    def read_file(name: str) -> Response:
        if name not in _files():
            raise HTTPException(404)
        return Response(_files()[name], headers=_FILE_HEADERS, media_type=_TYPES[name[name.rfind(".") :]])

    return app


def require_json(request: Request) -> None:
    """Reject a body that is not declared as JSON. A browser would send such a body, with the user's cookie,
    for a page of another origin without a preflight request. FastAPI before 0.132 parses a body without a
    content type as JSON."""
    declared = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if declared != "application/json":
        raise HTTPException(415, "the body must be application/json")


def _find_decided(reader: JobReader, selection: TaskSelection, decision: Decision) -> FoundJob:
    """The job of a decision, among those of the tasks.

    Raises:
        NotFoundError: none of the tasks works on this ElasticJob.
        UnavailableError: the cluster does not answer in time.
    """
    deadline = time.monotonic() + DOCUMENT_SECONDS
    for work in find_work(selection):
        if time.monotonic() > deadline:
            raise exceptions.UnavailableError("the cluster answers slowly, so nothing was decided; try again")
        try:
            job = reader.find_job(work)
        except exceptions.EdlError:
            continue  # not the one that the page showed
        if (job.kind.name, job.namespace, job.name) == (decision.kind, decision.namespace, decision.name):
            if job.manifest is not None and job.kind.model is ElasticJob:
                return job
            break
    raise exceptions.NotFoundError(
        f"no task here works on an {decision.kind} {decision.namespace}/{decision.name} with plans"
    )


def rights_of(user: Any) -> Rights:
    """What a user may do with DAGs, according to Airflow's auth manager."""

    def may(method: Any, entity: DagAccessEntity | None, dag_id: str) -> bool:
        details = DagDetails(id=dag_id, **_team_of(dag_id))
        return bool(
            get_auth_manager().is_authorized_dag(
                method=method, access_entity=entity, details=details, user=user
            )
        )

    return Rights(
        read=lambda dag_id: may("GET", DagAccessEntity.TASK_INSTANCE, dag_id),
        edit=lambda dag_id: may("PUT", None, dag_id),
        logs=lambda dag_id: may("GET", DagAccessEntity.TASK_LOGS, dag_id),
    )


def _team_of(dag_id: str) -> dict[str, Any]:
    """The team of a DAG, as keyword arguments; none before Airflow 3.2, which introduced teams."""
    return {"team_name": DagModel.get_team_name(dag_id)} if hasattr(DagModel, "get_team_name") else {}


@cache
def _files() -> dict[str, bytes]:
    own = (resources.files("edl_workflows.airflow.tab") / "files").iterdir()
    page = resources.files("edl_workflows.services.brain.page") / "files"
    files = (*own, page / "format.js", page / "shapes.js")
    return {file.name: file.read_bytes() for file in files if file.name[file.name.rfind(".") :] in _TYPES}
