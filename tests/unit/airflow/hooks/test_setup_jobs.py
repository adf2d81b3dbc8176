"""Which jobs a teardown ends: those that its setups created in its run."""

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG

from edl_workflows.airflow.hooks.setup_jobs import SetupTask, list_setup_jobs
from edl_workflows.airflow.hooks.task_object import TaskObject
from edl_workflows.core.exceptions import ForbiddenError, NotFoundError
from edl_workflows.operators.elastic_job import SubmitElasticJobOperator
from edl_workflows.operators.stages import CancelJobOperator
from edl_workflows.operators.tf_job import SubmitTFJobOperator
from edl_workflows.pipelines.waiting import ownership
from edl_workflows.pipelines.waiting.identity import OWNER_ANNOTATION
from edl_workflows.runtime.kube import client
from edl_workflows.runtime.kube.connect import Cluster
from edl_workflows.runtime.kube.resources import Scope
from tests.airflow.support import elastic_job

pytestmark = pytest.mark.filterwarnings("ignore:::(?!edl_workflows)")

RUN = "airflow/dag/run/"
OWNER = f"{RUN}submit/-1"


def create(cluster: Cluster, name: str, owner: str = OWNER) -> TaskObject:
    """A job with an owner annotation, as its task notes it."""
    manifest = elastic_job(name)
    manifest["metadata"]["annotations"] = {OWNER_ANNOTATION: owner}
    metadata = client.create(cluster, manifest)["metadata"]
    return TaskObject(kind="ElasticJob", namespace=metadata["namespace"], name=name, uid=metadata["uid"])


def jobs_of(cluster: Cluster, *setups: SetupTask, named: bool = False, kind: str = "ElasticJob") -> set[str]:
    """The names of the jobs of setups."""
    jobs = list_setup_jobs(cluster, setups, kind, cluster.namespace, named=named)
    return {job.name for job in jobs}


def test_a_job_is_where_its_setup_noted_it(cluster: Cluster) -> None:
    """The teardown's own kind and namespace don't count: the manifest may have named others."""
    noted = create(cluster, "mnist")
    elsewhere = cluster.in_namespace("default")

    assert jobs_of(elsewhere, SetupTask(OWNER, noted=(noted,)), kind="TFJob") == {"mnist"}
    assert jobs_of(elsewhere, SetupTask(OWNER, "ElasticJob", cluster.namespace), kind="TFJob") == {"mnist"}
    assert not jobs_of(elsewhere, SetupTask(OWNER))


def test_without_names_only_a_note_tells_two_airflows_apart(cluster: Cluster) -> None:
    """Two Airflows with the same DAG and no names write the same annotations; a teardown ends only the job
    that its own Airflow noted. With names, an earlier attempt's job under another name is found, too."""
    noted = create(cluster, "dev-mnist")
    create(cluster, "prod-mnist")
    create(cluster, "foreign", f"{RUN}submit/-10")

    assert jobs_of(cluster, SetupTask(OWNER, noted=(noted,))) == {"dev-mnist"}
    assert jobs_of(cluster, SetupTask(OWNER, noted=(noted,)), named=True) == {"dev-mnist", "prod-mnist"}
    assert jobs_of(cluster, SetupTask(OWNER)) == {"dev-mnist", "prod-mnist"}


def test_all_instances_of_a_mapped_setup(cluster: Cluster) -> None:
    """An instance may have been lost before it noted its job."""
    noted = create(cluster, "first", f"{RUN}submit/0")
    create(cluster, "second", f"{RUN}submit/1")

    assert jobs_of(cluster, SetupTask(f"{RUN}submit/", noted=(noted,))) == {"first", "second"}


def test_a_kind_without_a_definition_has_no_jobs(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A teardown does not fail in a cluster that never had such a job."""

    def list_objects(_cluster: Cluster, _scope: Scope) -> Any:
        raise NotFoundError("the server could not find the requested resource")

    monkeypatch.setattr(client, "list_objects", list_objects)

    assert not jobs_of(cluster, SetupTask(OWNER))


@pytest.mark.parametrize("rights", [{"elasticjobs"}, set[str]()])
def test_kinds_that_an_account_may_not_list(
    rights: set[str], cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An account with rights on one kind ends its jobs of this kind; one without any says so."""
    create(cluster, "mnist")
    list_objects = client.list_objects

    def list_permitted(cluster: Cluster, scope: Scope) -> Any:
        if scope.resource.plural not in rights:
            raise ForbiddenError(f"cannot list {scope.resource.plural}")
        return list_objects(cluster, scope)

    monkeypatch.setattr(client, "list_objects", list_permitted)

    if not rights:
        with pytest.raises(ForbiddenError):
            ownership.list_owned(cluster, cluster.namespace, "airflow")
        return
    [owned] = ownership.list_owned(cluster, cluster.namespace, "airflow")
    assert owned.handle.name == "mnist"


class StoredXcoms:
    """A task instance of a teardown.

    Args:
        noted: by task and map index, what a setup noted.
    """

    dag_id, run_id, task_id, map_index = "dag", "run", "cancel", -1

    def __init__(self, noted: dict[tuple[str, int], Any]) -> None:
        self.noted = noted

    def xcom_pull(self, task_ids: str, key: str, map_indexes: int | None = None) -> Any:
        """As Airflow's: a list without an index."""
        assert key == "edl_object"
        if map_indexes is not None:
            return self.noted.get((task_ids, map_indexes))
        return [value for (task_id, _), value in self.noted.items() if task_id == task_ids]


def read(setup: Any, teardown: Any, noted: dict[tuple[str, int], Any] | None = None) -> SetupTask:
    """What a teardown knows of its setup."""
    ti = StoredXcoms(noted or {})
    return SetupTask.of(setup, ti, RUN, teardown._index_of(setup, ti))


def test_what_a_setup_says_of_its_jobs() -> None:
    """Kind and namespace come from the operator and from a manifest that is no template."""
    manifest = {"kind": "TFJob", "metadata": {"namespace": "ml", "name": "{{ ds }}"}}
    with DAG("dag", schedule=None):
        cancel = CancelJobOperator(task_id="cancel")
        generic = SubmitElasticJobOperator(
            task_id="generic", manifest="{{ params.job }}", namespace="{{ ns }}"
        )
        tf_job = SubmitTFJobOperator(task_id="tf", manifest="job.yaml", namespace="team")
        fields = SubmitTFJobOperator(task_id="fields", manifest=manifest)
        mapped = SubmitTFJobOperator.partial(task_id="mapped", namespace="team").expand(manifest=[manifest])

    assert read(generic, cancel) == SetupTask(f"{RUN}generic/-1", "ElasticJob")
    assert read(tf_job, cancel) == SetupTask(f"{RUN}tf/-1", "TFJob", "team")
    assert read(fields, cancel) == SetupTask(f"{RUN}fields/-1", "TFJob", "ml")
    first, second = (
        TaskObject(kind="TFJob", namespace="team", name=name, uid=name) for name in ("first", "second")
    )
    stored = {("mapped", 0): first.model_dump(), ("mapped", 1): second.model_dump(), ("mapped", 2): "other"}
    assert read(mapped, cancel, stored) == SetupTask(f"{RUN}mapped/", "TFJob", "team", (first, second))


def test_a_teardown_ends_a_tf_job_of_another_namespace(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the kind nor the namespace has to be repeated at the teardown."""
    noted = create(cluster, "mnist")
    with DAG("dag", schedule=None):
        submit = SubmitElasticJobOperator(task_id="submit", manifest={}, wait_for_completion=False)
        cancel: Any = CancelJobOperator(task_id="cancel", kind="TFJob").as_teardown(setups=submit)
    hook = SimpleNamespace(cluster=lambda: cluster.in_namespace("default"), installation="")
    monkeypatch.setitem(vars(cancel), "hook", hook)

    [job] = cancel._jobs_of_setups({"ti": StoredXcoms({("submit", -1): noted.model_dump()})})

    assert (job.kind, job.namespace, job.name) == ("ElasticJob", cluster.namespace, "mnist")
