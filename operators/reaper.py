"""The operator that cancels objects that tasks of this Airflow left behind because they could not cancel them
themselves."""

from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from edl_workflows.airflow.hooks.errors import raised_for_airflow
from edl_workflows.core.exceptions import EdlError, InvalidError
from edl_workflows.operators.cluster import CLUSTER_FIELDS, ClusterTask

if TYPE_CHECKING:
    from airflow.sdk import Context

    from edl_workflows.airflow.hooks.orphans import OwnerJudgement, Recorded
    from edl_workflows.airflow.hooks.task_owner import TaskOwner
    from edl_workflows.runtime.kube.connect import Cluster

MAX_LISTED = 200
"""Most objects in the result, which Airflow stores in its database."""


class ReapOrphanedJobsOperator(ClusterTask):
    """Cancel the jobs and plans of this Airflow that nobody waits for.

    It finds the objects in a namespace that tasks of this installation created: the owner annotation of each
    object names the DAG, run and task, and the installation if it has a name. It asks Airflow for the state
    of each of these tasks. An object that no live task waits for is an orphan. After the grace time, the
    orphan is cancelled according to the ``on_kill_action`` of the task that created it. The operator leaves
    alone: objects that other installations or people created; objects whose task may continue (even one that
    was cleared or waits for a retry); objects that their task did not wait for, while the run continues or if
    it succeeded; and objects created with ``on_kill_action="keep"``. Another Airflow with the same DAG writes
    the same annotations. So an Airflow without a name (``edl_installation`` of the connection) cancels an
    object only if the task's XCom has the object's uid, which no other Airflow has. The XCom is gone once the
    run was deleted.

    The first run that finds an orphan only records the time on the object. A later run cancels it, once the
    grace time has passed. If a task takes the object over in between, the
    record is removed. So put the operator into a DAG with a schedule. The operator may be repeated and killed
    at any time.

    Returns (XCom) a small dict: ``report_only``, ``counts`` (objects by verdict: awaited, kept, unclear,
    orphaned), ``cancelled`` (how many), and ``objects``: each object that is not awaited, with ``kind``,
    ``namespace``, ``name``, ``owner``, ``verdict``, ``why``, ``since``, ``action`` and ``done``.

    Args:
        report_only: dry run: only report what would be done. Templated.
        grace: how long an object must have been an orphan before it is cancelled.
        max_cancellations: if more objects are due at once, none is cancelled and the task fails, because so
            many orphans probably mean that Airflow's database was lost or restored from a backup.
        kwargs: arguments of `ClusterTask`. ``namespace`` is the namespace of the objects, by default the
            connection's.
    """

    template_fields: Sequence[str] = ("report_only", "max_cancellations", *CLUSTER_FIELDS)
    ui_color = "#f2dcd9"

    def __init__(
        self,
        *,
        report_only: bool | str = False,
        grace: timedelta = timedelta(minutes=10),
        max_cancellations: int | str = 20,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.report_only = report_only
        self.grace = grace
        self.max_cancellations = max_cancellations

    def execute(self, context: "Context") -> dict[str, Any]:
        """Check all objects once; record new orphans, and cancel those that are due."""
        from edl_workflows.airflow.hooks.orphans import OwnerVerdict, judge_objects

        with raised_for_airflow():
            report_only, most = (
                _truth(self.report_only, "report_only"),
                _count(self.max_cancellations, "max_cancellations"),
            )
            cluster = self.hook.cluster()
            namespace, recorded = self.namespace or cluster.namespace, _records_of(context)
            judgements = judge_objects(cluster, namespace, self.hook.installation, recorded)
            now = datetime.now(UTC)
            if not report_only:
                self._check_number(judgements, now, most)
            done: list[str] = []
            errors: list[EdlError] = []
            for judged in judgements:
                try:
                    done.append(self._settle(cluster, judged, now, report_only=report_only))
                except EdlError as error:  # concerns one object; the others are settled anyway
                    self.log.exception("%s could not be settled", judged.owned.handle)
                    errors.append(error)
                    done.append(f"failed: {error}")
            if errors:
                raise errors[0]
        listed = [
            _row(judged, outcome)
            for judged, outcome in zip(judgements, done, strict=True)
            if judged.verdict is not OwnerVerdict.AWAITED
        ]
        return {
            "report_only": report_only,
            "counts": dict(Counter(str(judged.verdict) for judged in judgements)),
            "cancelled": done.count(CANCELLED),
            "objects": listed[:MAX_LISTED],
        }

    def _check_number(self, judgements: "list[OwnerJudgement]", now: datetime, most: int) -> None:
        due = [judged for judged in judgements if judged.due(now, self.grace)]
        if len(due) > most:
            names = ", ".join(str(judged.owned.handle) for judged in due[:5])
            raise InvalidError(
                f"max_cancellations: {len(due)} objects are orphans ({names}, …), more than {most}; none was "
                "cancelled. If Airflow's database is intact and they shall go, raise max_cancellations"
            )

    def _settle(
        self, cluster: "Cluster", judged: "OwnerJudgement", now: datetime, *, report_only: bool
    ) -> str:
        """Record or cancel one object if necessary. Return what was done, in words."""
        from edl_workflows.airflow.hooks import lineage
        from edl_workflows.airflow.hooks.orphans import OwnerVerdict, noted_time
        from edl_workflows.pipelines.waiting import ownership

        owned = judged.owned
        if judged.verdict is not OwnerVerdict.ORPHANED:
            if owned.gone and not report_only:
                ownership.record_abandonment(cluster, owned.handle, None)
            return ""
        since = judged.gone_since
        self.log.info("%s is an orphan since %s: %s", owned.handle, since or "now", judged.reason)
        if since is None:
            if report_only:
                return "would be noted"
            return NOTED if ownership.record_abandonment(cluster, owned.handle, noted_time(now)) else CHANGED
        if not judged.due(now, self.grace):
            return f"waits until {noted_time(since + self.grace)}"
        if report_only:
            return "would be cancelled"
        if not ownership.cancel_object(cluster, owned.handle, judged.action, owned.gone):
            return CHANGED
        if judged.action == "delete":
            lineage.emit_job_event(lineage.JobEvent.deleted(owned.handle))
        return CANCELLED


def _records_of(context: "Context") -> "Recorded":
    """Return the reader of the XCom in which a task notes the object that it works on."""
    from edl_workflows.airflow.hooks.task_object import OBJECT_KEY, TaskObject

    def recorded(owner: "TaskOwner") -> str:
        noted = context["ti"].xcom_pull(
            dag_id=owner.dag_id,
            run_id=owner.run_id,
            task_ids=owner.task_id,
            map_indexes=owner.map_index,
            key=OBJECT_KEY,
        )
        target = TaskObject.read(noted)
        return target.uid if target is not None else ""

    return recorded


NOTED = "noted"
CANCELLED = "cancelled"
CHANGED = "changed meanwhile, left alone"


def _row(judged: "OwnerJudgement", done: str) -> dict[str, str]:
    owned = judged.owned
    return {
        "kind": owned.handle.kind,
        "namespace": owned.handle.namespace,
        "name": owned.handle.name,
        "owner": owned.handle.owner,
        "verdict": str(judged.verdict),
        "why": judged.reason,
        "since": owned.gone,
        "action": owned.on_cancel,
        "done": done,
    }


def _truth(value: bool | str, name: str) -> bool:
    """Parse a boolean, which a template renders as text."""
    booleans = {"true": True, "false": False}
    if str(value).lower() not in booleans:
        raise InvalidError(f"{name}: true or false is needed, this is {value!r}")
    return booleans[str(value).lower()]


def _count(value: int | str, name: str) -> int:
    if not str(value).isdecimal():
        raise InvalidError(f"{name}: a number is needed, this is {value!r}")
    return int(value)
