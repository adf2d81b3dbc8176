"""The operator that submits a job of any kind."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from edl_workflows.airflow.hooks.task_state import task_states
from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.operators.base import StageOperator
from edl_workflows.operators.cluster import CLUSTER_FIELDS
from edl_workflows.operators.rendered import read_path, rendered_map

if TYPE_CHECKING:
    from airflow.sdk import Context

    from edl_workflows.pipelines.waiting.identity import StageIdentity


class SubmitJobOperator(StageOperator):
    """Create a job of any kind and wait until it has succeeded.

    The job is named after the task and the run unless the manifest names it. A retry adopts the job of the
    previous attempt; a job that failed is replaced by a new one. If the task is cleared after its success, it
    trains again.

    Returns (XCom) a small dict: ``kind``, ``namespace``, ``name``, ``uid``, ``phase``, ``step``, ``records``,
    ``metrics`` and ``warnings`` (if there are any), ``checkpoint`` (``uri``, ``step``) and ``replicas``.

    Args:
        manifest: the custom resource: a dict, its text (YAML, JSON or Python), or the path of a ``.yaml``,
            ``.yml`` or ``.json`` file relative to the DAG file. A `Path` is the path of any file, which is
            read when the DAG file is parsed. All forms are templated.
        queue_timeout: how long, from the start of the task, the job may wait for pods or quota before it runs
            for the first time. After that, the job is cancelled, and the task fails with a message that says
            what the job waits for.
        on_kill_action: "delete" the job (default), "suspend" it (data position and checkpoints stay) or
            "keep" it.
        logs: training logs to write into the task's log while it waits: "chief" for the logs of the chief (or
            of the first worker, if the job has no chief), "all" for the logs of all pods. Each line names its
            pod. By default none.
        log_tail_lines: for a pod that ran before the wait began, the number of its last lines to write.
        kwargs: arguments of `StageOperator`.
    """

    stage_name: ClassVar[str] = "submit"
    final_errors: ClassVar[tuple[type[EdlError], ...]] = ()
    manifest_kind: ClassVar[str] = ""
    """The only kind that the operator accepts; "" for any."""
    template_fields: Sequence[str] = ("manifest", *CLUSTER_FIELDS)
    template_ext: Sequence[str] = (".yaml", ".yml", ".json")
    template_fields_renderers: ClassVar[dict[str, str]] = {"manifest": "yaml"}
    ui_color = "#d7ecd9"

    def __init__(
        self,
        *,
        manifest: dict[str, Any] | str | PurePath,
        queue_timeout: timedelta | None = None,
        logs: Literal["chief", "all"] | None = None,
        log_tail_lines: int = 1000,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.manifest = read_path(manifest)
        self.queue_timeout = queue_timeout
        self.logs = logs
        self.log_tail_lines = log_tail_lines
        if logs is not None:
            self.log_request = {"pods": logs, "tailLines": log_tail_lines}

    def identity(self, context: "Context") -> "StageIdentity":
        """The owner annotations. A setup that was cleared only because a later task was cleared reuses the
        finished job."""
        identity = super().identity(context)
        if not identity.rerun or not self._serves_finished_tasks(context):
            return identity
        self.log.info(
            "Only some of the tasks on the job were cleared: a job that has succeeded is used again"
        )
        return replace(identity, rerun=False)

    def _serves_finished_tasks(self, context: "Context") -> bool:
        """Whether this is a setup, and any task directly after it still has its result of this run.

        Airflow clears a setup together with any task of its group, so the setup's own state does not show
        whether the job must be trained again.
        """
        ti = context["ti"]
        if not self.is_setup:
            return False
        followers = [task for task in self.downstream_list if not task.is_teardown]
        follower_states = [task_states(ti.dag_id, task.task_id, [ti.run_id]) for task in followers]
        states = {
            state for states_by_run in follower_states for state in states_by_run.get(ti.run_id, {}).values()
        }
        return not states.isdisjoint({"success", "skipped"})

    def data_uris(self) -> tuple[str, ...]:
        """URIs of the data sets that the manifest's annotation ``elastic.iml.github.io/data`` names."""
        from edl_workflows.airflow.hooks.lineage import declared_data

        return declared_data(read_manifest(self.manifest))

    def request_values(self) -> dict[str, Any]:
        """The fields of the stage's request: the manifest, parsed after templating.

        Raises:
            InvalidError: its kind is not the operator's.
        """
        from edl_workflows.core.jobs.kinds import KINDS

        manifest = read_manifest(self.manifest)
        other_kinds = {
            kind.name for kind in KINDS if kind.view is not None and kind.name != self.manifest_kind
        }
        if self.manifest_kind and manifest.get("kind") in other_kinds:
            raise InvalidError(
                f"kind: {type(self).__name__} accepts a job of kind {self.manifest_kind}, "
                f"this is a {manifest['kind']}; SubmitJobOperator accepts any"
            )
        return {"manifest": manifest, "hint": f"{self.dag_id}-{self.task_id}"}


def read_manifest(manifest: Mapping[str, Any] | str) -> dict[str, Any]:
    """Parse the manifest that the user gave.

    Raises:
        InvalidError: it is not YAML, or not one map.
    """
    try:
        return rendered_map(manifest, "manifest")
    except InvalidError as error:
        if not isinstance(manifest, str) or "\n" in manifest:
            raise
        raise InvalidError(f"{error}; is it a path? It must end in .yaml, .yml or .json") from error
