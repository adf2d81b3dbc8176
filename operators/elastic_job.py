"""Operators on whole jobs: submit, suspend, resume, delete."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from edl_workflows.exceptions import InvalidError
from edl_workflows.operators.base import StageOperator


class SubmitElasticJobOperator(StageOperator):
    """Create an elastic job and wait until it has succeeded.

    The job is named after the task and the run unless the manifest names it, so that a retry finds the job of the attempt
    before it and goes on with that; a job that failed is replaced by a new one. A task that is cleared after its success
    trains anew.

    Returns (XCom) a small dict: ``kind``, ``namespace``, ``name``, ``uid``, ``phase``, ``step``, ``records``, ``checkpoint``
    (``uri``, ``step``) and ``replicas``.

    Args:
        manifest: the custom resource: a dict, YAML text, or the path of a ``.yaml``, ``.yml`` or ``.json`` file relative to the DAG
            file. All of it is templated.
        on_kill_action: "delete" the job (default), "suspend" it (data position and checkpoints stay) or "keep" it.
        kwargs: as `StageOperator`.
    """

    stage_name: ClassVar[str] = "submit"
    template_fields: Sequence[str] = (
        "manifest",
        "namespace",
        "kubernetes_conn_id",
        "config_file",
        "cluster_context",
    )
    template_ext: Sequence[str] = (".yaml", ".yml", ".json")
    template_fields_renderers: ClassVar[dict[str, str]] = {"manifest": "yaml"}
    ui_color = "#d7ecd9"

    def __init__(self, *, manifest: dict[str, Any] | str, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.manifest = manifest

    def request_values(self) -> dict[str, Any]:
        """The manifest, read after templating."""
        return {"manifest": read_manifest(self.manifest), "hint": f"{self.dag_id}-{self.task_id}"}


class _JobOperator(StageOperator):
    """An operator on a job that is there.

    Args:
        name: the job's, as ``submit.output["name"]``.
        kind: of the job.
        kwargs: as `StageOperator`.
    """

    template_fields: Sequence[str] = (
        "name",
        "namespace",
        "kubernetes_conn_id",
        "config_file",
        "cluster_context",
    )

    def __init__(self, *, name: str, kind: str = "ElasticJob", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.name = name
        self.kind = kind

    def request_values(self) -> dict[str, Any]:
        """Which job."""
        return {"name": self.name, "kind": self.kind}


class SuspendElasticJobOperator(_JobOperator):
    """Take a job's pods away, keep its data position and checkpoints, and wait until it is Suspended.

    Arguments and result as `SubmitElasticJobOperator`, with the job's ``name`` in place of a manifest.
    """

    stage_name: ClassVar[str] = "suspend"


class ResumeElasticJobOperator(_JobOperator):
    """Let a suspended job go on from its newest checkpoint, and wait until it is Running."""

    stage_name: ClassVar[str] = "resume"


class DeleteElasticJobOperator(_JobOperator):
    """Delete a job and wait until all its pods are gone. One that is not there is as good as deleted.

    As a teardown: ``delete.as_teardown(setups=submit)``.
    """

    stage_name: ClassVar[str] = "delete"


def read_manifest(manifest: Mapping[str, Any] | str) -> dict[str, Any]:
    """A manifest from what the user gave.

    Raises:
        InvalidError: it is no YAML, or not one map.
    """
    if isinstance(manifest, Mapping):
        return dict(manifest)
    from edl_workflows.stages.manifest import parse

    try:
        return parse(manifest, "manifest")
    except InvalidError as error:
        if "\n" in manifest:
            raise
        raise InvalidError(f"{error}; is it a path? It must end in .yaml, .yml or .json") from error
